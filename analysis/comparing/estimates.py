"""Compares two samples of runs: difference, ratio and probability of improvement.

All functions are pure. Intervals cover 95%. A sample holds a number for each run; samples of
several tasks are combined with equal weights, and each task keeps its own runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from walle.analysis.loading.directories import Scalar
from walle.analysis.measuring.stats import TAIL, FloatArray, Interval

Seeded = Mapping[tuple[Scalar, int], float]  # by seed and, where a seed repeats, by number


class Estimate(NamedTuple):
    """A normally distributed estimate.

    Attributes:
        value: the estimate.
        variance: its estimated variance; nan where a single run tells nothing of it.
        dof: the degrees of freedom of `variance`.
    """

    value: float
    variance: float = math.nan
    dof: float = math.nan

    def interval(self, of: Callable[[float], float] = float) -> Interval:
        """`of` the value with `of` its bounds; Student's t with `dof` degrees of freedom.

        Two samples that agree run by run have the variance 0, and the interval is a point.
        """
        from scipy.special import stdtrit

        reach = 0.0
        if self.variance != 0:
            reach = float(stdtrit(self.dof, 1 - TAIL)) * math.sqrt(self.variance)
        low, high = self.value - reach, self.value + reach
        return Interval(of(self.value), *(x if math.isnan(x) else of(x) for x in (low, high)))


class Sides(NamedTuple):
    """The runs of A and of B on one task.

    Attributes:
        a: [runs of A] a number for each run.
        b: [runs of B]; where `paired`, run i of B belongs to run i of A.
        paired: whether run i of both sides shares what chance decided, such as its seed.
    """

    a: FloatArray
    b: FloatArray
    paired: bool = False

    @property
    def identical(self) -> bool:
        """Whether each run of B equals its partner of A exactly."""
        return self.paired and bool(np.array_equal(self.a, self.b))


def estimate(x: FloatArray) -> Estimate:
    """The mean of a sample, with the variance of the mean."""
    if x.size < 2:
        return Estimate(float(x.mean()))
    return Estimate(float(x.mean()), float(x.var(ddof=1)) / x.size, x.size - 1)


def sides(a: Seeded, b: Seeded, *, shared: bool) -> Sides:
    """The two samples, paired by seed if the seeds are the same and `shared` by learning."""
    paired = shared and set(a) == set(b)
    partners = [b[key] for key in a] if paired else list(b.values())
    return Sides(np.array(list(a.values()), float), np.array(partners, float), paired)


def difference(both: Sides) -> Estimate:
    """mean(B) - mean(A): Welch's for independent runs, Student's of the pairs' differences."""
    if both.paired:
        return estimate(both.b - both.a)
    return _added(estimate(both.b), estimate(both.a), -1.0)


def log_ratio(both: Sides) -> Estimate:
    """log(mean(B) / mean(A)), for positive numbers; take `interval(math.exp)`.

    The variance is the first-order one of a logarithm: each run counts by its deviation over the
    mean of its side (delta method).
    """
    a, b = (x / x.mean() for x in (both.a, both.b))
    value = math.log(both.b.mean() / both.a.mean())
    return difference(Sides(a, b, both.paired))._replace(value=value)


def pooled_log_ratios(
    tasks: Sequence[Sides], like: Sequence[Sides] | None = None
) -> list[Estimate]:
    """`log_ratio` of every task, where all runs share one relative variance, as speeds do.

    The variance of a run is pooled over all tasks and both sides; its degrees of freedom are the
    sum over them. Where all tasks are paired it is the variance of the pairs' differences.

    Args:
        tasks: the two samples of each task.
        like: samples whose variance is taken in place of that of `tasks`; their runs may depend
            on each other, so the degrees of freedom are at most those of `tasks`.
    """
    paired = all(both.paired for both in (*tasks, *(like or ())))
    deviations = _deviations(like or tasks, paired=paired)
    known = sum(x.size - 1 for x in deviations)
    squares = sum(float((x**2).sum()) for x in deviations)
    one = squares / known if known else math.nan
    dof = min(known, sum(x.size - 1 for x in _deviations(tasks, paired=paired)))
    weights = [1 / t.a.size + (0 if paired else 1 / t.b.size) for t in tasks]
    values = [math.log(both.b.mean() / both.a.mean()) for both in tasks]
    return [Estimate(v, one * w, dof) for v, w in zip(values, weights, strict=True)]


