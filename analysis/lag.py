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

import numpy as np
import pandas as pd

from walle.analysis.drawing import lags
from walle.analysis.drawing import tasks as panels
from walle.analysis.drawing.lags import Measured, of_cell
from walle.analysis.loading.directories import BadInputError, listed
from walle.analysis.loading.repeats import identical_groups, identical_label
from walle.analysis.measuring import possible
from walle.analysis.measuring.cells import (
    Cell,
    iterations_after_warmup,
    learnt,
    lines,
    measure,
    measure_column,
)
from walle.analysis.measuring.design import axis_of, resolve_key
from walle.analysis.measuring.scores import final_returns
from walle.analysis.measuring.stats import FloatArray, Interval
from walle.analysis.measuring.times import measure_seconds, seconds_per_run, unit_of
from walle.analysis.runs import Sweep
from walle.analysis.writing import cli, words

MAX_LAG = "sampler.max_lag"
NOTHING = Interval(math.nan)


def study(sweep: Sweep, *, by: str | None = None, warmup: int = 1) -> cli.Study:
    """Distribution of the lag, steps per second and final return for each value of `by`.

    By default `by` is `sampler.max_lag` where it varies, else what varies, see `axis_of`. A lag
    that is the same in all iterations is no distribution: it has a sentence and no panel.
    """
    by = resolve_key(sweep, by) if by else _default(sweep)
    frame = iterations_after_warmup(sweep, warmup)
    if "lag_mean" not in frame or not frame["lag_mean"].notna().any():
        raise BadInputError("no run has a value in the column lag_mean")
    lag = measure_column(sweep, frame, "lag_mean", by)
    rates = _steps_per_s(sweep, frame, by)
    overlap = measure(sweep, over_longer(sweep, frame), by)
    longer = [Measured(cell, cell.interval(positive=True), cell.per_run) for cell in overlap]
    finals, seen = _finals(sweep, frame, by)
    varies = [cell for cell in lag if np.ptp(of_cell(frame, cell, "lag_mean")) > 0]
    if not (varies or rates or seen):
        raise BadInputError("nothing to draw: the lag is constant, and no episode has ended")
    figure = lags.figure(sweep, frame, by, lag=lag, varies=varies, rates=rates, finals=seen)
    sentences = words.sample(warmup, lag) + _constant_sentences(frame, lag, varies, by)
    sentences += _overlap_sentences(overlap, by)
    if not finals:
        sentences.append("No episode has ended, so no return is drawn.")
    if same := list(
        dict.fromkeys(str(cell.by) for cell, *_ in seen if str(cell.by).endswith("identical"))
    ):
        sentences.append(f"Returns are drawn once where all runs learnt the same: {listed(same)}.")
    sentences += words.machine(sweep) + words.also_differ(sweep, by)
    columns = {"env_steps_per_s": rates, "iteration_over_longer": longer, "final_return": finals}
    return cli.Study(figure, _table(frame, lag, columns, by), sentences)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__, by=None).parse_args(argv)
    return cli.run(args, "lag", study, ("by", "warmup"))


def _default(sweep: Sweep) -> str:
    return MAX_LAG if MAX_LAG in sweep.varying else axis_of(sweep)


def _as_one(same: list[Cell], every: list[Cell]) -> list[Cell]:
    """One cell of each line for all values of the axis, or of each value for all lines."""
    values, of_line = list(dict.fromkeys(cell.by for cell in same)), lines(same)
    text = identical_label([str(value) for value in values])
    if len({cell.line for cell in every if cell.by in values}) == len(of_line) > 1:
        return [replace(same[0], line=panels.ALL_LINES, by=text if len(values) > 1 else values[0])]
    return [
        replace(group[0], by=text) if len(group) == len(values) > 1 else group[0]
        for group in of_line.values()
    ]


def _steps_per_s(sweep: Sweep, frame: pd.DataFrame, by: str) -> list[Measured]:
    if "env_steps" not in frame:
        return []
    steps = unit_of(sweep).steps
    cells = measure_seconds(sweep, frame, "iteration_s", by)
    return [
        Measured(cell, Interval(*(steps * x for x in cell.rate())), steps / cell.per_run)
        for cell in cells
    ]


def _finals(sweep: Sweep, frame: pd.DataFrame, by: str) -> tuple[list[Measured], list[Measured]]:
    """The final return of each cell; and the same with identical cells of a line as one."""
    ends = {run.name: possible.of_returns([run]) for run in sweep.runs}

    def shown(cell: Cell) -> Measured:
        interval = cell.interval().within(*ends[cell.names[0]])
        return Measured(cell, interval, cell.per_run)

    rows = learnt(frame, "return_mean")
    seeds = {run.name: run.config.get("seed", "") for run in sweep.runs}
    cells = measure(sweep, final_returns(frame), by)
    tasks = panels.panels(sweep, cells)
    series = {
        f"{cell.line}|{cell.by}": {seeds[run]: rows[run] for run in cell.names} for cell in cells
    }
    once = []
    for task in tasks.values():
        mine = {f"{cell.line}|{cell.by}": cell for group in task.values() for cell in group}
        for names in identical_groups({name: series[name] for name in mine}):
            once += _as_one([mine[name] for name in names], list(mine.values()))
    return [shown(cell) for cell in cells], [shown(cell) for cell in once]


def _constant_sentences(
    frame: pd.DataFrame, cells: list[Cell], varies: list[Cell], by: str
) -> list[str]:
    """A sentence about the cells whose lag is the same in all iterations."""
    names = {cell.key for cell in varies}
    found: dict[float, list[str]] = {}
    for cell in cells:
        if cell.key not in names:
            value = float(of_cell(frame, cell, "lag_mean")[0])
            found.setdefault(value, []).append(f"{by}={cell.by}")
    return [
        f"The lag is {value:g} in every iteration at {', '.join(dict.fromkeys(where))}."
        for value, where in found.items()
    ]


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


def _overlap_sentences(cells: list[Cell], by: str) -> list[str]:
    said = "Divided by the longer of collecting and learning, the time of an iteration is"
    sentences = []
    for line, group in lines(cells).items():
        ratios = [f"{cell.interval(positive=True)} at {by}={cell.by}" for cell in group]
        sentences.append(words.for_line(line, f"{said} {', '.join(ratios)}."))
    return sentences


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
    return words.without_lone_line(pd.DataFrame(rows))


if __name__ == "__main__":
    sys.exit(main())
