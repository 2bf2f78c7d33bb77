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
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.loading.directories import BadInputError
from walle.analysis.measuring.comparisons import (
    OVERALL,
    SCORE,
    SPEEDS,
    Comparison,
    Pairing,
    Quantity,
    Question,
    compare,
    compare_speeds,
    match,
    question,
    restricted,
    with_rows,
)
from walle.analysis.measuring.groups import column_per_run
from walle.analysis.measuring.scores import count_text, evaluated, final_scores, first_reached
from walle.analysis.measuring.stats import Interval
from walle.analysis.measuring.wall_clock import clock
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import counted, listed

if TYPE_CHECKING:
    from matplotlib.axis import Axis

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
    """Compares two sides of the sweep."""
    readable = with_rows(sweep)
    asked = question(readable, by)
    chosen = restricted(readable, asked)
    pairings = match(chosen, asked)
    returns_of = column_per_run(chosen.iterations, "return_mean")
    starts = {run: float(values[0]) for run, values in returns_of.items()}
    scores, score_starts, said = _scores(chosen, pairings, returns)
    times, reached = _times(chosen, pairings, starts, time_to_return)
    found = compare(scores, pairings, blocks=False, starts=score_starts)
    found += compare(times, pairings, blocks=asked.key != "sweep")
    found += compare_speeds(chosen, pairings, asked, warmup=warmup)
    for note in chosen.notes:
        sweep.note(note)
    if not found:
        raise BadInputError("nothing to compare: no run has a return, or iterations that count")
    a = counted(len({name for each in pairings for name in each.a.values()}), "run")
    b = counted(len({name for each in pairings for name in each.b.values()}), "run")
    paired = dict.fromkeys(one.of.name for one in found if all(t.paired for t in one.tasks))
    verdicts = []
    for one in {one.of.name: one for one in found}.values():  # `overall` is the last
        mine = [other for other in found if other.of.name == one.of.name]
        labels = {other.label for other in mine[:-1]}
        if one.of.seeded and not one.of.learned:  # combined over numbers of workers first
            labels = {pairing.learning for pairing in pairings}
        kind = "tasks" if labels <= {pairing.task for pairing in pairings} else "groups"
        same = all(other.identical for other in mine)
        verdicts.append(f"{one.of.name.capitalize()}: {_verdict(one, asked, kind, identical=same)}")
    texts = [
        f"A is {asked.key}={asked.a} ({a}), B is {asked.key}={asked.b} ({b}).",
        *verdicts,
        *said,
        *_ranges(found),
        *reached,
        f"Paired by seed: {listed(list(paired))}."
        if paired
        else "Runs are independent: no seeds are paired.",
        sentences.warmup_sentence(warmup),
        *sentences.machine(sweep),
        *sentences.also_differ(chosen, asked.key),
    ]
    return cli.Study(_figure(found, asked), _table(found, asked), texts)


main = cli.command("compare", study, __doc__, FLAGS)


def _tasks(pairings: list[Pairing]) -> dict[str, set[str]]:
    """The names of all runs of each task, whatever their number of samplers."""
    found: dict[str, set[str]] = {}
    for pairing in pairings:
        found.setdefault(pairing.learning, set()).update(pairing.a.values(), pairing.b.values())
    return found


def _scores(
    sweep: Sweep, pairings: list[Pairing], returns: str | None
) -> tuple[Quantity, dict[str, float], list[str]]:
    """The final scores, the first return of each run from the same source, and sentences."""
    names = set().union(*_tasks(pairings).values())
    from_evaluations = evaluated(sweep, names) if returns is None else returns == "evaluations"
    if from_evaluations and not evaluated(sweep, names):
        raise BadInputError(
            "--returns evaluations: not every run has an evaluation; take --returns training, or "
            "make runs with eval.every"
        )
    per_run: dict[str, float] = {}
    texts = []
    for task, runs in _tasks(pairings).items():
        found = final_scores(sweep, runs, evaluations=from_evaluations)
        per_run |= found.of
        if found.of:
            texts.append(f"Final scores: {found.source}.")
        mine = [pairing for pairing in pairings if pairing.learning == task]
        a = {found.counts[run] for p in mine for run in p.a.values() if run in found.counts}
        b = {found.counts[run] for p in mine for run in p.b.values() if run in found.counts}
        if a and b and a != b:
            text = f"the score of A is of {count_text(a)}, that of B of {count_text(b)}."
            texts.append(sentences.for_line(task, text))
        if found.cut is not None:
            text = f"scores are read at {found.cut:,} steps, where the shortest run ends."
            texts.append(sentences.for_line(task, text))
    rows = sweep.evaluations if from_evaluations else sweep.iterations
    first = column_per_run(rows, "return_mean").items()
    starts = {run: float(values[0]) for run, values in first}
    quantity = Quantity(SCORE, per_run, seeded=True, learned=True)
    return quantity, starts, list(dict.fromkeys(texts))


