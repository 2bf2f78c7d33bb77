"""Compares two sweeps, or two values of a key: returns, time to a return and speeds.

    walle compare SWEEP_A SWEEP_B
    walle compare SWEEP --by algo.name=ppo,trpo

Differences (B - A) and ratios (B / A) have 95% intervals, per task and overall; beside them stands
the probability that a run of B is better than one of A. Final scores come from the evaluations
where all runs have them, else from training. Runs of the same seed are compared with each other
(paired) where learning shares the seed: the same algorithm, network and environment. Speeds are
compared as speedups are: within blocks, where the launcher measured in blocks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import pandas as pd

from walle.analysis.comparing import speeds, verdicts
from walle.analysis.comparing.comparisons import OVERALL, SCORE, Comparison, Quantity, compare
from walle.analysis.comparing.matching import (
    Group,
    Question,
    match,
    question,
    restricted,
    with_rows,
)
from walle.analysis.comparing.speeds import SPEEDS
from walle.analysis.drawing import forest, style
from walle.analysis.loading.directories import BadInputError
from walle.analysis.measuring.cells import column_per_run
from walle.analysis.measuring.clocks import clock
from walle.analysis.measuring.scores import count_text, evaluated, final_scores
from walle.analysis.measuring.speedups import first_reached
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, words

SPEED_COLORS = {
    SPEEDS[column]: style.section(part)[0]
    for column, part in (("collect_s", "collect"), ("learn_s", "learn"))
}
TIME = "seconds to return"
REACHED = 0.9
FLAGS = {
    "--by": {
        "metavar": "KEY[=A,B]",
        "help": "the key, and two of its values (default: the two sweeps, or what varies)",
    },
    "--returns": {
        "choices": ["evaluations", "training"],
        "help": "where final scores come from (default: evaluations, where all runs have them)",
    },
    "--time-to-return": {
        "type": float,
        "metavar": "R",
        "help": "compare the time until return_mean >= R (default: an R that all runs reach)",
    },
}


def study(
    sweep: Sweep,
    *,
    by: str | None = None,
    warmup: int = 1,
    returns: str | None = None,
    time_to_return: float | None = None,
) -> cli.Study:
    """Compares two sides of the sweep.

    Args:
        sweep: the runs; those of two directories differ in the key `sweep`.
        by: `KEY=A,B`, or a key with two values; by default what varies.
        warmup: the number of iterations of each run that do not count for speeds.
        returns: `evaluations` or `training` for final scores; by default what all runs have.
        time_to_return: a return; by default one that all runs of a task reach.
    """
    readable = with_rows(sweep)
    asked = question(readable, by)
    chosen = restricted(readable, asked)
    groups = match(chosen, asked)
    returns_of = column_per_run(chosen.iterations, "return_mean")
    starts = {run: float(values[0]) for run, values in returns_of.items()}
    scores, score_starts, said = _scores(chosen, groups, returns)
    times, reached = _times(chosen, groups, starts, time_to_return)
    found = compare(scores, groups, blocks=False, starts=score_starts)
    found += compare(times, groups, blocks=asked.key != "sweep")
    found += speeds.compare(chosen, groups, asked, warmup=warmup)
    for note in chosen.notes:
        sweep.note(note)
    if not found:
        raise BadInputError("nothing to compare: no run has a return, or iterations that count")
    sentences = [
        verdicts.sides(groups, asked),
        *verdicts.of_each(found, groups, asked),
        *said,
        *verdicts.ranges(found),
        *reached,
    ]
    sentences += [verdicts.pairing(found), words.warmup_sentence(warmup)]
    sentences += words.machine(sweep) + words.also_differ(chosen, asked.key)
    return cli.Study(_figure(found, asked), _table(found, asked), sentences)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__, FLAGS, by=None).parse_args(argv)
    return cli.run(args, "compare", study, ("by", "warmup", "returns", "time_to_return"))


def _tasks(groups: list[Group]) -> dict[str, set[str]]:
    """The names of all runs of each task, whatever their number of samplers."""
    found: dict[str, set[str]] = {}
    for group in groups:
        found.setdefault(group.learning, set()).update(group.a.values(), group.b.values())
    return found


def _scores(
    sweep: Sweep, groups: list[Group], returns: str | None
) -> tuple[Quantity, dict[str, float], list[str]]:
    """The final scores, the first return of each run from the same source, and sentences."""
    names = set().union(*_tasks(groups).values())
    from_evaluations = evaluated(sweep, names) if returns is None else returns == "evaluations"
    if from_evaluations and not evaluated(sweep, names):
        raise BadInputError(
            "--returns evaluations: not every run has an evaluation; take --returns training, or "
            "make runs with eval.every"
        )
    per_run: dict[str, float] = {}
    sentences = []
    for task, runs in _tasks(groups).items():
        found = final_scores(sweep, runs, evaluations=from_evaluations)
        per_run |= found.of
        if found.of:
            sentences.append(f"Final scores: {found.source}.")
        sentences += _unequal(task, groups, found.counts)
        if found.cut is not None:
            text = f"scores are read at {found.cut:,} steps, where the shortest run ends."
            sentences.append(words.for_line(task, text))
    rows = sweep.evaluations if from_evaluations else sweep.iterations
    first = column_per_run(rows, "return_mean").items()
    starts = {run: float(values[0]) for run, values in first}
    quantity = Quantity(SCORE, per_run, seeded=True, learned=True)
    return quantity, starts, list(dict.fromkeys(sentences))


def _unequal(task: str, groups: list[Group], counts: Mapping[str, int]) -> list[str]:
    """A sentence where the scores of A are means of another number of evaluations than B's."""
    mine = [group for group in groups if group.learning == task]
    a = {counts[run] for group in mine for run in group.a.values() if run in counts}
    b = {counts[run] for group in mine for run in group.b.values() if run in counts}
    if a == b or not (a and b):
        return []
    text = f"the score of A is of {count_text(a)}, that of B of {count_text(b)}."
    return [words.for_line(task, text)]


