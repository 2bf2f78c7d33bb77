"""Splits the seconds of a round into those that samplers or learners divide, and the serial part.

A round of N samplers and L learners that take turns takes t(N, L) = serial + collect x + learn y,
where x is the largest share of the lanes that a sampler has, about 1/N, and y the largest share of
a minibatch's shards that a learner has, about 1/L.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from walle.analysis.measuring import fits, stats
from walle.analysis.measuring.cells import Cell


class Shares(NamedTuple):
    """The largest shares of a round that a sampler collects and that a learner learns from."""

    sampler: float
    learner: float


class Parts(NamedTuple):
    """The seconds of a round with one sampler and one learner, by what shortens them.

    Attributes:
        serial: neither more samplers nor more learners.
        collect: more samplers.
        learn: more learners.
    """

    serial: float
    collect: float
    learn: float

    def time(self, shares: Shares) -> float:
        """Seconds of a round of so many workers."""
        return self.serial + self.collect * shares.sampler + self.learn * shares.learner

    def speedup(self, shares: Shares, base: Shares = Shares(1.0, 1.0)) -> float:  # noqa: B008
        """How much faster a round is than with the workers of `base`."""
        return self.time(base) / self.time(shares)


def largest_share(pieces: int, workers: int) -> float:
    """The share of the worker that has most of so many equal pieces: ⌈pieces / workers⌉ / pieces.

    It is 1/4 of 8 pieces for 4 workers and 3/8 for 3; workers beyond the pieces have nothing to do.
    """
    return math.ceil(pieces / workers) / pieces


def fit(shares: Sequence[Shares], seconds: Sequence[float]) -> Parts:
    """The parts with the least sum of squared relative errors of the seconds, all >= 0.

    What a share that never varies would divide cannot be told from the serial part, and is in it.

    Args:
        shares: of each measurement.
        seconds: of a round in each measurement.

    Raises:
        ValueError: there are fewer different shares than parts that could be told apart.
    """
    from scipy.optimize import nnls

    times = np.asarray(seconds, float)
    terms = np.array([(1.0, *each) for each in shares])
    told = [0, *(i for i in (1, 2) if np.unique(terms[:, i]).size > 1)]
    if np.linalg.matrix_rank(terms[:, told]) < len(told):
        raise ValueError(f"{len(told)} parts cannot be told apart by shares {sorted(set(shares))}")
    weights = np.zeros(3)
    weights[told], _ = nnls(terms[:, told] / times[:, None], np.ones_like(times))
    return Parts(*(float(weight) for weight in weights))


class FittedParts(NamedTuple):
    """Fitted parts with their draws.

    Attributes:
        parts: fitted to the means of the cells.
        draws: the parts of each draw of these means; empty where the spread is not known.
    """

    parts: Parts
    draws: list[Parts]

    def interval(self, of: Callable[[Parts], float]) -> stats.Interval:
        """The number that `of` reads from the parts, with its 95% interval above 0."""
        if not self.draws:
            return stats.Interval(of(self.parts))
        low, high = np.quantile([of(each) for each in self.draws], [stats.TAIL, 1 - stats.TAIL])
        return stats.Interval(of(self.parts), max(float(low), 0.0), float(high))


def fit_cells(cells: list[Cell], shares: Sequence[Shares]) -> FittedParts:
    """Fits the parts to the seconds of the cells, with the spread of their repeats.

    Raises:
        ValueError: see `fit`.
    """
    parts = fit(shares, [cell.compared for cell in cells])
    return FittedParts(parts, [fit(shares, times) for times in fits.stretched(cells)])
