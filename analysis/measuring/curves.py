"""Puts the learning curves of several seeds on a common grid, with a band."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from walle.analysis.measuring import stats
from walle.analysis.measuring.stats import FloatArray

GRID = 200


class Curve(NamedTuple):
    """One line of a figure.

    Attributes:
        x: [points] the common grid.
        y: [points] mean or interquartile mean over the runs that have a value at the point; nan
            where no run has one.
        low: [points] lower end of the 95% interval; nan where fewer than two runs have a value.
        high: [points] upper end of the interval.
        runs: [points] the number of runs that have a value.
        total: the number of runs.
    """

    x: FloatArray
    y: FloatArray
    low: FloatArray
    high: FloatArray
    runs: npt.NDArray[np.int64]
    total: int

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """[points] whether every run has a value."""
        return np.asarray(self.runs == self.total)


def on_grid(rows: pd.DataFrame, x: str, y: str, grid: FloatArray) -> FloatArray:
    """[runs, points]: each run interpolated linearly, nan before its first row, after its last."""
    curves = []
    for _, run in rows.dropna(subset=[x, y]).groupby("run", observed=True):
        at, value = run[x].to_numpy(float), run[y].to_numpy(float)
        order = np.argsort(at, kind="stable")
        curves.append(np.interp(grid, at[order], value[order], left=np.nan, right=np.nan))
    return np.array(curves).reshape(len(curves), grid.size)


def common_grid(rows: pd.DataFrame, x: str, y: str, points: int = GRID) -> FloatArray:
    """[points]: equal steps from where the last run begins to where the longest run ends.

    Where a run ends before another begins, as on the wall clock, the steps start where the first
    run begins. Runs with one value each, at the same x, give one point.
    """
    spans = rows.dropna(subset=[x, y]).groupby("run", observed=True)[x].agg(["min", "max"])
    begin, end = float(spans["min"].max()), float(spans["max"].max())
    if begin > spans["max"].min():
        begin = float(spans["min"].min())
    return np.unique(np.linspace(begin, end, points))


def curve(
    grid: FloatArray,
    values: FloatArray,
    *,
    iqm: bool = False,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> Curve:
    """The curve of [runs, points] values; each point is over the runs that have a value there.

    The band is Student's t of the mean; of the interquartile mean it is a bootstrap over whole
    runs, with one resample for all points.

    Args:
        grid: [points] the common grid.
        values: [runs, points] of the runs, nan where a run has none.
        iqm: the interquartile mean in place of the mean.
        within: the values that are possible, where the band ends.
    """
    runs = (~np.isnan(values)).sum(axis=0)
    y, low, high = np.full((3, grid.size), np.nan)
    for here in _stretches(values):
        some = values[~np.isnan(values[:, here[0]])][:, here]
        if len(some):
            y[here], low[here], high[here] = _band(some, iqm=iqm)
    return Curve(grid, y, np.clip(low, *within), np.clip(high, *within), runs, len(values))


def _band(values: FloatArray, *, iqm: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Centre, lower and upper end of the interval of [runs, points] values without nan."""
    if not iqm:
        return values.mean(axis=0), *stats.mean_bounds(values)
    runs = len(values)
    picks = stats.generator().integers(0, runs, (stats.DRAWS, runs))
    draws = np.stack([stats.iqm(values[pick], axis=0) for pick in picks])
    return stats.iqm(values, axis=0), *stats.band_bounds(draws, runs)


def _stretches(values: FloatArray) -> list[npt.NDArray[np.int64]]:
    """The grid points in stretches over which the same runs have values."""
    there = ~np.isnan(values)
    change = np.flatnonzero((there[:, 1:] != there[:, :-1]).any(axis=0)) + 1
    return [part for part in np.split(np.arange(values.shape[1]), change) if part.size]
