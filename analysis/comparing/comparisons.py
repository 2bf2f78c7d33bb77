"""Compares one quantity of the runs of two sides, task by task and overall."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from walle.analysis.comparing import estimates
from walle.analysis.comparing.estimates import Estimate, Seeded, Sides
from walle.analysis.comparing.matching import Group, Side
from walle.analysis.measuring.stats import Interval

OVERALL = "overall"
SCORE = "final score"
UNKNOWN = Interval(math.nan)


class Quantity(NamedTuple):
    """A quantity that is compared.

    Attributes:
        name: its name in the table.
        per_run: the number of each run that has one.
        higher: whether higher is better.
        seeded: whether the seed decides it, so that runs of one seed depend on each other even
            with different numbers of processes.
        learned: whether the number of processes does not change it at all.
    """

    name: str
    per_run: Mapping[str, float]
    higher: bool = True
    seeded: bool = False
    learned: bool = False


class Comparison(NamedTuple):
    """A quantity compared on one task, or overall; an interval that makes no sense is nan.

    Attributes:
        of: the quantity.
        label: the task and other keys that vary, or `overall`.
        tasks: the runs of each task, more than one for `overall`.
        difference: mean(B) - mean(A); nan overall, as tasks have different units.
        scaled: the same in the task's range: from 0, the start, to 1, the better side's mean.
        ratio: mean(B) / mean(A), where all numbers are positive; overall the geometric mean.
        improvement: the probability that a run of B is better than one of A.
        range: the task's range, None where the better side's mean is not above the start.
        centres: the numbers of A and B, where they are not the means of their runs.
    """

    of: Quantity
    label: str
    tasks: Sequence[Sides]
    difference: Interval = UNKNOWN
    scaled: Interval = UNKNOWN
    ratio: Interval = UNKNOWN
    improvement: Interval = UNKNOWN
    range: tuple[float, float] | None = None
    centres: tuple[float, float] | None = None

    @property
    def identical(self) -> bool:
        """Whether A and B agree in every run."""
        return all(both.identical for both in self.tasks)


def compare(
    quantity: Quantity,
    groups: Sequence[Group],
    *,
    blocks: bool,
    starts: Mapping[str, float] | None = None,
) -> list[Comparison]:
    """Compares a quantity in each group that has it on both sides, and overall.

    Args:
        quantity: the quantity.
        groups: the runs that are compared with each other.
        blocks: whether runs with the same seed ran in the same block of time, as in one sweep:
            then their times are paired. What is learned is paired where `Group.same_start`.
        starts: the return with which each run began; gives `scaled`.
    """
    samples = _samples(quantity, groups)
    tasks = {
        label: estimates.sides(a, b, shared=group.same_start if quantity.learned else blocks)
        for label, (group, a, b) in samples.items()
    }
    if not tasks:
        return []
    scaled = {
        label: _scaled(tasks[label], _start(group, starts)) if starts else None
        for label, (group, _, _) in samples.items()
    }
    ratios = _ratios(tasks)
    found = [
        Comparison(
            quantity,
            label,
            [both],
            estimates.difference(both).interval(),
            _shown(scaled[label]),
            ratios[label].interval(math.exp) if ratios else UNKNOWN,
            estimates.improvement([both], higher=quantity.higher),
            _range(both, _start(samples[label][0], starts)) if starts else None,
        )
        for label, both in tasks.items()
    ]
    if len(found) < 2:
        return found
    if quantity.seeded and not quantity.learned:
        return [*found, _overall_seeded(quantity, samples, list(tasks.values()), blocks=blocks)]
    known = {label: estimate for label, estimate in scaled.items() if estimate is not None}
    if known:
        tasks = {label: tasks[label] for label in known}
        ratios = _ratios(tasks)
    return [*found, _overall(quantity, list(tasks.values()), list(known.values()), ratios)]


def _overall(
    quantity: Quantity,
    tasks: Sequence[Sides],
    scaled: Sequence[Estimate],
    ratios: Mapping[str, Estimate],
) -> Comparison:
    score, ratio = UNKNOWN, UNKNOWN
    if scaled:
        score = estimates.overall(scaled).interval()
    if ratios:
        ratio = estimates.overall(list(ratios.values())).interval(math.exp)
    improvement = estimates.improvement(tasks, higher=quantity.higher)
    return Comparison(quantity, OVERALL, tasks, UNKNOWN, score, ratio, improvement)


def _overall_seeded(
    quantity: Quantity,
    samples: Mapping[str, tuple[Group, Seeded, Seeded]],
    each: Sequence[Sides],
    *,
    blocks: bool,
) -> Comparison:
    """Over tasks, of each seed's mean over the numbers of processes.

    Two seeds may agree by chance, so the variance is at least the relative one of `each`, the
    tasks with each number of processes, pooled; its degrees of freedom are those of the tasks.
    """
    by_task = _without_workers(samples, blocks=blocks)
    tasks, ratios = list(by_task.values()), _ratios(by_task)
    found = _overall(quantity, tasks, [], ratios)
    if not ratios or all(both.identical for both in each):
        return found
    own = estimates.overall(list(ratios.values()))
    pooled = estimates.overall(estimates.pooled_log_ratios(tasks, like=each), pooled=True)
    return found._replace(ratio=estimates.wider(own, pooled).interval(math.exp))


def _without_workers(
    samples: Mapping[str, tuple[Group, Seeded, Seeded]], *, blocks: bool
) -> dict[str, Sides]:
    """One sample for each task: the mean of each seed over the numbers of processes."""
    by_task: dict[str, list[tuple[Seeded, Seeded]]] = {}
    for group, a, b in samples.values():
        by_task.setdefault(group.learning, []).append((a, b))
    return {
        task: estimates.sides(*estimates.averaged(pairs), shared=blocks)
        for task, pairs in by_task.items()
    }


def _samples(
    quantity: Quantity, groups: Sequence[Group]
) -> dict[str, tuple[Group, Seeded, Seeded]]:
    """The numbers of both sides by label; what is learned counts once for all `sampler.n`."""
    by_learning: dict[str, list[Group]] = {}
    for group in groups:
        key = group.learning if quantity.learned else group.label
        by_learning.setdefault(key, []).append(group)
    found = {}
    for learning, alike in by_learning.items():
        pairs = [(g, _numbers(quantity, g.a), _numbers(quantity, g.b)) for g in alike]
        full = [(group, a, b) for group, a, b in pairs if a and b]
        once = estimates.merged([(a, b) for _, a, b in full])
        for i, (a, b) in once.items():
            label = learning if len(once) == 1 else full[i][0].label
            found[label] = (full[i][0], a, b)
    return found


def _numbers(quantity: Quantity, side: Side) -> Seeded:
    per_run = quantity.per_run
    return {key: per_run[name] for key, name in side.items() if name in per_run}


def _ratios(tasks: Mapping[str, Sides]) -> dict[str, Estimate]:
    """The logarithmic ratio of each task; none where a number is not positive."""
    if any(min(both.a.min(), both.b.min()) <= 0 for both in tasks.values()):
        return {}
    return {label: estimates.log_ratio(both) for label, both in tasks.items()}


def _start(group: Group, starts: Mapping[str, float]) -> float:
    """The mean return with which the group's runs began; nan where no episode ended."""
    names = [name for name in (*group.a.values(), *group.b.values()) if name in starts]
    return float(np.mean([starts[name] for name in names])) if names else math.nan


def _scaled(both: Sides, start: float) -> Estimate | None:
    """The difference in units of the way from the start to the better side's mean."""
    ends = _range(both, start)
    if ends is None:
        return None
    way = ends[1] - ends[0]
    found = estimates.difference(both)
    return Estimate(found.value / way, found.variance / way**2, found.dof)


def _range(both: Sides, start: float) -> tuple[float, float] | None:
    best = float(max(both.a.mean(), both.b.mean()))
    return (start, best) if best > start else None


def _shown(estimate: Estimate | None) -> Interval:
    return UNKNOWN if estimate is None else estimate.interval()