def _times(
    sweep: Sweep, pairings: list[Pairing], starts: dict[str, float], asked: float | None
) -> tuple[Quantity, list[str]]:
    """Seconds to a return of each task: `asked`, or 90% of the way that every run went."""
    iterations = clock(sweep)
    per_run: dict[str, float] = {}
    targets, short, without = [], [], []
    for task, runs in _tasks(pairings).items():
        rows = iterations[iterations["run"].isin(runs)]
        if not starts.keys() >= runs:
            without.append(sentences.of_line(task, "a run has no finished episode"))
            continue
        best = float(rows.groupby("run", observed=True)["return_mean"].max().min())
        start = sum(starts[run] for run in runs) / len(runs)
        target = start + REACHED * (best - start) if asked is None else asked
        if asked is None and best <= start:
            without.append(
                sentences.of_line(task, "a run's returns never rose above the mean start")
            )
            continue
        found = first_reached(rows, target)
        if len(found) < len(runs):
            short.append(sentences.of_line(task, f"{len(found)} of {len(runs)} runs"))
            continue
        targets.append(sentences.of_line(task, f"{target:.4g}"))
        per_run |= {run: float(seconds[0]) for run, seconds in found.items()}
    texts = []
    if targets:
        why = "" if asked is not None else ", 90% of the way that every run went"
        said = f"{TIME.capitalize()}, without compiling: until return_mean is"
        texts.append(f"{said} {'; '.join(targets)}{why}.")
    if short:
        texts.append(f"Not every run reached return {asked:g}, so no time: {'; '.join(short)}.")
    if without:
        texts.append(f"No {TIME}: {'; '.join(without)}.")
    return Quantity(TIME, per_run, higher=False, seeded=True), texts


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
    return sentences.without_lone_line(pd.DataFrame(rows))


def _figure(found: list[Comparison], asked: Question) -> style.Figure:
    a, b = _side(asked, asked.a), _side(asked, asked.b)
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
        series = []
        for i, name in enumerate(names[title]):
            mine = [one for one in found if one.of.name == name]
            of = {one.label: getattr(one, column) for one in mine}
            known = {label: x for label, x in of.items() if x.value == x.value}
            if known and not all(one.identical for one in mine):
                color = SPEED_COLORS.get(name, style.look(i).color)
                series.append(Series(name, style.look(i)._replace(color=color), known))
        if series:
            drawn.append((title, column, none, series))
    if not drawn:
        raise BadInputError(f"{a} and {b} are identical, and no speeds were measured")
    most = max(len(one.of) for *_, series in drawn for one in series)
    figure, axes = style.panels(len(drawn), height=0.8 + 0.24 * most, columns=2)
    for area, (title, column, none, series) in zip(axes, drawn, strict=True):
        limits = (0.0, 1.0) if column == "improvement" else None
        ratio = column == "ratio"
        _draw_forest(area, series, neutral=none, ratio=ratio, limits=limits)
        area.set_xlabel(title)
    style.legend(figure)
    return figure


def _side(asked: Question, value: object) -> str:
    """The short name of a side: `ppo` and `trpo`, but `n=1` and `n=2`."""
    return str(value) if isinstance(value, str) else f"{asked.key.split('.')[-1]}={value}"


def _ranges(found: list[Comparison]) -> list[str]:
    """Sentences about the ranges of scaled differences, and about tasks that have none."""
    scores = [one for one in found if one.of.name == SCORE and one.label != OVERALL]
    known = [
        sentences.of_line(one.label, "{:.4g} to {:.4g}".format(*one.range))
        for one in scores
        if one.range
    ]
    texts = (
        [f"Range, from the start to the better side's mean: {'; '.join(known)}."] if known else []
    )
    none = [one.label for one in scores if not one.range and one.label]
    if none:
        texts.append(
            f"No range, so not in the overall final score: {listed(none)}; the returns of neither "
            "side rose from the start."
        )
    return texts


