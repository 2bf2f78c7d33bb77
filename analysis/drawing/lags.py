"""Draws the panels of a lag: its distribution, and speeds and returns of each task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import labels, style
from walle.analysis.drawing import tasks as panels
from walle.analysis.loading.directories import Scalar
from walle.analysis.measuring.cells import Cell
from walle.analysis.measuring.stats import FloatArray, Interval
from walle.analysis.runs import Sweep

Key = tuple[str, Scalar]
MODES: dict[Scalar, str] = {0: "0, lock-step", 1: "1, overlapped", "null": "null, free-running"}


class Measured(NamedTuple):
    """A quantity of a cell: its interval, and the number of each run."""

    cell: Cell
    interval: Interval
    each: FloatArray


def figure(
    sweep: Sweep,
    frame: pd.DataFrame,
    by: str,
    *,
    lag: list[Cell],
    varies: list[Cell],
    rates: list[Measured],
    finals: list[Measured],
) -> style.Figure:
    """The distribution of the lag, then a panel of speeds and one of returns for each task.

    Args:
        sweep: the runs.
        frame: the rows of sweep.iterations that count.
        by: the key on the axis.
        lag: all cells.
        varies: the cells whose lag varies.
        rates: environment steps per second.
        finals: final returns, where cells that learnt the same are one.
    """
    tasks = panels.panels(sweep, lag)
    looks = _looks(tasks)
    drawn = [
        (kind, task, mine)
        for kind, measured in (("rate", rates), ("return", finals))
        for task, mine in _by_task(sweep, measured).items()
    ]
    columns = len(tasks) if 1 < len(tasks) <= panels.PANELS and not varies else panels.PANELS
    figure, axes = style.small_multiples(len(drawn) + bool(varies), height=2.6, columns=columns)
    if varies:
        _draw_distribution(axes[0], frame, varies, looks, sweep)
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


def _by_task(sweep: Sweep, measured: list[Measured]) -> dict[str, list[Measured]]:
    """The cells of each task: returns of two tasks share no axis."""
    tasks = {run.name: labels.task_of(run) for run in sweep.runs}
    found: dict[str, list[Measured]] = {}
    for one in measured:
        found.setdefault(tasks[one.cell.names[0]], []).append(one)
    return found


def _looks(tasks: Mapping[str, Mapping[str, list[Cell]]]) -> dict[Key, style.Look]:
    """A look for each line without its task; for each value of the axis where there is one line."""
    names = list(dict.fromkeys(name for mine in tasks.values() for name in mine))
    values = list(
        dict.fromkeys(cell.by for mine in tasks.values() for g in mine.values() for cell in g)
    )
    if len(names) == 1:
        return {(names[0], value): style.look(i) for i, value in enumerate(values)}
    return {(name, value): style.look(i) for i, name in enumerate(names) for value in values}


def of_cell(frame: pd.DataFrame, cell: Cell, column: str) -> FloatArray:
    """The values of a column of all runs of a cell."""
    return frame.loc[frame["run"].isin(cell.names), column].dropna().to_numpy(float)


def _draw_distribution(
    axes: style.Axes,
    frame: pd.DataFrame,
    cells: list[Cell],
    looks: dict[Key, style.Look],
    sweep: Sweep,
) -> None:
    """Draws the share of iterations whose mean lag is at most the value on the axis."""
    tasks = {run.name: labels.task_of(run) for run in sweep.runs}
    for cell in cells:
        look = looks[panels.without_task(cell.line, tasks[cell.names[0]]), cell.by]
        lags = np.sort(of_cell(frame, cell, "lag_mean"))
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
    axes: style.Axes,
    task: str,
    measured: list[Measured],
    looks: dict[Key, style.Look],
    by: str,
) -> None:
    """Draws a marker, an interval and the seeds for each cell; lines stand beside each other."""
    values = list(dict.fromkeys(one.cell.by for one in measured))
    names = list(dict.fromkeys(one.cell.line for one in measured))
    of_name = {name: look for (name, _), look in looks.items()}
    of_name[panels.ALL_LINES] = style.look(0)._replace(color=style.PAPER_GREY)
    ticks: dict[Scalar, float] = {value: float(i) for i, value in enumerate(values)}
    for cell, interval, each in measured:
        place = panels.aside(ticks, names.index(cell.line), len(names))[cell.by]
        whole = cell.line == panels.ALL_LINES
        name = cell.line if whole else panels.without_task(cell.line, task)
        look = looks.get((name, cell.by), of_name[name])
        dots = each if cell.runs > 1 else ()
        style.point(axes, place, interval, look, hollow=cell.oversubscribed, dots=dots)
    if len({name for name, _ in looks}) > 1:
        for line in names:
            name = line if line == panels.ALL_LINES else panels.without_task(line, task)
            look = of_name[name]
            axes.plot([], [], look.marker, color=look.color, label=name)
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.set_xlabel(style.axis_name(by))
