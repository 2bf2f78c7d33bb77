"""Gives every task a panel, and places the lines of a panel side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise

from walle.analysis.drawing import style
from walle.analysis.drawing.labels import task_of
from walle.analysis.loading.directories import Scalar
from walle.analysis.measuring.cells import Cell, lines
from walle.analysis.runs import Sweep

PANELS = 3
ALL_LINES = "all lines, identical"
SPREAD = 0.1  # between neighbouring lines, of the axis
GAP = 0.7  # of the least distance between two ticks, which all lines of a tick share


def panels(sweep: Sweep, cells: Iterable[Cell]) -> dict[str, dict[str, list[Cell]]]:
    """The cells of each task, by the line's label without the task."""
    tasks = {run.name: task_of(run) for run in sweep.runs}
    found: dict[str, dict[str, list[Cell]]] = {}
    for line, group in lines(cells).items():
        task = tasks[group[0].names[0]]
        found.setdefault(task, {})[without_task(line, task)] = group
    return found


def without_task(line: str, task: str) -> str:
    """The label of a line in the panel of its task."""
    return ", ".join(part for part in line.split(", ") if part and part != task)


def looks(names: Iterable[str]) -> dict[str, style.Look]:
    """One look for each label, the same in all panels."""
    return {name: style.look(i) for i, name in enumerate(dict.fromkeys(names))}


def axes_of(
    tasks: Collection[str], rows: int = 1, *, height: float, sharey: bool = False
) -> tuple[style.Figure, list[list[style.Axes]]]:
    """A figure with a panel for each task in each row; many tasks take more rows of panels.

    A row of a single task is one panel, and three such rows stand side by side.
    """
    count = len(tasks)
    columns = count if 1 < count <= PANELS else PANELS
    figure, axes = style.small_multiples(
        rows * count, height=height, columns=columns, sharey=sharey
    )
    if count > 1:
        for area, task in zip(axes, [*tasks] * rows, strict=True):
            area.set_title(task)
    return figure, [axes[row * count : (row + 1) * count] for row in range(rows)]


def aside(
    places: Mapping[Scalar, float], number: int, count: int, *, log: bool = False
) -> dict[Scalar, float]:
    """The places of line `number` of `count` lines, beside the ticks; of a lone line the ticks."""
    ordered = sorted(places.values())
    if count < 2:
        return dict(places)
    shift = number - (count - 1) / 2
    if log:
        least = min((b / a for a, b in pairwise(ordered)), default=2.0)
        whole = ordered[-1] / ordered[0] if len(ordered) > 1 else 2.0
        step = min(whole**SPREAD, least ** (GAP / count))
        return {value: place * step**shift for value, place in places.items()}
    least = min((b - a for a, b in pairwise(ordered)), default=1.0)
    whole = ordered[-1] - ordered[0] if len(ordered) > 1 else 1.0
    step = min(SPREAD * whole, GAP * least / count)
    return {value: place + step * shift for value, place in places.items()}
