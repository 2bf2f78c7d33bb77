"""Draws the policy lag of the rollouts, and the speed and return that come with it.

The left panel shows the distribution of the lag, averaged over an iteration's rollouts, where it
varies. The other panels show, for each task and value of --by, environment steps per second and the
final return (the mean of return_mean over the last tenth of the steps); small dots are seeds.
Values of --by with which the runs learnt the same share one point of the return. The table
compares an iteration's time with the longer of collecting and learning: the ratio is 1 for perfect
overlap, and 2 for lock-step where collecting and learning take the same time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, style
from walle.analysis.loading.directories import BadInputError, Scalar
from walle.analysis.measuring.groups import (
    Cell,
    axis_of,
    column_per_run,
    learnt,
    lines,
    measure,
    resolve_key,
)
from walle.analysis.measuring.scores import final_returns, possible_returns
from walle.analysis.measuring.stats import FloatArray, Interval
from walle.analysis.measuring.wall_clock import (
    iterations_after_warmup,
    measure_seconds,
    seconds_per_run,
    unit_of,
)
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, sentences
from walle.analysis.writing.format import joined, listed

MAX_LAG = "sampler.max_lag"
NOTHING = Interval(math.nan)
MODES: dict[Scalar, str] = {0: "0, lock-step", 1: "1, overlapped", "null": "null, free-running"}
Looks = dict[tuple[str, Scalar], style.Look]  # by the line without its task, and the axis' value


class Measured(NamedTuple):
    """A quantity of a cell: its interval, and the number of each run."""

    cell: Cell
    interval: Interval
    each: FloatArray


def study(sweep: Sweep, *, by: str | None = None, warmup: int = 1) -> cli.Study:
    """Distribution of the lag, steps per second and final return for each value of `by`.

    By default `by` is `sampler.max_lag` where it varies, else what varies, see `axis_of`. A lag
    that is the same in all iterations is no distribution: it has a sentence and no panel.
    """
    default = MAX_LAG if MAX_LAG in sweep.varying else axis_of(sweep)
    by = resolve_key(sweep, by) if by else default
    frame = iterations_after_warmup(sweep, warmup)
    if "lag_mean" not in frame or not frame["lag_mean"].notna().any():
        raise BadInputError("no run has a value in the column lag_mean")
    lag = measure(sweep, column_per_run(frame, "lag_mean"), by)
    rates, steps = [], unit_of(sweep).steps
    if "env_steps" in frame:
        for cell in measure_seconds(sweep, frame, "iteration_s", by):
            rate = Interval(*(steps * x for x in cell.rate()))
            rates.append(Measured(cell, rate, steps / cell.per_run))
    overlap = measure(sweep, over_longer(sweep, frame), by)
    longer = [Measured(cell, cell.interval(positive=True), cell.per_run) for cell in overlap]
    finals, seen = _finals(sweep, frame, by)
    varies = [cell for cell in lag if np.ptp(of_cell(frame, cell, "lag_mean")) > 0]
    if not (varies or rates or seen):
        raise BadInputError("nothing to draw: the lag is constant, and no episode has ended")
    figure = _figure(sweep, frame, by, lag=lag, varies=varies, rates=rates, finals=seen)
    texts = sentences.sample(warmup, lag)
    constant: dict[float, list[str]] = {}
    for cell in lag:
        if cell.key not in {other.key for other in varies}:
            value = float(of_cell(frame, cell, "lag_mean")[0])
            constant.setdefault(value, []).append(f"{by}={cell.by}")
    for value, where in constant.items():
        places = ", ".join(dict.fromkeys(where))
        texts.append(f"The lag is {value:g} in every iteration at {places}.")
    for line, group in lines(overlap).items():
        ratios = [f"{cell.interval(positive=True)} at {by}={cell.by}" for cell in group]
        text = "Divided by the longer of collecting and learning, the time of an iteration is"
        texts.append(sentences.for_line(line, f"{text} {', '.join(ratios)}."))
    if not finals:
        texts.append("No episode has ended, so no return is drawn.")
    shared = [str(cell.by) for cell, *_ in seen if str(cell.by).endswith("identical")]
    if same := list(dict.fromkeys(shared)):
        texts.append(f"Returns are drawn once where all runs learnt the same: {listed(same)}.")
    texts += sentences.machine(sweep) + sentences.also_differ(sweep, by)
    columns = {"env_steps_per_s": rates, "iteration_over_longer": longer, "final_return": finals}
    return cli.Study(figure, _table(frame, lag, columns, by), texts)


main = cli.command("lag", study, __doc__)


def _as_one(same: list[Cell], every: list[Cell]) -> list[Cell]:
    """One cell of each line for all values of the axis, or of each value for all lines."""
    values, of_line = list(dict.fromkeys(cell.by for cell in same)), lines(same)
    text = labels.identical_label([str(value) for value in values])
    if len({cell.line for cell in every if cell.by in values}) == len(of_line) > 1:
        return [replace(same[0], line=labels.ALL_LINES, by=text if len(values) > 1 else values[0])]
    return [
        replace(group[0], by=text) if len(group) == len(values) > 1 else group[0]
        for group in of_line.values()
    ]


def _finals(sweep: Sweep, frame: pd.DataFrame, by: str) -> tuple[list[Measured], list[Measured]]:
    """The final return of each cell; and the same with identical cells of a line as one."""
    ends = {run.name: possible_returns([run]) for run in sweep.runs}

    def shown(cell: Cell) -> Measured:
        interval = cell.interval().within(*ends[cell.names[0]])
        return Measured(cell, interval, cell.per_run)

    rows = learnt(frame, "return_mean")
    seeds = {run.name: run.config.get("seed", "") for run in sweep.runs}
    cells = measure(sweep, final_returns(frame), by)
    tasks = labels.panels(sweep, cells)
    series = {
        f"{cell.line}|{cell.by}": {seeds[run]: rows[run] for run in cell.names} for cell in cells
    }
    once = []
    for task in tasks.values():
        mine = {f"{cell.line}|{cell.by}": cell for group in task.values() for cell in group}
        for names in labels.identical_groups({name: series[name] for name in mine}):
            once += _as_one([mine[name] for name in names], list(mine.values()))
    return [shown(cell) for cell in cells], [shown(cell) for cell in once]


def over_longer(sweep: Sweep, iterations: pd.DataFrame) -> dict[str, FloatArray]:
    """The time of an iteration of each run over the longer of its means of collecting and learning.

    Of collecting the slowest sampler's time counts, see `seconds_per_run`. Runs without values of
    `collect_s` or of `learn_s` are left out.
    """
    if not {"collect_s", "learn_s", "env_steps"} <= set(iterations):
        return {}
    seconds, learn = (
        seconds_per_run(sweep, iterations, name) for name in ("iteration_s", "learn_s")
    )
    collect = seconds_per_run(sweep, iterations, "collect_s", busy=True)
    return {
        run: values / max(collect[run].mean(), learn[run].mean())
        for run, values in seconds.items()
        if run in collect and run in learn
    }


def _table(
    frame: pd.DataFrame, lag: list[Cell], columns: Mapping[str, list[Measured]], by: str
) -> pd.DataFrame:
    rows = []
    for cell in lag:
        lags = of_cell(frame, cell, "lag_mean")
        most = of_cell(frame, cell, "lag_max") if "lag_max" in frame else lags
        row = {
            "line": cell.line,
            by: cell.by,
            "repeats": cell.repeats,
            "lag_mean": lags.mean(),
            "lag_median": np.median(lags),
            "lag_p95": np.quantile(lags, 0.95),
            "lag_max": most.max(),
        }
        for name, measured in columns.items():
            intervals = {one.cell.key: one.interval for one in measured}
            row |= intervals.get(cell.key, NOTHING).columns(name)
        rows.append(row)
    return sentences.without_lone_line(pd.DataFrame(rows))


def _figure(
    sweep: Sweep,
    frame: pd.DataFrame,
    by: str,
    *,
    lag: list[Cell],
    varies: list[Cell],
    rates: list[Measured],
    finals: list[Measured],
) -> style.Figure:
    """The distribution of the lag, then a panel of speeds and one of returns for each task."""
    tasks = labels.panels(sweep, lag)
    names = list(dict.fromkeys(name for mine in tasks.values() for name in mine))
    values = list(dict.fromkeys(cell.by for cell in lag))
    looks = {  # one for each line, or for each value of the axis where there is one line
        (name, value): style.look(j if len(names) == 1 else i)
        for i, name in enumerate(names)
        for j, value in enumerate(values)
    }
    task_of = {run.name: labels.task_of(run) for run in sweep.runs}
    by_task: dict[tuple[str, str], list[Measured]] = {}  # returns of two tasks share no axis
    for kind, measured in (("rate", rates), ("return", finals)):
        for one in measured:
            by_task.setdefault((kind, task_of[one.cell.names[0]]), []).append(one)
    drawn = [(kind, task, mine) for (kind, task), mine in by_task.items()]
    columns = len(tasks) if 1 < len(tasks) <= labels.PANELS and not varies else labels.PANELS
    figure, axes = style.panels(len(drawn) + bool(varies), height=2.6, columns=columns)
    if varies:
        for cell in varies:
            look = looks[labels.without_task(cell.line, task_of[cell.names[0]]), cell.by]
            lags = np.sort(of_cell(frame, cell, "lag_mean"))
            share = 100 * np.arange(1, lags.size + 1) / lags.size
            label = f"{joined((MODES.get(cell.by, str(cell.by)), cell.line))} ({cell.repeats})"
            line = {"color": look.color, "linestyle": look.dash, "label": label}
            axes[0].step([0, *lags], [0, *share], where="post", **line)
        axes[0].set_xlabel("mean lag (policy versions)")
        axes[0].set_ylabel("iterations with at most this lag (%)")
        axes[0].set_ylim(0, 103)
        reach = max(1.0, float(frame["lag_mean"].max()))  # in lock-step all lags are 0
        axes[0].set_xlim(-0.05 * reach, 1.05 * reach)
    for area, (kind, task, mine) in zip(axes[bool(varies) :], drawn, strict=True):
        _draw_cells(area, task, mine, looks, by)
        area.set_title(task if len(tasks) > 1 else "")
        area.set_ylabel("environment steps per second")
        if kind == "rate":
            style.from_zero(area)
        else:
            area.set_ylabel(labels.of_column("iterations", "return_mean"))
    if any(one.cell.oversubscribed for one in (*rates, *finals)):
        style.explain_hollow(axes[-1])
    style.legend(figure)
    return figure


def of_cell(frame: pd.DataFrame, cell: Cell, column: str) -> FloatArray:
    """The values of a column of all runs of a cell."""
    return frame.loc[frame["run"].isin(cell.names), column].dropna().to_numpy(float)


def _draw_cells(
    axes: style.Axes, task: str, measured: list[Measured], looks: Looks, by: str
) -> None:
    """Draws a marker, an interval and the seeds for each cell; lines stand beside each other."""
    values = list(dict.fromkeys(one.cell.by for one in measured))
    names = list(dict.fromkeys(one.cell.line for one in measured))
    of_name = {name: look for (name, _), look in looks.items()}
    of_name[labels.ALL_LINES] = style.look(0)._replace(color=style.PAPER_GREY)
    ticks: dict[Scalar, float] = {value: float(i) for i, value in enumerate(values)}
    for cell, interval, each in measured:
        place = labels.aside(ticks, names.index(cell.line), len(names))[cell.by]
        whole = cell.line == labels.ALL_LINES
        name = cell.line if whole else labels.without_task(cell.line, task)
        look = looks.get((name, cell.by), of_name[name])
        dots = each if cell.runs > 1 else ()
        style.point(axes, place, interval, look, hollow=cell.oversubscribed, dots=dots)
    if len({name for name, _ in looks}) > 1:
        for line in names:
            name = line if line == labels.ALL_LINES else labels.without_task(line, task)
            look = of_name[name]
            axes.plot([], [], look.marker, color=look.color, label=name)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_xlabel(style.axis_name(by))


if __name__ == "__main__":
    sys.exit(main())
