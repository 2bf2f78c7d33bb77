"""Statistics: means with Student's t, Welch's differences, bootstraps, interquartile means.

A mean has the same kind of interval in every figure, table and page: Student's t. On means of 3 to
20 runs the stretched bootstrap of `interval_bounds` covers as much (docs/notes/statistics.md); t
needs no random numbers, and anyone can recompute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from walle.analysis.writing.format import with_range

FloatArray = npt.NDArray[np.float64]
DRAWS = 2000
TAIL = (1 - 0.95) / 2  # below and above a 95% interval
LEAST_DOF = 1.001  # no interval has fewer degrees of freedom


class Interval(NamedTuple):
    """An estimate with its 95% interval."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        """Three digits, with the interval in brackets, if there is one."""
        return with_range(self)

    def within(self, low: float, high: float) -> Interval:
        """Cuts the interval to possible values; the estimate stays inside."""
        ends = max(self.low, min(low, self.value)), min(self.high, max(high, self.value))
        return self if math.isnan(self.low) else Interval(self.value, *ends)

    def columns(self, name: str) -> dict[str, float]:
        """The columns `name`, `name_low` and `name_high` of a table's row."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def generator() -> np.random.Generator:
    """The random stream of a bootstrap: the same numbers at each call of a script."""
    return np.random.default_rng(0)


def mean_bounds(x: FloatArray, *, positive: bool = False) -> tuple[FloatArray, FloatArray]:
    """The ends of the 95% interval of the mean: mean -+ t s / sqrt(n), n - 1 degrees of freedom.

    Args:
        x: the sample, along the first axis; both ends are NaN if it has one or two values.
        positive: take the interval of the logarithm, to the first order: mean * exp(-+ t s / (mean
            sqrt(n))), so that the interval of a time stays above zero.
    """
    n, mean = len(x), np.asarray(x.mean(axis=0))
    if n < 2:
        return np.full_like(mean, math.nan), np.full_like(mean, math.nan)
    reach = student(n - 1) * (x.std(axis=0, ddof=1) / math.sqrt(n))
    if positive:
        return mean * np.exp(-reach / mean), mean * np.exp(reach / mean)
    return mean - reach, mean + reach


def mean_interval(x: npt.ArrayLike) -> Interval:
    """The mean of one sample with the interval of `mean_bounds`."""
    values = np.asarray(x, float)
    return Interval(float(values.mean()), *map(float, mean_bounds(values)))


def mean_draws(x: FloatArray, rng: np.random.Generator, draws: int = DRAWS) -> FloatArray:
    """Draws [draws] of the mean of positive values: log-normal, with the relative standard error.

    The caller stretches them by the ratio of Student's t to the normal. For other values, and for a
    single value, all draws are the mean.
    """
    mean = float(x.mean())
    if x.size < 2 or mean <= 0:
        return np.full(draws, mean)
    relative = float(x.std(ddof=1) / math.sqrt(x.size)) / mean
    return np.asarray(mean * np.exp(relative * normal_draws(rng, draws)))


def normal_draws(rng: np.random.Generator, draws: int = DRAWS) -> FloatArray:
    """Evenly spaced quantiles [draws] of the normal, shuffled: draws without sampling error."""
    from scipy.special import ndtri

    return np.asarray(rng.permutation(ndtri((np.arange(draws) + 0.5) / draws)))


def student(dof: float) -> float:
    """The half-width of a 95% interval in standard errors: Student's t with `dof` degrees.

    With one degree of freedom it is NaN: an interval of 12.7 standard errors to each side would
    tell nothing.
    """
    from scipy.special import stdtrit

    return float(stdtrit(dof, 1 - TAIL)) if dof > LEAST_DOF else math.nan


def one_variance(squares: FloatArray, dof: FloatArray) -> bool:
    """False if Bartlett's test (1937) rejects at 5% that samples have one variance.

    Takes their sums of squares and degrees of freedom; samples with one degree or less tell
    nothing.
    """
    from scipy.special import chdtrc

    squares, dof = squares[dof > LEAST_DOF], dof[dof > LEAST_DOF]
    if dof.size < 2 or not squares.any():
        return True
    with np.errstate(divide="ignore"):  # the test rejects a variance of 0 beside others
        logs = dof.sum() * np.log(squares.sum() / dof.sum()) - dof @ np.log(squares / dof)
    correction = 1 + ((1 / dof).sum() - 1 / dof.sum()) / (3 * dof.size - 3)
    statistic = max(0.0, logs / correction)  # rounding can make it negative
    return bool(chdtrc(dof.size - 1, statistic) >= 2 * TAIL)


