"""Fits the laws of scaling to measured cells, with intervals, and says the result in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from walle.analysis.measuring import scaling, stats
from walle.analysis.measuring.cells import Cell
from walle.analysis.measuring.stats import FloatArray


class Fitted(NamedTuple):
    """A fitted law with its draws.

    Attributes:
        law: the law fitted to the means of the cells.
        draws: a law for each draw of these means, which Student's t stretched before; empty where
            the spread is not known.
        cells: the cells.
    """

    law: scaling.Law
    draws: list[scaling.Law]
    cells: list[Cell]

    @property
    def at_bound(self) -> bool:
        """Whether the law cannot describe the cells, because more workers were no faster."""
        return self.law.serial >= 1

    def interval(
        self, of: Callable[[scaling.Law], float], most: float = math.inf
    ) -> stats.Interval:
        """The number that `of` reads from the law, with its 95% interval within 0 and `most`."""
        if not self.draws:
            return stats.Interval(of(self.law))
        ends = np.quantile([of(law) for law in self.draws], [stats.TAIL, 1 - stats.TAIL])
        return stats.Interval(of(self.law), max(float(ends[0]), 0.0), min(float(ends[1]), most))

    def beyond(self, n: float) -> str:
        """Words that flag a number of workers above all that were measured; '' for others."""
        most = max(float(cell.by) for cell in self.cells)
        return f" (extrapolated: measured up to N = {most:g})" if most < n < math.inf else ""


def fit_cells(cells: list[Cell], *, coherence: bool = False) -> Fitted | None:
    """Fits the law to the cells; None for fewer than two cells, or four with `coherence`."""
    n = [float(cell.by) for cell in cells]
    if len(cells) < (4 if coherence else 2):
        return None
    law = scaling.fit(n, [cell.compared for cell in cells], coherence=coherence)
    draws = [scaling.fit(n, times, coherence=coherence) for times in stretched(cells)]
    return Fitted(law, draws, cells)


def stretched(cells: list[Cell]) -> FloatArray:
    """[draws, cells] draws of the seconds, as wide as Student's t; none where that is unknown.

    The seconds are stretched, and not what is read from a law fitted to them: at a bound many draws
    have the same serial fraction, and stretching that number adds too little (for a fraction of 2%
    or 97% from two points with two seeds its interval held the truth in about 90% of 200 trials).
    """
    dof = min(cell.dof for cell in cells)
    if dof < 1:
        return np.empty((0, len(cells)))
    stretch = stats.student(dof) / stats.student(math.inf)
    centres = np.log([cell.compared for cell in cells])
    logs = np.log(np.stack([cell.draws for cell in cells], axis=1))
    logs = np.take_along_axis(np.sort(logs, axis=0), _even_ranks(*logs.shape), axis=0)
    return np.asarray(np.exp(centres + stretch * (logs - centres)))


def _even_ranks(draws: int, cells: int) -> npt.NDArray[np.int64]:
    """[draws, cells] an order of the draws of each cell, so that all cells together vary evenly.

    The ranks of a Kronecker sequence, multiples of square roots of primes: pairs of draws in a
    random order put the ends of a 95% interval off by a few percent of its width.
    """
    roots = np.sqrt([n for n in range(2, 1000) if all(n % k for k in range(2, n))][:cells])
    places = np.outer(np.arange(1, draws + 1), roots) % 1
    return np.asarray(places.argsort(axis=0).argsort(axis=0))


def describe(cells: list[Cell], learn_s: float | None, unit: str = "round") -> list[str]:
    """Sentences: the fits of both laws, and where learning becomes the bottleneck.

    Args:
        cells: the seconds of collection of a line.
        learn_s: the mean seconds of learning; None where they are unknown.
        unit: the words for what the seconds are for, such as `round of 2,048 steps`.
    """
    amdahl = fit_cells(cells)
    if amdahl is None:
        return ["No law of scaling can be fitted to a single point."]
    sentences = [_amdahl_sentence(amdahl)]
    usl = fit_cells(cells, coherence=True)
    if usl is not None:
        sentences.append(_usl_sentence(usl))
    if learn_s is not None and not amdahl.at_bound:
        sentences.append(_bottleneck_sentence(amdahl, learn_s, unit))
    return sentences


def _amdahl_sentence(fitted: Fitted) -> str:
    serial = fitted.interval(lambda law: law.serial, most=1)
    law = fitted.law
    points = "two points only" if len(fitted.cells) == 2 else f"{len(fitted.cells)} points"
    if fitted.at_bound:
        return (
            f"Amdahl ({points}): more samplers collect no faster here, so the serial fraction is "
            f"at its bound, {_percent(serial)}, and no law is drawn."
        )
    limit = f"at most {law.limit:.3g}x" if law.serial > 0 else "no limit in sight"
    limit += fitted.beyond(law.limit)
    return f"Amdahl ({points}): serial fraction {_percent(serial)}, so {limit}."


def _usl_sentence(fitted: Fitted) -> str:
    contention = fitted.interval(lambda law: law.serial, most=1)
    coherence = fitted.interval(lambda law: law.coherence)
    best = fitted.law.best_n
    peak = "no peak" if math.isinf(best) else f"fastest at N = {best:.3g}{fitted.beyond(best)}"
    return (
        f"Universal scalability law: contention {_percent(contention)}, "
        f"coherence {_percent(coherence)}; {peak}."
    )


def _bottleneck_sentence(fitted: Fitted, learn_s: float, unit: str) -> str:
    # Where no N is enough N is infinite and has no interval; one over N is 0 and has one.
    share = fitted.interval(lambda law: 1 / law.workers_for(learn_s), most=1)
    n = stats.Interval(*(1 / x if x else math.inf for x in (share.value, share.high, share.low)))
    said = f"Learning takes {learn_s:.3g} s per {unit}"
    if n.value <= 1:
        return f"{said}: it is the bottleneck with one sampler already."
    if math.isinf(n.value):
        never = f"less than the serial part of collection{fitted.beyond(n.value)}"
        return f"{said}: {never}, so never the bottleneck."
    return f"{said}: it becomes the bottleneck from N = {n} samplers on{fitted.beyond(n.value)}."


def _percent(interval: stats.Interval) -> str:
    value, low, high = (f"{float(f'{100 * x:.2g}'):g}%" for x in interval)
    return value if math.isnan(interval.low) else f"{value} [{low}, {high}]"
