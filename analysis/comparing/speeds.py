"""Compares the speeds of two sides by the same seconds, blocks and spread as speedups."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from walle.analysis.comparing import estimates
from walle.analysis.comparing.comparisons import OVERALL, UNKNOWN, Comparison, Quantity
from walle.analysis.comparing.estimates import Estimate, Sides
from walle.analysis.comparing.matching import Group, Question
from walle.analysis.measuring import stats
from walle.analysis.measuring.cells import Cell, iterations_after_warmup, measure
from walle.analysis.measuring.spread import share_spread
from walle.analysis.measuring.times import seconds_per_run, unit_of
from walle.analysis.runs import Sweep

SPEEDS = {
    "iteration_s": "steps per second",
    "collect_s": "steps per second of collecting",
    "learn_s": "steps per second of learning",
}


def compare(
    sweep: Sweep, groups: Sequence[Group], asked: Question, *, warmup: int
) -> list[Comparison]:
    """Compares environment steps per second of all time, of collecting and of learning.

    Args:
        sweep: the runs of both sides.
        groups: the runs that are compared with each other.
        asked: the key and its two values.
        warmup: the number of iterations of each run that do not count.
    """
    frame = iterations_after_warmup(sweep, warmup)
    found = []
    for column, name in SPEEDS.items():
        seconds = seconds_per_run(sweep, frame, column)
        positive = {run: values for run, values in seconds.items() if values.mean() > 0}
        cells = share_spread(sweep, measure(sweep, positive, asked.key))
        found += _of_quantity(Quantity(name, {}), cells, groups, unit_of(sweep).steps)
    return found


def _of_quantity(
    quantity: Quantity, cells: Sequence[Cell], groups: Sequence[Group], unit: int
) -> list[Comparison]:
    """The comparison of each group with seconds on both sides, and overall where several have."""
    cell_of = {name: cell for cell in cells for name in cell.names}
    found, ratios = [], []
    for group in groups:
        a, b = (
            next((cell_of[name] for name in side.values() if name in cell_of), None)
            for side in (group.a, group.b)
        )
        if a is None or b is None:
            continue
        both = Sides(unit / a.per_run, unit / b.per_run, bool(a.blocks))
        ratio = _log_ratio(a, b)
        found.append(
            Comparison(
                quantity,
                group.label,
                [both],
                _difference(a, b, unit),
                ratio=ratio.interval(math.exp),
                improvement=estimates.improvement([both]),
                centres=(unit / a.compared, unit / b.compared),
            )
        )
        ratios.append(ratio)
    if len(found) < 2:
        return found
    tasks = [both for one in found for both in one.tasks]
    whole = estimates.overall(ratios, pooled=True).interval(math.exp)
    better = estimates.improvement(tasks)
    return [*found, Comparison(quantity, OVERALL, tasks, ratio=whole, improvement=better)]


def _log_ratio(a: Cell, b: Cell) -> Estimate:
    """log(speed of B / speed of A), as `speedups` has it: within blocks where there are any."""
    value = math.log(a.compared / b.compared)
    if not (a.own and b.own):
        return Estimate(value)
    variance = float(np.log(a.draws).var() + np.log(b.draws).var())
    return Estimate(value, variance, min(a.dof, b.dof))


def _difference(a: Cell, b: Cell, unit: int) -> stats.Interval:
    value = unit / b.compared - unit / a.compared
    if not (a.own and b.own):
        return UNKNOWN._replace(value=value)
    draws, dof = unit / b.draws - unit / a.draws, min(a.dof, b.dof)
    return stats.Interval(value, *stats.interval_bounds(draws, math.inf, dof=dof))
