"""Draws the policy lag of the rollouts, and the speed and return that come with it.

The left panel shows the distribution of the lag, averaged over an iteration's rollouts, where it
varies. The other panels show environment steps per second and, for each task, the final return (the
mean of return_mean over the last tenth of the steps) for each value of --by. The table
compares an iteration's time with the longer of collecting and learning: the ratio is 1 for perfect
overlap, and 2 for lock-step where collecting and learning take the same time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, style
from walle.analysis.loading.directories import BadInputError, Scalar
from walle.analysis.measuring.cells import (
    Cell,
    iterations_after_warmup,
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

Key = tuple[str, Scalar]
Measured = tuple[Cell, Interval]
MODES: dict[Scalar, str] = {0: "0, lock-step", 1: "1, overlapped", "null": "null, free-running"}
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
    longer = [(cell, cell.interval(positive=True)) for cell in overlap]
    finals = [(cell, cell.interval()) for cell in measure(sweep, final_returns(frame), by)]
    looks = _looks(lag)
    varies = [cell for cell in lag if np.ptp(_of_cell(frame, cell, "lag_mean")) > 0]
    tasks = _by_task(sweep, finals)
    if not (varies or rates or tasks):
        raise BadInputError("nothing to draw: the lag is constant, and no episode has ended")
    figure, axes = style.small_multiples(bool(varies) + bool(rates) + len(tasks), height=2.6)
    free = iter(axes)
    if varies:
        _draw_distribution(next(free), frame, varies, looks)
    if rates:
        area = next(free)
        _draw_cells(area, rates, looks, by)
        area.set_ylabel("environment steps per second")
        style.from_zero(area)
    for task, mine in tasks.items():
        area = next(free)
        _draw_cells(area, mine, looks, by)
        area.set_ylabel(labels.of_column("iterations", "return_mean"))
        area.set_title(task if len(tasks) > 1 else "")
    _name_looks(axes[-1], looks)
    style.legend(figure)
    sentences = words.sample(warmup, lag) + _constant_sentences(frame, lag, varies, by)
    sentences += _overlap_sentences(overlap, by)
    if not finals:
        sentences.append("No episode has ended, so no return is drawn.")
    columns = {"env_steps_per_s": rates, "iteration_over_longer": longer, "final_return": finals}
    return cli.Study(figure, _table(frame, lag, columns, by), sentences)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = cli.parser(__doc__, by=None).parse_args(argv)
    return cli.run(args, "lag", study, ("by", "warmup"))


def _default(sweep: Sweep) -> str:
    return MAX_LAG if MAX_LAG in sweep.varying else axis_of(sweep)


def _steps_per_s(sweep: Sweep, frame: pd.DataFrame, by: str) -> list[Measured]:
    if "env_steps" not in frame:
        return []
    steps = unit_of(sweep).steps
    cells = measure_seconds(sweep, frame, "iteration_s", by)
    return [(cell, Interval(*(steps * x for x in cell.rate()))) for cell in cells]


def _by_task(sweep: Sweep, measured: list[Measured]) -> dict[str, list[Measured]]:
    """The cells of each task: returns of two tasks share no axis."""
    tasks = {run.name: labels.task_of(run) for run in sweep.runs}
    found: dict[str, list[Measured]] = {}
    for cell, interval in measured:
        found.setdefault(tasks[cell.names[0]], []).append((cell, interval))
    return found


def _looks(cells: list[Cell]) -> dict[Key, style.Look]:
    """A look for each line; for each value of the axis where there is a single line."""
    lines_ = list(dict.fromkeys(cell.line for cell in cells))
    if len(lines_) == 1:
        return {cell.key: style.look(i) for i, cell in enumerate(cells)}
    return {cell.key: style.look(lines_.index(cell.line)) for cell in cells}


def _name_looks(axes: style.Axes, looks: dict[Key, style.Look]) -> None:
    """Explains the lines in the legend; a single line needs no name."""
    of_line = {line: look for (line, _), look in looks.items()}
    for line, look in of_line.items() if len(of_line) > 1 else ():
        axes.plot([], [], look.marker, color=look.color, label=line)


def _constant_sentences(
    frame: pd.DataFrame, cells: list[Cell], varies: list[Cell], by: str
) -> list[str]:
    """A sentence about the cells whose lag is the same in all iterations."""
    names = {cell.key for cell in varies}
    found: dict[float, list[str]] = {}
    for cell in cells:
        if cell.key not in names:
            value = float(_of_cell(frame, cell, "lag_mean")[0])
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
        sentences.append(words.of_line(line, f"{said} {', '.join(ratios)}."))
    return sentences


def _of_cell(frame: pd.DataFrame, cell: Cell, column: str) -> FloatArray:
    return frame.loc[frame["run"].isin(cell.names), column].dropna().to_numpy(float)


def _draw_distribution(
    axes: style.Axes, frame: pd.DataFrame, cells: list[Cell], looks: dict[Key, style.Look]
) -> None:
    """Draws the share of iterations whose mean lag is at most the value on the axis."""
    for cell in cells:
        look = looks[cell.key]
        lags = np.sort(_of_cell(frame, cell, "lag_mean"))
        share = 100 * np.arange(1, lags.size + 1) / lags.size
        name = ", ".join(part for part in (MODES.get(cell.by, str(cell.by)), cell.line) if part)
        line = {"color": look.color, "linestyle": look.dash, "label": f"{name} ({cell.repeats})"}
        axes.step([0, *lags], [0, *share], where="post", **line)
    axes.set_xlabel("mean lag (policy versions)")
    axes.set_ylabel("iterations with at most this lag (%)")
    axes.set_ylim(0, 103)
    reach = max(1.0, float(frame["lag_mean"].max()))  # in lock-step all lags are 0
    axes.set_xlim(-0.05 * reach, 1.05 * reach)


def _draw_cells(
    axes: style.Axes, measured: list[Measured], looks: dict[Key, style.Look], by: str
) -> None:
    values = list(dict.fromkeys(value for _, value in looks))
    names = list(dict.fromkeys(cell.line for cell, _ in measured))
    for cell, interval in measured:
        shift = 0.15 * (names.index(cell.line) - (len(names) - 1) / 2)
        place = values.index(cell.by) + shift
        style.point(axes, place, interval, looks[cell.key], hollow=cell.oversubscribed)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_xlabel(style.axis_name(by))


def _table(
    frame: pd.DataFrame, lag: list[Cell], columns: Mapping[str, list[Measured]], by: str
) -> pd.DataFrame:
    rows = []
    for cell in lag:
        lags = _of_cell(frame, cell, "lag_mean")
        most = _of_cell(frame, cell, "lag_max") if "lag_max" in frame else lags
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
            intervals = {other.key: interval for other, interval in measured}
            row |= intervals.get(cell.key, NOTHING).columns(name)
        rows.append(row)
    return words.without_lone_line(pd.DataFrame(rows))


if __name__ == "__main__":
    sys.exit(main())
