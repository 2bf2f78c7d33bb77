"""Means, interquartile means and their bootstrap intervals, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
DRAWS = 2000
LEVEL = 0.95


class Interval(NamedTuple):
    """An estimate with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """For people: three significant digits and the interval in brackets."""
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def generator() -> np.random.Generator:
    """The random stream of every bootstrap: the same numbers at each call of a script."""
    return np.random.default_rng(0)


def resample_means(x: npt.ArrayLike, rng: np.random.Generator, draws: int = DRAWS) -> FloatArray:
    """[draws]: means of resamples of `x` with replacement, each as long as `x`."""
    x = np.asarray(x, float)
    return np.asarray(x[rng.integers(0, x.size, (draws, x.size))].mean(axis=1))


def interval_bounds(
    draws: npt.ArrayLike, n: int, level: float = LEVEL, *, positive: bool = False
) -> tuple[float, float]:
    """The percentile interval of [draws] bootstrap draws, stretched for a small sample of `n`.

    The plain percentile interval of a mean is too narrow by the factor sqrt((n-1)/n), because the
    bootstrap takes the sample for the population, and by that of Student's t to the normal. Each
    side is stretched away from the median by both. On normal data that gives 95% for 3 values as
    for 50, where the plain interval covers 75% for 3 and 85% for 5 (docs/analysis.md). With one
    value there is no interval (nan).

    Args:
        draws: bootstrap draws of the statistic.
        n: how many values were resampled.
        level: of confidence.
        positive: stretch ratios in place of differences, for times and speedups.
    """
    x = np.asarray(draws, float)[:, None]
    low, high = band_bounds(np.log(x) if positive else x, n, level)
    if positive:
        low, high = np.exp(low), np.exp(high)
    return float(low[0]), float(high[0])


def band_bounds(draws: FloatArray, n: int, level: float = LEVEL) -> tuple[FloatArray, FloatArray]:
    """`interval_bounds` for every column of `draws` [draws, points]: two arrays [points]."""
    from scipy.special import ndtri, stdtrit

    if n < 2:
        nothing = np.full(draws.shape[1], math.nan)
        return nothing, nothing
    tail = (1 - level) / 2
    low, centre, high = np.quantile(draws, [tail, 0.5, 1 - tail], axis=0)
    stretch = math.sqrt(n / (n - 1)) * float(stdtrit(n - 1, 1 - tail) / ndtri(1 - tail))
    return centre - stretch * (centre - low), centre + stretch * (high - centre)


def mean_interval(
    x: npt.ArrayLike, rng: np.random.Generator, level: float = LEVEL, draws: int = DRAWS
) -> Interval:
    """The mean of `x` and its bootstrap interval; no interval (nan) for a single value."""
    x = np.asarray(x, float)
    return Interval(float(x.mean()), *interval_bounds(resample_means(x, rng, draws), x.size, level))


def iqm(x: npt.ArrayLike, axis: int | None = None) -> FloatArray:
    """The interquartile mean: the mean without the lowest and highest quarter of the values.

    Of n values floor(n/4) go at each end (Agarwal et al. 2021, "Deep reinforcement learning at
    the edge of the statistical precipice").
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
        statistic: takes [runs, tasks], returns one number.
        rng: the random stream.
        draws: how many resamples.
    """
    scores = np.asarray(scores, float)
    runs, tasks = scores.shape
    rows = rng.integers(0, runs, (draws, runs, tasks))
    return np.array([statistic(scores[r, np.arange(tasks)]) for r in rows], float)
