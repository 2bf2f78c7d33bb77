"""Computes speedups of cells over the one with the fewest workers, and times to a return."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from walle.analysis.loading.directories import BadInputError
from walle.analysis.measuring import stats
from walle.analysis.measuring.cells import Cell, measure, require
from walle.analysis.measuring.clocks import clock
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import Sweep


@dataclass(frozen=True)
class Point:
    """A cell and its speedup over the cell with the fewest workers of its line, the base.

    Attributes:
        cell: the seconds.
        base: the number of workers of the base.
        speedup: the speedup over the base, with its interval.
        each: [runs] the speedup of each run over the base, within its block where blocks are known.
    """

    cell: Cell
    base: float
    speedup: stats.Interval
    each: FloatArray

    @property
    def n(self) -> float:
        """The number of workers."""
        return float(self.cell.by)


def speedups(cells: list[Cell]) -> list[Point]:
    """The speedup of every cell of one line over the cell with the fewest workers, the base.

    The base's own speedup is exactly 1; the uncertainty of its time is in all other speedups.
    """
    base = min(cells, key=lambda cell: float(cell.by))
    points = []
    for cell in cells:
        value = base.compared / cell.compared
        bounds = (1.0, 1.0) if cell is base else _bounds(value, base, cell)
        found = stats.Interval(value, *bounds)
        points.append(Point(cell, float(base.by), found, _each(base, cell)))
    return points


def _bounds(value: float, base: Cell, cell: Cell) -> tuple[float, float]:
    """Student's t in the logarithm, whose variance is the sum of both cells' variances."""
    dof = min(base.dof, cell.dof)
    if dof < 1:
        return math.nan, math.nan
    variance = float(np.log(base.draws).var() + np.log(cell.draws).var())
    reach = math.exp(stats.student(dof) * math.sqrt(variance))
    return value / reach, value * reach


def _each(base: Cell, cell: Cell) -> FloatArray:
    if not cell.blocks:
        return base.mean / cell.per_run
    seconds: dict[str, list[float]] = {}
    for block, value in zip(base.blocks, base.per_run, strict=True):
        seconds.setdefault(block, []).append(float(value))
    pairs = zip(cell.blocks, cell.per_run, strict=True)
    return np.array([np.mean(seconds[b]) / value for b, value in pairs if b in seconds])


def first_reached(iterations: pd.DataFrame, target: float) -> dict[str, FloatArray]:
    """Wall-clock seconds until `return_mean` first reached `target`, of each run that did so.

    Raises:
        BadInputError: there is no column `return_mean`.
    """
    require(iterations, "return_mean")
    reached = iterations[iterations["return_mean"] >= target]
    first = reached.groupby("run", observed=True)["wall_s"].min()
    return {str(run): np.array([seconds]) for run, seconds in first.items()}


def all_reached(
    sweep: Sweep, target: float, by: str, *, compiling: bool = False
) -> tuple[list[Cell], list[str]]:
    """Cells of which every run reached the return `target`, and a sentence about the other cells.

    Args:
        sweep: the runs.
        target: the return.
        by: the full configuration key on the axis.
        compiling: count the compiler's time too.

    Raises:
        BadInputError: there is no such cell.
    """
    per_run = first_reached(clock(sweep, compiling=compiling), target)
    everyone = {run.name: np.ones(1) for run in sweep.runs}
    asked = {cell.key: cell.runs for cell in measure(sweep, everyone, by)}
    reached = {cell.key: cell for cell in measure(sweep, per_run, by)}
    short = [
        f"{reached[key].runs if key in reached else 0} of {runs} at {by}={key[1]}"
        for key, runs in asked.items()
        if key not in reached or reached[key].runs < runs
    ]
    cells = [cell for key, cell in reached.items() if cell.runs == asked[key]]
    if not cells:
        raise BadInputError(
            f"--time-to-return {target:g}: at no {by} did every run reach it; the highest "
            f"return_mean is {sweep.iterations['return_mean'].max():.4g}"
        )
    if not short:
        return cells, []
    return cells, [
        f"Return {target:g} was not reached by every run ({'; '.join(short)}). Points with such a "
        "run are not drawn: a mean over the fast runs alone would look too good."
    ]


def fit_points(points: list[Point], *, fit_all: bool) -> list[Point]:
    """The points to fit: those within the machine's cores, or all when fewer than two are."""
    inside = [point for point in points if not point.cell.oversubscribed]
    return points if fit_all or len(inside) < 2 else inside