def _deviations(tasks: Sequence[Sides], *, paired: bool) -> list[FloatArray]:
    """Relative deviations of the runs from their side's mean; of pairs, of their differences."""
    found: list[FloatArray] = []
    for both in tasks:
        a, b = both.a / both.a.mean(), both.b / both.b.mean()
        found += [b - a] if paired else [a - 1, b - 1]
    return found


def overall(tasks: Sequence[Estimate], *, pooled: bool = False) -> Estimate:
    """The mean over tasks, each with the same weight.

    Its degrees of freedom are Welch's and Satterthwaite's, (sum v)^2 / sum(v^2 / dof); `pooled`
    says that the estimates share one variance (`pooled_log_ratios`), whose degrees they keep.
    """
    count = len(tasks)
    parts = np.array([task.variance for task in tasks]) / count**2
    dofs = np.array([task.dof for task in tasks])
    variance = float(parts.sum())
    dof = float(dofs.min()) if pooled else _satterthwaite(parts, dofs)
    return Estimate(float(np.mean([task.value for task in tasks])), variance, dof)


def wider(one: Estimate, other: Estimate) -> Estimate:
    """The estimate with the wider interval; `one` where either has none."""
    spans = [low_high[2] - low_high[1] for low_high in (one.interval(), other.interval())]
    return other if spans[1] > spans[0] else one


def improvement(tasks: Sequence[Sides], *, higher: bool = True) -> Interval:
    """The probability that a run of B is better than one of A: P(B > A) + P(B = A) / 2.

    On a task it is the share of all pairs of runs, which is Mann and Whitney's statistic; over
    several tasks it is the mean (Agarwal et al. 2021, "Deep reinforcement learning at the edge of
    the statistical precipice", section 4.3). Its interval holds every probability p that is at
    most t standard deviations away, where the deviation is the one that p itself implies: the
    score interval of Newcombe (2006, "Confidence intervals for an effect size measure based on the
    Mann-Whitney statistic, part 2", method 5), with Student's t for few runs and p on every task.
    Unlike a bootstrap's it does not shrink to a point where one side wins every pair. A single
    run a side has no interval, and neither have identical sides.

    Args:
        tasks: the two samples of each task; all pairs of their runs count, paired or not.
        higher: whether higher is better; otherwise lower is, as for seconds.
    """
    share = float(np.mean([_share_won(both, 1 if higher else -1) for both in tasks]))
    if all(both.identical for both in tasks):
        return Interval(share)
    return _score_interval(share, [(both.a.size, both.b.size) for both in tasks])


class Reported(NamedTuple):
    """Returns of runs of which others reported the mean and the standard deviation.

    Attributes:
        mean: over the runs.
        spread: the standard deviation over the runs.
        runs: how many there were.
    """

    mean: float
    spread: float
    runs: int


def improvement_on_reported(tasks: Sequence[tuple[FloatArray, Reported]]) -> Interval:
    """The probability that a run of ours is above a reported one, the mean over tasks.

    The reported returns are taken as normal: a run of ours with return x is above one of them with
    the probability Φ((x - mean) / spread); without a spread it is above, below, or equal (1/2). The
    interval is that of `improvement`.

    Args:
        tasks: for each task the returns of our runs, and what was reported.
    """
    shares = [_share_above(x, other) for x, other in tasks]
    return _score_interval(float(np.mean(shares)), [(other.runs, x.size) for x, other in tasks])


