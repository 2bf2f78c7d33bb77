"""Speedups of cells over the one with the fewest workers, and times to a return."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import stats
from analysis.directories import BadInputError
from analysis.measures import Cell, FloatArray, measure
from analysis.runs import Sweep


@dataclass(frozen=True)
class Point:
    """A cell and its speedup over the base of its line.

    Attributes:
        cell: the seconds.
        base: the number of samplers that counts as 1.
        speedup: over the base, with its interval.
        draws: [draws] bootstrap draws of the speedup.
    """

    cell: Cell
    base: float
    speedup: stats.Interval
    draws: FloatArray

    @property
    def n(self) -> float:
        """The number of samplers."""
        return float(self.cell.by)


def speedups(cells: list[Cell]) -> list[Point]:
    """The speedup of every cell of one line over the one with the fewest samplers.

    The same draws of the base serve above and below the fraction, so that the base's own speedup
    is 1 without doubt, and its uncertainty is in all the others.
    """
    base = min(cells, key=lambda cell: float(cell.by))
    points = []
    for cell in cells:
        draws = base.draws / cell.draws
        n = min(base.values.size, cell.values.size)
        bounds = (1.0, 1.0) if cell is base else stats.interval_bounds(draws, n, positive=True)
        value = stats.Interval(base.mean / cell.mean, *bounds)
        points.append(Point(cell, float(base.by), value, draws))
    return points


def first_reached(iterations: pd.DataFrame, target: float) -> dict[str, FloatArray]:
    """Wall-clock seconds of each run until `return_mean` first reached `target`; else nothing."""
    if "return_mean" not in iterations:
        raise BadInputError("--time-to-return: the runs have no column return_mean")
    reached = iterations[iterations["return_mean"] >= target]
    first = reached.groupby("run", observed=True)["wall_s"].min()
    return {str(run): np.array([seconds]) for run, seconds in first.items()}


def all_reached(sweep: Sweep, target: float, by: str) -> tuple[list[Cell], list[str]]:
    """Cells of which every run reached the return, and a sentence about the others."""
    per_run = first_reached(sweep.iterations, target)
    everyone = {run.name: np.ones(1) for run in sweep.runs}
    asked = {(cell.line, cell.by): cell.runs for cell in measure(sweep, everyone, by)}
    reached = {(cell.line, cell.by): cell for cell in measure(sweep, per_run, by)}
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
        f"Return {target:g} was not reached by every run ({'; '.join(short)}): "
        "those points are not drawn, a mean over the fast ones alone would flatter."
    ]
