"""Compares two sweeps, or two values of a key: returns, time to a return and speeds.

    walle compare SWEEP_A SWEEP_B
    walle compare SWEEP --by algo.name=ppo,trpo

Differences (B - A) and ratios (B / A) have 95% intervals, per task and overall; beside them stands
the probability that a run of B is better than one of A. Final scores are evaluations at the end, if
all runs have one, else returns in training over the same steps. Runs of the same seed are paired if
algorithm, network and environment are the same. Like speedups, speeds are compared within blocks if
the launcher measured in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from textwrap import fill
from typing import Any

import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.measuring import comparisons, groups, scores, stats, wall_clock
from walle.analysis.measuring.comparisons import OVERALL, SCORE, SPEEDS, Comparison, Quantity
from walle.analysis.runs import BadInputError, Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import counted, listed

COLORS = {SPEEDS[f"{part}_s"]: style.section(part)[0] for part in ("collect", "learn")}
NEUTRAL = {"difference": 0.0, "scaled": 0.0, "improvement": 0.5, "ratio": 1.0}
TIME = "seconds to return"
REACHED = 0.9
REACH = 1.5  # how far a bar may reach beyond the estimates, in multiples of their range
HEADROOM = 0.06
FLAGS = {
    "--by KEY[=A,B]": "the key, and two of its values (default: the two sweeps, or what varies)",
    "--returns": {
        "choices": ["evaluations", "training"],
        "help": "where final scores come from (default: evaluations, where all runs have them)",
    },
    "--time-to-return R": {
        "type": float,
        "help": "compare the time until the return in training >= R (default: one all runs reach)",
    },
}
Tasks = dict[str, tuple[set[str], set[str]]]  # the runs of A and of B, with any number of workers
Intervals = Mapping[str, stats.Interval]  # by the label of the row


def study(
    sweep: Sweep,
    *,
    by: str | None = None,
    warmup: int = 1,
    returns: str | None = None,
    time_to_return: float | None = None,
) -> cli.Study:
    """Compares two sides of the sweep."""
    readable = comparisons.with_rows(sweep)
    question = comparisons.question(readable, by)
    chosen = comparisons.restricted(readable, question)
    pairings = comparisons.match(chosen, question)
    tasks: Tasks = {}
    for pairing in pairings:
        runs_a, runs_b = tasks.setdefault(pairing.learning, (set(), set()))
        runs_a.update(pairing.a.values())
        runs_b.update(pairing.b.values())
    learning = {run.name for run in chosen.scored}
    tasks = {task: (a & learning or a, b & learning or b) for task, (a, b) in tasks.items()}
    finals, starts, texts = _scores(chosen, tasks, returns)
    times, reached = _times(chosen, tasks, time_to_return)
    results = comparisons.compare(finals, pairings, blocks=False, starts=starts)
    results += comparisons.compare(times, pairings, blocks=question.key != "sweep")
    results += comparisons.compare_speeds(chosen, pairings, question, warmup=warmup)
    for note in chosen.notes:
        sweep.note(note)
    if not results:
        raise BadInputError("nothing to compare: no run has a return, or iterations that count")
    by_name: dict[str, list[Comparison]] = {}
    for comparison in results:
        by_name.setdefault(comparison.of.name, []).append(comparison)
    key = question.key
    a, b = (groups.value_text(key, side, "=") for side in (question.a, question.b))
    size_a, size_b = (len(set().union(*side)) for side in zip(*tasks.values(), strict=True))
    paired = dict.fromkeys(c.of.name for c in results if all(t.paired for t in c.tasks))
    of_tasks = [c for c in by_name.get(SCORE, []) if c.label != OVERALL]
    known = {c.label: "{:.4g} to {:.4g}".format(*c.range) for c in of_tasks if c.range}
    ranges = []
    if known:
        parts = "; ".join(sentences.of_line(label, text) for label, text in known.items())
        ranges.append(f"Range, from the start to the better side's mean: {parts}.")
    if without := [c.label for c in of_tasks if not c.range and c.label]:
        ranges.append(
            f"No range, so not in the overall final score: {listed(without)}; the returns of "
            "neither side rose from the start."
        )
    texts = [
        f"A is {key}={question.a} ({counted(size_a, 'run')}), B is {key}={question.b} "
        f"({counted(size_b, 'run')}).",
        *(_verdict(of_quantity, pairings, a, b) for of_quantity in by_name.values()),
        *texts,
        *ranges,
        *reached,
        f"Paired by seed: {listed(list(paired))}."
        if paired
        else "Runs are independent: no seeds are paired.",
        *sentences.also_differ(chosen, key),
    ]
    rows = []
    for comparison in results:
        both, means = comparison.tasks, comparison.centres or (math.nan, math.nan)
        if comparison.label != OVERALL:
            means = comparison.centres or (both[0].a.mean(), both[0].b.mean())
        runs = f"{sum(x.a.size for x in both)} and {sum(x.b.size for x in both)}"
        rows.append(
            {
                "of": comparison.of.name,
                "line": comparison.label,
                "runs": f"{runs}, paired" if all(x.paired for x in both) else runs,
                f"{key}={question.a}": means[0],
                f"{key}={question.b}": means[1],
                **comparison.difference.columns("difference"),
                **comparison.scaled.columns("scaled_difference"),
                **comparison.ratio.columns("ratio"),
                **comparison.improvement.columns("p_better"),
            }
        )
    table = sentences.without_lone_line(pd.DataFrame(rows))
    notes = [sentences.warmup_sentence(warmup)]
    return cli.Study(_figure(by_name, a, b), table, texts, notes=notes)


main = cli.command("compare", study, __doc__, FLAGS)


def _scores(
    sweep: Sweep, tasks: Tasks, returns: str | None
) -> tuple[Quantity, dict[str, float], list[str]]:
    """The final scores, the return at the start of each run, and sentences."""
    both = {task: a | b for task, (a, b) in tasks.items()}
    chosen = None if returns is None else returns == "evaluations"
    finals = scores.final_scores(sweep, both, evaluations=chosen)
    per_run = {run: score for of_task in finals.values() for run, score in of_task.of.items()}
    texts = [
        sentences.for_line(task, f"final score: {found.source}.")
        for task, found in finals.items()
        if all(side & found.of.keys() for side in tasks[task])
    ]
    return Quantity(SCORE, per_run, seeded=True, learned=True), scores.starts(sweep), texts


def _times(sweep: Sweep, tasks: Tasks, given: float | None) -> tuple[Quantity, list[str]]:
    """Seconds to a return on each task: `given`, or 90% of the rise that every run reached."""
    iterations = scores.with_training(sweep, wall_clock.clock(sweep))
    returns = groups.column_per_run(iterations, scores.TRAINING)
    per_run: dict[str, float] = {}
    targets, short, without = [], [], []
    for task, (a, b) in tasks.items():
        runs = a | b
        if not returns.keys() >= runs:
            text = "too few episodes of a run have ended for returns in training"
            without.append(sentences.of_line(task, text))
            continue
        rows = iterations[iterations["run"].isin(runs)]
        best = float(rows.groupby("run", observed=True)[scores.TRAINING].max().min())
        start = sum(float(returns[run][0]) for run in runs) / len(runs)
        if given is None and best <= start:
            text = "a run's returns never rose above the mean start"
            without.append(sentences.of_line(task, text))
            continue
        target = start + REACHED * (best - start) if given is None else given
        reached = scores.first_reached(rows, target)
        if len(reached) < len(runs):
            short.append(sentences.of_line(task, f"{len(reached)} of {len(runs)} runs"))
            continue
        targets.append(sentences.of_line(task, f"{target:.4g}"))
        per_run |= {run: float(seconds[0]) for run, seconds in reached.items()}
    texts = []
    if targets:
        why = "" if given is not None else ", 90% of the way that every run went"
        text = f"{TIME.capitalize()}, without compiling: until the return in training is"
        texts.append(f"{text} {'; '.join(targets)}{why}.")
    if short:
        texts.append(f"Not every run reached return {given:g}, so no time: {'; '.join(short)}.")
    if without:
        texts.append(f"No {TIME}: {'; '.join(without)}.")
    return Quantity(TIME, per_run, higher=False, seeded=True), texts


def _verdict(
    of_quantity: list[Comparison], pairings: list[comparisons.Pairing], a: str, b: str
) -> str:
    last = of_quantity[-1]  # `overall` if there are several
    name, several = last.of.name.capitalize(), last.label == OVERALL
    if all(comparison.identical for comparison in of_quantity):
        return f"{name}: {a} and {b} are identical in every run."
    labels = {comparison.label for comparison in of_quantity[:-1]}
    if last.of.seeded and not last.of.learned:  # combined over numbers of workers first
        labels = {pairing.learning for pairing in pairings}
    noun = "task" if labels <= {pairing.task for pairing in pairings} else "group"
    where = f" over {counted(len(last.tasks), noun)}" if several else ""
    interval, neutral, text = last.ratio, 1.0, f"{name}: {b} / {a} = {last.ratio}"
    if last.of.name == SCORE:
        interval, neutral = last.scaled if several else last.difference, 0.0
        text = f"{name}: {b} - {a} = {interval}" + " of a task's range" * several
    chance = f"P(a run of {b} is better) = {last.improvement}."
    if math.isnan(interval.value):
        return f"{name}: no number for all tasks; {chance}"
    if math.isnan(interval.low):
        reason = "no interval, as a run is compared with several"
        few = "too few runs for an interval"
        return f"{text}{where}; {reason if several and comparisons.repeated(pairings) else few}."
    better = (interval.value > neutral) == last.of.higher
    shown = f"{b} is {'better' if better else 'worse'}"
    if interval.low <= neutral <= interval.high:
        shown = "no difference is shown"
    return f"{text}{where}; {shown}; {chance}"


def _figure(by_name: Mapping[str, list[Comparison]], a: str, b: str) -> style.Figure:
    several = len(by_name.get(SCORE, [])) > 1
    score = "scaled" if several else "difference"
    panels = {  # the field of a comparison and the quantities that each panel shows
        f"final score, {b} - {a}" + ", of a task's range" * several: (score, [SCORE]),
        f"P(a run of {b} scores better)": ("improvement", [SCORE]),
        f"{TIME}, {b} / {a}": ("ratio", [TIME]),
        f"speed, {b} / {a}": ("ratio", list(SPEEDS.values())),
    }
    drawn = []
    for title, (field, names) in panels.items():
        series = {}
        for i, name in enumerate(names):
            mine = by_name.get(name, [])
            intervals = {comparison.label: getattr(comparison, field) for comparison in mine}
            known = {label: x for label, x in intervals.items() if not math.isnan(x.value)}
            if known and not all(comparison.identical for comparison in mine):
                color = COLORS.get(name, style.look(i).color)
                series[name] = style.look(i)._replace(color=color), known
        if series:
            drawn.append((title, field, series))
    if not drawn:
        raise BadInputError(f"{a} and {b} are identical, and no speeds were measured")
    most = max(len(known) for *_, series in drawn for _, known in series.values())
    figure, axes = style.panels(len(drawn), height=max(1.6, 0.8 + 0.24 * most), columns=2)
    for area, (title, field, series) in zip(axes, drawn, strict=True):
        draw_forest(area, series, field)
        area.set_xlabel(fill(title, 40))
    style.legend(figure)
    return figure


def draw_forest(
    axes: style.Axes, series: Mapping[str, tuple[style.Look, Intervals]], field: str
) -> None:
    """Draws a row for each label, from the top, with a marker and a bar for each series.

    Bars that reach far beyond all estimates are cut, and end in an arrow. A ratio has a logarithmic
    axis with a few round ticks, such as 0.5, 1 and 2.
    """
    from matplotlib.ticker import MaxNLocator

    rows = list(dict.fromkeys(label for _, of in series.values() for label in of))
    low, high = _limits([x for _, of in series.values() for x in of.values()], field)
    for number, (name, (look, of)) in enumerate(series.items()):
        shift = 0.22 * (number - (len(series) - 1) / 2)
        for label, interval in of.items():
            y = rows.index(label) + shift
            axes.plot(interval.value, y, look.marker, color=look.color, zorder=3, clip_on=False)
            if math.isnan(interval.low):
                continue
            ends = [min(max(end, low), high) for end in interval[1:]]
            axes.plot(ends, [y, y], color=look.color, lw=1.1, zorder=2, solid_capstyle="butt")
            for end, wanted, arrow in zip(ends, interval[1:], "<>", strict=True):
                marker = arrow if end != wanted else "|"
                cap: dict[str, Any] = {"marker": marker, "clip_on": False, "markersize": 4}
                axes.plot(end, y, color=look.color, zorder=3, **cap)
        if len(series) > 1:
            axes.plot([], [], look.marker, color=look.color, label=name)
    axes.axvline(NEUTRAL[field], color=style.IDEAL_GREY, linestyle="--", zorder=1)
    if rows[-1] == OVERALL and len(rows) > 1:
        axes.axhline(len(rows) - 1.5, color=style.IDEAL_GREY, linewidth=0.5)
    if field == "ratio":
        ticks = list(MaxNLocator(4).tick_values(low, high))
        if high / low >= 4:
            decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            steps = (1,) if high / low > 60 else (1, 2, 5)
            ticks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        axes.set_xscale("log")
        axes.set_xticks(inside, [f"{tick:g}" for tick in inside])
        axes.minorticks_off()
    axes.set_xlim(low, high)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _limits(intervals: list[stats.Interval], field: str) -> tuple[float, float]:
    """The axis: all estimates, the neutral value, and their bars as far as `REACH` allows."""
    if field == "improvement":
        return 0.0, 1.0
    ratio = field == "ratio"
    scale, back = (math.log, math.exp) if ratio else (float, float)
    values = [scale(x.value) for x in intervals] + [scale(NEUTRAL[field])]
    lows = [scale(x.low) for x in intervals if x.low == x.low and (x.low > 0 or not ratio)]
    highs = [scale(x.high) for x in intervals if x.high == x.high]
    low, high = min(values), max(values)
    span = high - low or max(abs(high), 1.0) * 0.1
    low = max(min([low, *lows]), low - REACH * span)
    high = min(max([high, *highs]), high + REACH * span)
    margin = HEADROOM * (high - low or span)
    return back(low - margin), back(high + margin)


if __name__ == "__main__":
    raise SystemExit(main())