def _share_above(x: FloatArray, other: Reported) -> float:
    from scipy.special import ndtr

    if other.spread == 0:
        return float((np.sign(x - other.mean) + 1).mean() / 2)
    return float(ndtr((x - other.mean) / other.spread).mean())


def _score_interval(share: float, sizes: Sequence[tuple[int, int]]) -> Interval:
    """The interval of `improvement`; none where a side has a single run."""
    from scipy.special import stdtrit

    if min(map(min, sizes)) < 2:
        return Interval(share)
    t = float(stdtrit(sum(m + n - 2 for m, n in sizes), 1 - TAIL))
    return Interval(share, 1 - _upper(1 - share, sizes, t), _upper(share, sizes, t))


def merged(samples: Sequence[tuple[Seeded, Seeded]]) -> dict[int, tuple[Seeded, Seeded]]:
    """Puts samples together that hold the same runs again, so that each run counts once.

    Learning is the same for every number of samplers, so runs of `sampler.n` 1 and 2 hold the
    same returns for the same seed. Samples are merged where all seeds that a side shares agree
    exactly; one side is enough, as runs without lag can stand beside free-running ones. A run
    that is not there yet is a further run of its seed. The key of a merged sample is the index of
    its first one.
    """
    found: dict[int, tuple[Seeded, Seeded]] = {}
    for number, new in enumerate(samples):
        for first, old in found.items():
            if any(_agree(x, y) for x, y in zip(old, new, strict=True)):
                found[first] = (_union(old[0], new[0]), _union(old[1], new[1]))
                break
        else:
            found[number] = new
    return found


def _union(old: Seeded, new: Seeded) -> Seeded:
    """The runs of both, where an equal number of the same seed is the same run again."""
    found = dict(old)
    for (seed, _), value in new.items():
        same = [other for (of, _), other in found.items() if of == seed]
        if value not in same:
            found[seed, len(same)] = value
    return found


def averaged(samples: Sequence[tuple[Seeded, Seeded]]) -> tuple[Seeded, Seeded]:
    """The mean of every seed over several samples that share their seeds, side by side.

    The times to a return of the same seed depend on each other, whatever the number of samplers,
    because learning takes the same steps. So they count as one sample, not as independent ones.
    """
    return _means([a for a, _ in samples]), _means([b for _, b in samples])


def _means(parts: Sequence[Seeded]) -> Seeded:
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: float(np.mean([part[key] for part in parts if key in part])) for key in keys}


def _agree(one: Seeded, other: Seeded) -> bool:
    shared = set(one) & set(other)
    return bool(shared) and all(one[key] == other[key] for key in shared)


def _added(one: Estimate, other: Estimate, sign: float) -> Estimate:
    """`one` + sign x `other`, two independent estimates."""
    variances = np.array([one.variance, other.variance])
    dof = _satterthwaite(variances, np.array([one.dof, other.dof]))
    return Estimate(one.value + sign * other.value, float(variances.sum()), dof)


def _satterthwaite(variances: FloatArray, dofs: FloatArray) -> float:
    """Degrees of freedom of a sum of variances; the smallest where all variances are 0."""
    if not variances.any():
        return float(dofs.min())
    known = variances != 0
    return float(variances.sum() ** 2 / (variances[known] ** 2 / dofs[known]).sum())


def _share_won(both: Sides, sign: int) -> float:
    return float((np.sign(both.b[:, None] - both.a) * sign + 1).mean() / 2)


def _upper(share: float, sizes: Sequence[tuple[int, int]], t: float) -> float:
    """The largest p with p - share <= t sqrt(the variance of `share` if p were true)."""
    from scipy.optimize import brentq

    def deviation(p: float) -> float:
        grows = (1 - p) / (2 - p) + p / (1 + p)
        parts = [p * (1 - p) * (1 + ((m + n) / 2 - 1) * grows) / (m * n) for m, n in sizes]
        return math.sqrt(sum(parts)) / len(sizes)

    if share >= 1:
        return 1.0
    return float(brentq(lambda p: p - share - t * deviation(p), max(share, 1e-12), 1.0))