def _times(
    sweep: Sweep, groups: list[Group], starts: dict[str, float], asked: float | None
) -> tuple[Quantity, list[str]]:
    """Seconds to a return of each task: `asked`, or 90% of the way that every run went."""
    iterations = clock(sweep)
    per_run: dict[str, float] = {}
    targets, short, without = [], [], []
    for task, runs in _tasks(groups).items():
        rows = iterations[iterations["run"].isin(runs)]
        if not starts.keys() >= runs:
            without.append(words.of_line(task, "a run has no finished episode"))
            continue
        best = float(rows.groupby("run", observed=True)["return_mean"].max().min())
        start = sum(starts[run] for run in runs) / len(runs)
        target = start + REACHED * (best - start) if asked is None else asked
        if asked is None and best <= start:
            without.append(words.of_line(task, "a run's returns never rose above the mean start"))
            continue
        found = first_reached(rows, target)
        if len(found) < len(runs):
            short.append(words.of_line(task, f"{len(found)} of {len(runs)} runs"))
            continue
        targets.append(words.of_line(task, f"{target:.4g}"))
        per_run |= {run: float(seconds[0]) for run, seconds in found.items()}
    sentences = []
    if targets:
        why = "" if asked is not None else ", 90% of the way that every run went"
        said = f"{TIME.capitalize()}, without compiling: until return_mean is"
        sentences.append(f"{said} {'; '.join(targets)}{why}.")
    if short:
        sentences.append(f"Not every run reached return {asked:g}, so no time: {'; '.join(short)}.")
    if without:
        sentences.append(f"No {TIME}: {'; '.join(without)}.")
    return Quantity(TIME, per_run, higher=False, seeded=True), sentences


def _table(found: list[Comparison], asked: Question) -> pd.DataFrame:
    a, b = (f"{asked.key}={value}" for value in (asked.a, asked.b))
    rows = []
    for one in found:
        lone = one.tasks[0] if one.label != OVERALL else None
        centres = one.centres or (lone.a.mean(), lone.b.mean()) if lone else (math.nan, math.nan)
        sizes = [sum(t.a.size for t in one.tasks), sum(t.b.size for t in one.tasks)]
        paired = ", paired" if all(t.paired for t in one.tasks) else ""
        rows.append(
            {
                "of": one.of.name,
                "line": one.label,
                "runs": f"{sizes[0]} and {sizes[1]}{paired}",
                a: centres[0],
                b: centres[1],
                **one.difference.columns("difference"),
                **one.scaled.columns("scaled_difference"),
                **one.ratio.columns("ratio"),
                **one.improvement.columns("p_better"),
            }
        )
    return words.without_lone_line(pd.DataFrame(rows))


def _figure(found: list[Comparison], asked: Question) -> style.Figure:
    a, b = verdicts.name(asked, asked.a), verdicts.name(asked, asked.b)
    scores = [one for one in found if one.of.name == SCORE]
    several = len(scores) > 1
    names = {
        f"final score, {b} - {a}" + ", of a task's range" * several: (SCORE,),
        f"P(a run of {b} scores better)": (SCORE,),
        f"{TIME}, {b} / {a}": (TIME,),
        f"speed, {b} / {a}": tuple(SPEEDS.values()),
    }
    columns = ("scaled" if several else "difference", "improvement", "ratio", "ratio")
    neutral = (0.0, 0.5, 1.0, 1.0)
    drawn = []
    for title, column, none in zip(names, columns, neutral, strict=True):
        series = _series(found, names[title], column)
        if series:
            drawn.append((title, column, none, series))
    if not drawn:
        raise BadInputError(f"{a} and {b} are identical, and no speeds were measured")
    most = max(len(one.of) for *_, series in drawn for one in series)
    figure, axes = style.small_multiples(len(drawn), height=0.8 + 0.24 * most, columns=2)
    for area, (title, column, none, series) in zip(axes, drawn, strict=True):
        limits = (0.0, 1.0) if column == "improvement" else None
        ratio = column == "ratio"
        forest.draw(area, series, neutral=none, ratio=ratio, limits=limits)
        area.set_xlabel(title)
    style.legend(figure)
    return figure


def _series(found: list[Comparison], names: tuple[str, ...], column: str) -> list[forest.Series]:
    """A series of estimates for each quantity that has any."""
    series = []
    for i, name in enumerate(names):
        mine = [one for one in found if one.of.name == name]
        if all(one.identical for one in mine):
            continue
        of = {one.label: getattr(one, column) for one in mine}
        known = {label: x for label, x in of.items() if x.value == x.value}
        if known:
            look = style.look(i)
            if name in SPEED_COLORS:
                look = look._replace(color=SPEED_COLORS[name])
            series.append(forest.Series(name, look, known))
    return series


if __name__ == "__main__":
    sys.exit(main())
