"""Compares one quantity of the runs of two sides, task by task and overall."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from walle.analysis.comparing.matching import Pairing, Question, Side
from walle.analysis.loading.directories import Scalar
from walle.analysis.measuring import stats
from walle.analysis.measuring.groups import measure, share_spread
from walle.analysis.measuring.stats import Estimate, Interval, Sides
from walle.analysis.measuring.wall_clock import iterations_after_warmup, seconds_per_run, unit_of
from walle.analysis.runs import Sweep

OVERALL = "overall"
SCORE = "final score"
UNKNOWN = Interval(math.nan)
SPEEDS = {
    "iteration_s": "steps per second",
    "collect_s": "steps per second of collecting",
    "learn_s": "steps per second of learning",
}
Seeded = Mapping[tuple[Scalar, int], float]  # by seed and, where a seed repeats, by number


class Quantity(NamedTuple):
    """A quantity that is compared."""

    name: str  # its name in the table
    per_run: Mapping[str, float]  # the number of each run that has one
    higher: bool = True  # whether higher is better
    # Whether the seed decides it, so that runs of one seed depend on each other even with different
    # numbers of processes
    seeded: bool = False
    learned: bool = False  # whether the number of processes does not change it at all


class Comparison(NamedTuple):
    """A quantity compared on one task, or overall; an interval that makes no sense is NaN."""

    of: Quantity  # the quantity
    label: str  # the task and other keys that vary, or `overall`
    tasks: Sequence[Sides]  # the runs of each task, more than one for `overall`
    difference: Interval = UNKNOWN  # mean(B) - mean(A); NaN overall, as tasks have different units
    # The same in the task's range: from 0, the start, to 1, the better side's mean
    scaled: Interval = UNKNOWN
    # Mean(B) / mean(A), where all numbers are positive; overall the geometric mean
    ratio: Interval = UNKNOWN
    improvement: Interval = UNKNOWN  # the probability that a run of B is better than one of A
    # The task's range, None where the better side's mean is not above the start
    range: tuple[float, float] | None = None
    # The numbers of A and B, where they are not the means of their runs
    centres: tuple[float, float] | None = None

    @property
    def identical(self) -> bool:
        """Whether A and B agree in every run."""
        return all(both.identical for both in self.tasks)


def compare(
    quantity: Quantity,
    pairings: Sequence[Pairing],
    *,
    blocks: bool,
    starts: Mapping[str, float] | None = None,
) -> list[Comparison]:
    """Compares a quantity in each pairing that has it on both sides, and overall.

    With `blocks`, runs with the same seed ran in the same block of time, as in one sweep, and their
    times are paired. What is learned is paired where `Pairing.same_start`. `starts` holds the
    return with which each run began, for `scaled`.
    """
    samples = _samples(quantity, pairings)
    tasks = {
        label: sides(a, b, shared=pairing.same_start if quantity.learned else blocks)
        for label, (pairing, a, b) in samples.items()
    }
    if not tasks:
        return []
    ranges: dict[str, tuple[float, float] | None] = dict.fromkeys(tasks)
    if starts:
        for label, (pairing, _, _) in samples.items():
            names = [n for n in (*pairing.a.values(), *pairing.b.values()) if n in starts]
            start = float(np.mean([starts[name] for name in names])) if names else math.nan
            best = float(max(tasks[label].a.mean(), tasks[label].b.mean()))
            ranges[label] = (start, best) if best > start else None
    scaled = {}
    for label, ends in ranges.items():
        if ends:
            value, variance, dof = stats.difference(tasks[label])
            way = ends[1] - ends[0]
            scaled[label] = Estimate(value / way, variance / way**2, dof)
    ratios = _log_ratios(tasks)
    found = [
        Comparison(
            quantity,
            label,
            [both],
            stats.difference(both).interval(),
            scaled[label].interval() if label in scaled else UNKNOWN,
            ratios[label].interval(math.exp) if ratios else UNKNOWN,
            stats.improvement([both], higher=quantity.higher),
            ranges[label],
        )
        for label, both in tasks.items()
    ]
    if len(found) < 2:
        return found
    if quantity.seeded and not quantity.learned:
        return [*found, _overall_seeded(quantity, samples, list(tasks.values()), blocks=blocks)]
    counted = {label: tasks[label] for label in scaled} if scaled else tasks
    return [*found, _overall(quantity, counted, list(scaled.values()))]


def compare_speeds(
    sweep: Sweep, pairings: Sequence[Pairing], asked: Question, *, warmup: int
) -> list[Comparison]:
    """Compares environment steps per second of all time, of collecting and of learning.

    Seconds, blocks and spread are those of speedups.
    """
    frame, unit = iterations_after_warmup(sweep, warmup), unit_of(sweep).steps
    comparisons = []
    for column, name in SPEEDS.items():
        seconds = seconds_per_run(sweep, frame, column)
        positive = {run: values for run, values in seconds.items() if values.mean() > 0}
        cells = share_spread(sweep, measure(sweep, positive, asked.key))
        cell_of = {name: cell for cell in cells for name in cell.names}
        found, ratios = [], []
        for pairing in pairings:
            a, b = (
                next((cell_of[name] for name in side.values() if name in cell_of), None)
                for side in (pairing.a, pairing.b)
            )
            if a is None or b is None:
                continue
            both = Sides(unit / a.per_run, unit / b.per_run, bool(a.blocks))
            ratio = Estimate(math.log(a.compared / b.compared))
            difference = Interval(unit / b.compared - unit / a.compared)
            if a.own and b.own:
                dof = min(a.dof, b.dof)
                variance = float(np.log(a.draws).var() + np.log(b.draws).var())
                ratio = ratio._replace(variance=variance, dof=dof)
                draws = unit / b.draws - unit / a.draws
                bounds = stats.interval_bounds(draws, math.inf, dof=dof)
                difference = Interval(difference.value, *bounds)
            ratios.append(ratio)
            found.append(
                Comparison(
                    Quantity(name, {}),
                    pairing.label,
                    [both],
                    difference,
                    ratio=ratio.interval(math.exp),
                    improvement=stats.improvement([both]),
                    centres=(unit / a.compared, unit / b.compared),
                )
            )
        comparisons += found
        if len(found) > 1:
            tasks = [both for one in found for both in one.tasks]
            whole = stats.overall(ratios, pooled=True).interval(math.exp)
            better = stats.improvement(tasks)
            quantity = Quantity(name, {})
            comparisons.append(
                Comparison(quantity, OVERALL, tasks, ratio=whole, improvement=better)
            )
    return comparisons


def _overall(
    quantity: Quantity, tasks: Mapping[str, Sides], scaled: Sequence[Estimate]
) -> Comparison:
    ratios = _log_ratios(tasks)
    return Comparison(
        quantity,
        OVERALL,
        list(tasks.values()),
        scaled=stats.overall(scaled).interval() if scaled else UNKNOWN,
        ratio=stats.overall(list(ratios.values())).interval(math.exp) if ratios else UNKNOWN,
        improvement=stats.improvement(list(tasks.values()), higher=quantity.higher),
    )


def _overall_seeded(
    quantity: Quantity,
    samples: Mapping[str, tuple[Pairing, Seeded, Seeded]],
    each: Sequence[Sides],
    *,
    blocks: bool,
) -> Comparison:
    """Over tasks, of each seed's mean over the numbers of processes.

    The times to a return of a seed depend on each other, whatever the number of samplers, because
    learning takes the same steps: they count as one value. Two seeds may agree by chance, so the
    variance is at least the relative one of `each`, the tasks with each number of processes,
    pooled; its degrees of freedom are those of the tasks.
    """
    by_task: dict[str, list[tuple[Seeded, Seeded]]] = {}
    for pairing, a, b in samples.values():
        by_task.setdefault(pairing.learning, []).append((a, b))
    tasks = {
        task: sides(*(_means(part) for part in zip(*pairs, strict=True)), shared=blocks)
        for task, pairs in by_task.items()
    }
    found, ratios = _overall(quantity, tasks, []), _log_ratios(tasks)
    if not ratios or all(both.identical for both in each):
        return found
    own = stats.overall(list(ratios.values()))
    values = stats.pooled_log_ratios(list(tasks.values()), like=each)
    pooled = stats.overall(values, pooled=True)
    return found._replace(ratio=stats.wider(own, pooled).interval(math.exp))


def _means(parts: Sequence[Seeded]) -> Seeded:
    keys = dict.fromkeys(key for part in parts for key in part)
    return {key: float(np.mean([part[key] for part in parts if key in part])) for key in keys}


def _samples(
    quantity: Quantity, pairings: Sequence[Pairing]
) -> dict[str, tuple[Pairing, Seeded, Seeded]]:
    """The numbers of both sides by label; what is learned counts once for all `sampler.n`."""

    def numbers(side: Side) -> Seeded:
        return {key: quantity.per_run[n] for key, n in side.items() if n in quantity.per_run}

    by_learning: dict[str, list[Pairing]] = {}
    for pairing in pairings:
        key = pairing.learning if quantity.learned else pairing.label
        by_learning.setdefault(key, []).append(pairing)
    found = {}
    for learning, alike in by_learning.items():
        pairs = [(pairing, numbers(pairing.a), numbers(pairing.b)) for pairing in alike]
        full = [(pairing, a, b) for pairing, a, b in pairs if a and b]
        once = merged([(a, b) for _, a, b in full])
        for i, (a, b) in once.items():
            label = learning if len(once) == 1 else full[i][0].label
            found[label] = (full[i][0], a, b)
    return found


def _log_ratios(tasks: Mapping[str, Sides]) -> dict[str, Estimate]:
    """The logarithmic ratio of each task; none where a number is not positive."""
    if any(min(both.a.min(), both.b.min()) <= 0 for both in tasks.values()):
        return {}
    return {label: stats.log_ratio(both) for label, both in tasks.items()}


def sides(a: Seeded, b: Seeded, *, shared: bool) -> Sides:
    """The two samples, paired by seed if the seeds are the same and `shared` by learning."""
    paired = shared and set(a) == set(b)
    partners = [b[key] for key in a] if paired else list(b.values())
    return Sides(np.array(list(a.values()), float), np.array(partners, float), paired)


def merged(samples: Sequence[tuple[Seeded, Seeded]]) -> dict[int, tuple[Seeded, Seeded]]:
    """Puts samples together that hold the same runs again, so that each run counts once.

    Learning is the same for every number of samplers, so runs of `sampler.n` 1 and 2 hold the
    same returns for the same seed. Samples are merged where all seeds that a side shares agree
    exactly; one side is enough, as runs without lag can stand beside free-running ones. A run
    that is not there yet is a further run of its seed. The key of a merged sample is the index of
    its first one.
    """

    def agree(old: Seeded, new: Seeded) -> bool:
        shared = set(old) & set(new)
        return bool(shared) and all(old[key] == new[key] for key in shared)

    def union(old: Seeded, new: Seeded) -> Seeded:
        found = dict(old)
        for (seed, _), value in new.items():
            same = [other for (of, _), other in found.items() if of == seed]
            if value not in same:
                found[seed, len(same)] = value
        return found

    found: dict[int, tuple[Seeded, Seeded]] = {}
    for number, new in enumerate(samples):
        for first, old in found.items():
            if agree(old[0], new[0]) or agree(old[1], new[1]):
                found[first] = (union(old[0], new[0]), union(old[1], new[1]))
                break
        else:
            found[number] = new
    return found
