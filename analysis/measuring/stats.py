"""Estimates means, interquartile means and their bootstrap intervals, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
DRAWS = 2000
TAIL = (1 - 0.95) / 2  # below and above a 95% interval


class Interval(NamedTuple):
    """An estimate with its 95% interval."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        """Three significant digits, with the interval in brackets, if there is one."""
        interval = "" if math.isnan(self.low) else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.value:.3g}{interval}"

    def columns(self, name: str) -> dict[str, float]:
        """The columns `name`, `name_low` and `name_high` of a table's row."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def generator() -> np.random.Generator:
    """The random stream of a bootstrap: the same numbers at each call of a script."""
    return np.random.default_rng(0)


def resample_means(x: npt.ArrayLike, rng: np.random.Generator, draws: int = DRAWS) -> FloatArray:
    """[draws]: means of resamples of `x` with replacement, each as long as `x`."""
    x = np.asarray(x, float)
    return np.asarray(x[rng.integers(0, x.size, (draws, x.size))].mean(axis=1))


def interval_bounds(draws: npt.ArrayLike, n: int, *, positive: bool = False) -> tuple[float, float]:
    """The 95% percentile interval of bootstrap draws, stretched for a small sample of `n` values.

    The plain percentile interval of a mean is too narrow by the factor sqrt((n-1)/n), because the
    bootstrap takes the sample for the population, and by the ratio of Student's t to the normal.
    Each side is stretched away from the median by both factors. On normal data the stretched
    interval covers 95% for 3 values as for 50; the plain one covers 75% for 3 and 85% for 5
    (docs/analysis.md). A single value has no interval (nan).

    Args:
        draws: [draws] bootstrap draws of the statistic.
        n: the number of values that were resampled.
        positive: stretch ratios in place of differences, for times and speedups.
    """
    x = np.asarray(draws, float)[:, None]
    low, high = band_bounds(np.log(x) if positive else x, n)
    if positive:
        low, high = np.exp(low), np.exp(high)
    return float(low[0]), float(high[0])


def band_bounds(draws: FloatArray, n: int) -> tuple[FloatArray, FloatArray]:
    """`interval_bounds` for every column of `draws` [draws, points]: two arrays [points]."""
    from scipy.special import ndtri, stdtrit

    if n < 2:
        nothing = np.full(draws.shape[1], math.nan)
        return nothing, nothing
    low, centre, high = np.quantile(draws, [TAIL, 0.5, 1 - TAIL], axis=0)
    stretch = math.sqrt(n / (n - 1)) * float(stdtrit(n - 1, 1 - TAIL) / ndtri(1 - TAIL))
    return centre - stretch * (centre - low), centre + stretch * (high - centre)


def iqm(x: npt.ArrayLike, axis: int | None = None) -> FloatArray:
    """The interquartile mean: the mean without the lowest and highest quarter of the values.

    Of n values, floor(n/4) are left out at each end (Agarwal et al. 2021, "Deep reinforcement
    learning at the edge of the statistical precipice").
    """
    x = np.asarray(x, float)
    if axis is None:
        x, axis = x.ravel(), 0
    ordered = np.sort(x, axis=axis)
    n = x.shape[axis]
    cut = n // 4
    return np.asarray(ordered.take(range(cut, n - cut), axis=axis).mean(axis=axis))


def stratified_draws(
    scores: npt.ArrayLike,
    statistic: Callable[[FloatArray], FloatArray],
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> FloatArray:
    """[draws]: `statistic` of resamples of `scores` in which every task keeps its own runs.

    Args:
        scores: [runs, tasks].
        statistic: takes [runs, tasks], returns one number or an array.
        rng: the random stream.
        draws: the number of resamples.
    """
    scores = np.asarray(scores, float)
    runs, tasks = scores.shape
    rows = rng.integers(0, runs, (draws, runs, tasks))
    return np.array([statistic(scores[r, np.arange(tasks)]) for r in rows], float)