def _verdict(one: Comparison, asked: Question, kind: str, *, identical: bool) -> str:
    a, b = _side(asked, asked.a), _side(asked, asked.b)
    if identical:
        return f"{a} and {b} are identical in every run."
    where = f" over {len(one.tasks)} {kind}" if len(one.tasks) > 1 else ""
    of_score = one.of.name == SCORE
    interval, none = (one.difference, 0.0) if of_score else (one.ratio, 1.0)
    text = f"{b} - {a} = {interval}" if of_score else f"{b} / {a} = {interval}"
    if of_score and len(one.tasks) > 1:
        interval = one.scaled
        text = f"{b} - {a} = {interval} of a task's range"
    if interval.value != interval.value:
        text, interval = "no number for all tasks", interval._replace(low=none, high=none)
    if interval.low != interval.low:
        return f"{text}{where}; one run a side says nothing about chance."
    better = (interval.value > none) == one.of.higher
    shown = f"{b} is {'better' if better else 'worse'}"
    if interval.low <= none <= interval.high:
        shown = "no difference is shown"
    chance = f"P(a run of {b} is better) = {one.improvement}"
    return f"{text}{where}; {shown}; {chance}."


REACH = 1.5  # how far beyond the estimates a bar is drawn, in widths of their range
HEADROOM = 0.06


class Series(NamedTuple):
    """Estimates of one quantity, by the label of their row."""

    label: str
    look: style.Look
    of: Mapping[str, Interval]


def _draw_forest(
    axes: style.Axes,
    series: Sequence[Series],
    *,
    neutral: float,
    ratio: bool = False,
    limits: tuple[float, float] | None = None,
) -> None:
    """Draws a row for each label, from the top, with a marker and a bar for each series.

    Bars that reach far beyond all estimates are cut, and end in an arrow.
    """
    rows = list(dict.fromkeys(label for one in series for label in one.of))
    found = [interval for one in series for interval in one.of.values()]
    low, high = limits or _limits(found, neutral, ratio=ratio)
    for number, one in enumerate(series):
        shift = 0.22 * (number - (len(series) - 1) / 2)
        for row, label in enumerate(rows):
            if label in one.of:
                y, look, interval = row + shift, one.look, one.of[label]
                axes.plot(interval.value, y, look.marker, color=look.color, zorder=3, clip_on=False)
                if math.isnan(interval.low):
                    continue
                ends = [min(max(end, low), high) for end in interval[1:]]
                axes.plot(ends, [y, y], color=look.color, lw=1.1, zorder=2, solid_capstyle="butt")
                for end, wanted, arrow in zip(ends, interval[1:], "<>", strict=True):
                    marker = arrow if end != wanted else "|"
                    cap: dict[str, Any] = {"marker": marker, "clip_on": False, "markersize": 4}
                    axes.plot(end, y, color=look.color, zorder=3, **cap)
        name = one.label if len(series) > 1 else "_nolegend_"
        axes.plot([], [], one.look.marker, color=one.look.color, label=name)
    axes.axvline(neutral, color=style.IDEAL_GREY, linestyle="--", zorder=1)
    if rows[-1] == "overall" and len(rows) > 1:
        axes.axhline(len(rows) - 1.5, color=style.IDEAL_GREY, linewidth=0.5)
    if ratio:
        axes.set_xscale("log")
        plain_ticks(axes.xaxis, low, high)
    axes.set_xlim(low, high)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _limits(found: Sequence[Interval], neutral: float, *, ratio: bool) -> tuple[float, float]:
    """The axis: all estimates, the neutral value, and their bars as far as `REACH` allows."""
    place, back = (math.log, math.exp) if ratio else (float, float)
    values = [place(x.value) for x in found] + [place(neutral)]
    lows = [place(x.low) for x in found if x.low == x.low and (x.low > 0 or not ratio)]
    highs = [place(x.high) for x in found if x.high == x.high]
    low, high = min(values), max(values)
    span = high - low or max(abs(high), 1.0) * 0.1
    low = max(min([low, *lows]), low - REACH * span)
    high = min(max([high, *highs]), high + REACH * span)
    margin = HEADROOM * (high - low)
    return back(low - margin), back(high + margin)


def plain_ticks(axis: Axis, low: float, high: float) -> None:
    """Sets a few round ticks, such as 0.5, 1 and 2, on a logarithmic axis from `low` to `high`."""
    from matplotlib.ticker import MaxNLocator, NullFormatter

    if high / low < 4:
        ticks = list(MaxNLocator(4).tick_values(low, high))
    else:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
        if high / low > 60:
            ticks = ticks[::3]
    inside = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(inside, [f"{tick:g}" for tick in inside])
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)


if __name__ == "__main__":
    sys.exit(main())