def interval_bounds(
    draws: npt.ArrayLike, n: float, dof: float | None = None
) -> tuple[FloatArray, FloatArray]:
    """The 95% percentile interval of bootstrap draws, stretched for a small sample of `n` values.

    The plain percentile interval of a mean is too narrow by the factor sqrt((n-1)/n), because the
    bootstrap takes the sample for the population, and by the ratio of Student's t to the normal.
    Each side is stretched from the median by both factors (coverage: docs/notes/statistics.md).

    Args:
        draws: [draws, ...] bootstrap draws of the statistic; both ends have the shape [...].
        n: the number of resampled values, infinity for draws that are not too narrow; for one value
            the ends are NaN.
        dof: the degrees of freedom of the spread, if several samples share it; else n - 1.
    """
    draws = np.asarray(draws, float)
    dof = n - 1 if dof is None else dof
    if n < 2 or dof < LEAST_DOF:
        return np.full(draws.shape[1:], math.nan), np.full(draws.shape[1:], math.nan)
    low, centre, high = np.quantile(draws, [TAIL, 0.5, 1 - TAIL], axis=0)
    stretch = student(dof) / student(math.inf) / math.sqrt(1 - 1 / n)
    return centre - stretch * (centre - low), centre + stretch * (high - centre)


def iqm(x: npt.ArrayLike, axis: int | None = None) -> FloatArray:
    """The interquartile mean: the mean without the lowest and highest quarter of the values.

    Of n values, floor(n/4) are left out at each end (Agarwal et al. 2021, "Deep reinforcement
    learning at the edge of the statistical precipice").
    """
    x = np.asarray(x, float)
    if axis is None:
        x, axis = x.ravel(), 0
    n = x.shape[axis]
    inner = range(n // 4, n - n // 4)
    return np.asarray(np.sort(x, axis=axis).take(inner, axis=axis).mean(axis=axis))


def stratified_draws(
    scores: npt.ArrayLike,
    statistic: Callable[[FloatArray], FloatArray],
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> FloatArray:
    """[draws]: `statistic` of resamples of `scores` in which every task keeps its own runs."""
    scores = np.asarray(scores, float)
    runs, tasks = scores.shape
    rows = rng.integers(0, runs, (draws, runs, tasks))
    return np.array([statistic(scores[r, np.arange(tasks)]) for r in rows], float)


class Estimate(NamedTuple):
    """A normally distributed estimate."""

    value: float  # the estimate
    variance: float = math.nan  # its estimated variance; NaN for a single run
    dof: float = math.nan  # the degrees of freedom of `variance`

    @property
    def reach(self) -> float:
        """The half-width of its 95% interval; Student's t with `dof` degrees of freedom.

        Two samples that agree run by run have the variance 0, and the interval is a point.
        """
        same = self.value == self.variance == 0
        return 0.0 if same else student(self.dof) * math.sqrt(self.variance)

    def interval(self, of: Callable[[float], float] = float) -> Interval:
        """The value and its bounds, each passed through the function `of`."""
        ends = self.value - self.reach, self.value + self.reach
        return Interval(of(self.value), *(x if math.isnan(x) else of(x) for x in ends))


class Sides(NamedTuple):
    """The runs of A and of B on one task."""

    a: FloatArray  # [runs of A] a number for each run
    b: FloatArray  # [runs of B]; if `paired`, run i of B belongs to run i of A
    paired: bool = False  # whether run i of both sides shares what chance decided, such as its seed

    @property
    def identical(self) -> bool:
        """Whether each run of B equals its partner of A exactly."""
        return self.paired and bool(np.array_equal(self.a, self.b))


def difference(both: Sides) -> Estimate:
    """mean(B) - mean(A): Welch's for independent runs, else Student's of pairs' differences."""
    if both.paired:
        return _mean_estimate(both.b - both.a)
    b, a = _mean_estimate(both.b), _mean_estimate(both.a)
    variances = np.array([b.variance, a.variance])
    dof = satterthwaite(variances, np.array([b.dof, a.dof]))
    return Estimate(b.value - a.value, float(variances.sum()), dof)


def _mean_estimate(x: FloatArray) -> Estimate:
    if x.size < 2:
        return Estimate(float(x.mean()))
    return Estimate(float(x.mean()), float(x.var(ddof=1)) / x.size, x.size - 1)


def log_ratio(both: Sides) -> Estimate:
    """log(mean(B) / mean(A)), for positive numbers; take `interval(math.exp)`.

    The variance is the first-order one of a logarithm: each run counts by its deviation divided by
    the mean of its side (delta method).
    """
    a, b = (x / x.mean() for x in (both.a, both.b))
    value = math.log(both.b.mean() / both.a.mean())
    return difference(Sides(a, b, both.paired))._replace(value=value)


def overall(tasks: Sequence[Estimate], *, pooled: bool = False) -> Estimate:
    """The mean over tasks, each with the same weight.

    Its degrees of freedom are Welch's and Satterthwaite's, (sum v)^2 / sum(v^2 / dof). Estimates
    that share one variance keep its degrees (`pooled`).
    """
    values, variances, dofs = (np.array(column) for column in zip(*tasks, strict=True))
    parts = variances / len(tasks) ** 2
    dof = float(dofs.min()) if pooled else satterthwaite(parts, dofs)
    return Estimate(float(values.mean()), float(parts.sum()), dof)


def improvement(tasks: Sequence[Sides], *, higher: bool = True) -> Interval:
    """The probability that a run of B is better than one of A: P(B > A) + P(B = A) / 2.

    On a task it is the share of all pairs of runs, which is Mann and Whitney's statistic; over
    several tasks it is the mean (Agarwal et al. 2021, "Deep reinforcement learning at the edge of
    the statistical precipice", section 4.3). Its interval holds every probability p that is at most
    t standard deviations from the estimate, where the deviation is the one that p itself implies:
    the score interval of Newcombe (2006, "Confidence intervals for an effect size measure based on
    the Mann-Whitney statistic, part 2", method 5), with Student's t in place of the normal
    distribution, and with the same p assumed on every task. Unlike a bootstrap's, it does not
    collapse to a point if one side wins every pair. Sides of a single run have no interval, and
    neither have identical sides. All pairs of runs of a task count, paired or not; without
    `higher`, lower is better, as for seconds.
    """
    sign = 1 if higher else -1
    won = [(np.sign(both.b[:, None] - both.a) * sign + 1).mean() / 2 for both in tasks]
    share = float(np.mean(won))
    if all(both.identical for both in tasks):
        return Interval(share)
    return _score_interval(share, [(both.a.size, both.b.size) for both in tasks])


def improvement_on_reported(tasks: Sequence[tuple[FloatArray, float, float, int]]) -> Interval:
    """The probability that a run of ours is above a reported one, the mean over tasks.

    A task has the returns of our runs; and the mean, the standard deviation and the number of the
    reported ones, which are taken as normal: a run of ours with return x is above a reported one
    with the probability Φ((x - mean) / spread); without a spread it is above, below, or equal
    (1/2). The interval is that of `improvement`.
    """
    from scipy.special import ndtr

    shares = [
        ndtr((x - mean) / spread).mean() if spread else (np.sign(x - mean) + 1).mean() / 2
        for x, mean, spread, _ in tasks
    ]
    return _score_interval(float(np.mean(shares)), [(runs, x.size) for x, _, _, runs in tasks])


def _score_interval(share: float, sizes: Sequence[tuple[int, int]]) -> Interval:
    """The interval of `improvement`; without bounds if a side has a single run."""
    from scipy.optimize import brentq

    if min(map(min, sizes)) < 2:
        return Interval(share)
    t = student(sum(m + n - 2 for m, n in sizes))

    def deviation(p: float) -> float:
        grows = (1 - p) / (2 - p) + p / (1 + p)
        parts = [p * (1 - p) * (1 + ((m + n) / 2 - 1) * grows) / (m * n) for m, n in sizes]
        return math.sqrt(sum(parts)) / len(sizes)

    def upper(share: float) -> float:
        """The largest p with p - share <= t deviation(p)."""
        if share >= 1:
            return 1.0
        return float(brentq(lambda p: p - share - t * deviation(p), max(share, 1e-12), 1.0))

    return Interval(share, 1 - upper(1 - share), upper(share))


def satterthwaite(variances: FloatArray, dofs: FloatArray) -> float:
    """Degrees of freedom of a sum of variances; the smallest if all variances are 0."""
    if not variances.any():
        return float(dofs.min())
    known = variances != 0
    return float(variances.sum() ** 2 / (variances[known] ** 2 / dofs[known]).sum())
