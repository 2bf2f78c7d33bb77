"""Draws the policy lag of the rollouts, and the speed and return that come with it.

The left panel shows the distribution of the lag, averaged over an iteration's rollouts, where it
varies. The other panels show, for each task and value of --by, environment steps per second and the
final return (the evaluation at the end where all runs have one, else the mean return in training
over the last tenth of the steps); small dots are seeds.
Values of --by with which the runs learnt the same share one point of the return. The table
compares an iteration's time with the longer of collecting and learning: the ratio is 1 for perfect
overlap, and 2 for lock-step where collecting and learning take the same time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, style
from walle.analysis.measuring import groups, scores, stats, wall_clock
from walle.analysis.runs import BadInputError, Scalar, Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import joined, listed

MAX_LAG = "sampler.max_lag"
MODES: dict[Scalar, str] = {0: "0, lock-step", 1: "1, overlapped", "null": "null, free-running"}
SPEED = "environment steps per second"
Lags = list[tuple[groups.Cell, stats.FloatArray]]  # the lag in each iteration of all runs of a cell
# A quantity of a cell: its interval, and the number of each run.
Measured = tuple[groups.Cell, stats.Interval, stats.FloatArray]


def study(sweep: Sweep, *, by: str | None = None, warmup: int = 1) -> cli.Study:
    """Distribution of the lag, steps per second and final return for each value of `by`.

    By default `by` is `sampler.max_lag` where it varies, else what varies, see `axis_of`. A lag
    that is the same in all iterations is no distribution: it has a sentence and no panel.
    """
    default = MAX_LAG if MAX_LAG in sweep.varying else groups.axis_of(sweep)
    by = groups.resolve_key(sweep, by) if by else default
    frame = wall_clock.iterations_after_warmup(sweep, warmup)
    if "lag_mean" not in frame or not frame["lag_mean"].notna().any():
        raise BadInputError("no run has a value in the column lag_mean")
    cells = groups.measure(sweep, groups.column_per_run(frame, "lag_mean"), by)
    lags = [(cell, _values(frame, cell, "lag_mean")) for cell in cells]
    rates, steps = [], wall_clock.unit_of(sweep).steps
    if "env_steps" in frame:
        for cell in wall_clock.measure_seconds(sweep, frame, "iteration_s", by):
            rate = stats.Interval(*(steps * x for x in cell.rate()))
            rates.append((cell, rate, steps / cell.per_run))
    overlap = groups.measure(sweep, _over_longer(sweep, frame), by)
    longer = [(cell, cell.interval(positive=True), cell.per_run) for cell in overlap]
    finals, seen, source = _finals(sweep, frame, by)
    figure = _figure(sweep, by, lags, {SPEED: rates, "final return": seen})
    columns = {"env_steps_per_s": rates, "iteration_over_longer": longer, "final_return": finals}
    texts, rows = sentences.sample(warmup, cells), []
    constant: dict[float, dict[str, None]] = {}
    for cell, values in lags:
        if np.ptp(values) == 0:
            constant.setdefault(float(values[0]), {})[f"{by}={cell.by}"] = None
        row = {
            "line": cell.line,
            by: cell.by,
            "repeats": cell.repeats,
            "lag_mean": values.mean(),
            "lag_median": np.median(values),
            "lag_p95": np.quantile(values, 0.95),
            "lag_max": _values(frame, cell, "lag_max" if "lag_max" in frame else "lag_mean").max(),
        }
        for name, measured in columns.items():
            intervals = {other.key: interval for other, interval, _ in measured}
            row |= intervals.get(cell.key, stats.Interval(math.nan)).columns(name)
        rows.append(row)
    for lag, where in constant.items():
        texts.append(f"The lag is {lag:g} in every iteration at {', '.join(where)}.")
    for line, group in groups.lines(overlap).items():
        ratios = [f"{cell.interval(positive=True)} at {by}={cell.by}" for cell in group]
        text = "Divided by the longer of collecting and learning, the time of an iteration is"
        texts.append(sentences.for_line(line, f"{text} {', '.join(ratios)}."))
    texts.append(f"Final return: {source}." if finals else "No episode has ended, so no return.")
    shared = [str(cell.by) for cell, *_ in seen if str(cell.by).endswith("identical")]
    if same := list(dict.fromkeys(shared)):
        texts.append(f"Returns are drawn once where all runs learnt the same: {listed(same)}.")
    texts += sentences.machine(sweep) + sentences.also_differ(sweep, by)
    return cli.Study(figure, sentences.without_lone_line(pd.DataFrame(rows)), texts)


main = cli.command("lag", study, __doc__)


def _values(frame: pd.DataFrame, cell: groups.Cell, column: str) -> stats.FloatArray:
    """The values of a column of all runs of a cell."""
    return frame.loc[frame["run"].isin(cell.names), column].dropna().to_numpy(float)


def _as_one(same: list[groups.Cell], every: list[groups.Cell]) -> list[groups.Cell]:
    """One cell of each line for all values of the axis, or of each value for all lines."""
    values, of_line = list(dict.fromkeys(cell.by for cell in same)), groups.lines(same)
    text = labels.identical_label([str(value) for value in values])
    if len({cell.line for cell in every if cell.by in values}) == len(of_line) > 1:
        return [replace(same[0], line=labels.ALL_LINES, by=text if len(values) > 1 else values[0])]
    return [
        replace(group[0], by=text) if len(group) == len(values) > 1 else group[0]
        for group in of_line.values()
    ]


def _finals(
    sweep: Sweep, frame: pd.DataFrame, by: str
) -> tuple[list[Measured], list[Measured], str]:
    """The final return of each cell; with identical cells of a line as one; what they are."""
    tasks: dict[str, set[str]] = {}
    for run in sweep.learning:
        tasks.setdefault(labels.task_of(run), set()).add(run.name)
    found = scores.final_scores(sweep, tasks).values()
    cells = groups.measure(sweep, {r: np.array([x]) for s in found for r, x in s.of.items()}, by)
    once = []
    for of_line in labels.panels(sweep, cells).values():
        every = [cell for group in of_line.values() for cell in group]
        runs_of = {str(i): cell.names for i, cell in enumerate(every)}
        for keys in labels.learnt_alike(sweep, frame, ["env_steps", "return_mean"], runs_of):
            once += _as_one([every[int(key)] for key in keys], every)
    ends = {run.name: scores.possible_returns([run]) for run in sweep.runs}

    def measured(drawn: list[groups.Cell]) -> list[Measured]:
        return [(c, c.interval().within(*ends[c.names[0]]), c.per_run) for c in drawn]

    return measured(cells), measured(once), "; ".join(dict.fromkeys(s.source for s in found))


def _over_longer(sweep: Sweep, frame: pd.DataFrame) -> dict[str, stats.FloatArray]:
    """The time of an iteration of each run over the longer of its means of collecting and learning.

    Of collecting the slowest sampler's time counts, see `seconds_per_run`. Runs without values of
    `collect_s` or of `learn_s` are left out.
    """
    if not {"collect_s", "learn_s", "env_steps"} <= set(frame):
        return {}
    seconds = wall_clock.seconds_per_run(sweep, frame, "iteration_s")
    learn = wall_clock.seconds_per_run(sweep, frame, "learn_s")
    collect = wall_clock.seconds_per_run(sweep, frame, "collect_s", busy=True)
    return {
        run: values / max(collect[run].mean(), learn[run].mean())
        for run, values in seconds.items()
        if run in collect and run in learn
    }


def _figure(
    sweep: Sweep, by: str, lags: Lags, measured: Mapping[str, list[Measured]]
) -> style.Figure:
    """The distribution of the lag where it varies; then each quantity in a panel for each task."""
    cells, varying = [cell for cell, _ in lags], [lag for lag in lags if np.ptp(lag[1]) > 0]
    tasks = labels.panels(sweep, cells)
    names = list(dict.fromkeys(name for mine in tasks.values() for name in mine))
    looks = {  # one for each line, or for each value of the axis where there is one line
        (name, value): style.look(j if len(names) == 1 else i)
        for i, name in enumerate(names)
        for j, value in enumerate(dict.fromkeys(cell.by for cell in cells))
    }
    task_of = {run.name: labels.task_of(run) for run in sweep.runs}
    drawn: dict[tuple[str, str], list[Measured]] = {}  # returns of two tasks share no axis
    for label, quantities in measured.items():
        for quantity in quantities:
            drawn.setdefault((label, task_of[quantity[0].names[0]]), []).append(quantity)
    if not (varying or drawn):
        raise BadInputError("nothing to draw: the lag is constant, and no episode has ended")
    columns = len(tasks) if 1 < len(tasks) <= labels.PANELS and not varying else labels.PANELS
    figure, axes = style.panels(len(drawn) + bool(varying), height=2.6, columns=columns)
    for cell, values in varying:
        look = looks[labels.without_task(cell.line, task_of[cell.names[0]]), cell.by]
        share = 100 * np.arange(values.size + 1) / values.size
        label = f"{joined((MODES.get(cell.by, str(cell.by)), cell.line))} ({cell.repeats})"
        line = {"color": look.color, "linestyle": look.dash, "label": label}
        axes[0].step([0, *np.sort(values)], share, where="post", **line)
    if varying:
        reach = max(1.0, *(values.max() for _, values in lags))
        axes[0].set(xlim=(-0.05 * reach, 1.05 * reach), ylim=(0, 103))
        axes[0].set_xlabel("mean lag (policy versions)")
        axes[0].set_ylabel("iterations with at most this lag (%)")
    of_name = {name: look for (name, _), look in looks.items()}
    of_name[labels.ALL_LINES] = style.look(0)._replace(color=style.PAPER_GREY)
    for area, ((label, task), mine) in zip(axes[bool(varying) :], drawn.items(), strict=True):
        at = {value: float(i) for i, value in enumerate(dict.fromkeys(c.by for c, *_ in mine))}
        shown = list(dict.fromkeys(labels.without_task(cell.line, task) for cell, *_ in mine))
        for cell, interval, per_run in mine:  # lines stand beside each other
            name = labels.without_task(cell.line, task)
            x = labels.aside(at, shown.index(name), len(shown))[cell.by]
            look, dots = looks.get((name, cell.by), of_name[name]), per_run if cell.runs > 1 else ()
            style.point(area, x, interval, look, hollow=cell.oversubscribed, dots=dots)
        for name in shown if len(names) > 1 else ():
            area.plot([], [], of_name[name].marker, color=of_name[name].color, label=name)
        area.set_xticks(range(len(at)), [str(value) for value in at])
        area.set_xlim(-0.5, len(at) - 0.5)
        area.set(
            xlabel=style.AXIS_NAMES.get(by, by), ylabel=label, title=task if len(tasks) > 1 else ""
        )
        if label == SPEED:
            style.from_zero(area)
    if any(cell.oversubscribed for mine in drawn.values() for cell, *_ in mine):
        style.explain_hollow(axes[-1])
    style.legend(figure)
    return figure


if __name__ == "__main__":
    raise SystemExit(main())
