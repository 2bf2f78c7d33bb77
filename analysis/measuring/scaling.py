"""Fits Amdahl's law and the universal scalability law to measured times."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from walle.analysis.measuring.stats import FloatArray


class Law(NamedTuple):
    """Time of n workers on a fixed amount of work: T(n) = T(1) [(1-s)/n + s + k (n-1)].

    With k = 0 this is Amdahl's law; k > 0 is Gunther's universal scalability law
    S(n) = n / (1 + s (n-1) + k n (n-1)).

    Attributes:
        time_1: T(1), in the unit of the fitted times.
        serial: s, the fraction of the work that more workers do not make shorter (contention).
        coherence: k, the cost of each further worker to all others, as a fraction of T(1).
    """

    time_1: float
    serial: float
    coherence: float

    def time(self, n: npt.ArrayLike) -> FloatArray:
        """T(n)."""
        n = np.asarray(n, float)
        return self.time_1 * ((1 - self.serial) / n + self.serial + self.coherence * (n - 1))

    def speedup(self, n: npt.ArrayLike, base: float = 1.0) -> FloatArray:
        """T(base) / T(n)."""
        return self.time(base) / self.time(n)

    @property
    def limit(self) -> float:
        """The speedup of infinitely many workers by Amdahl: 1/s."""
        return 1 / self.serial if self.serial > 0 else math.inf

    @property
    def best_n(self) -> float:
        """The number of workers beyond which more workers slow the work: sqrt((1-s)/k)."""
        return math.sqrt((1 - self.serial) / self.coherence) if self.coherence > 0 else math.inf

    def workers_for(self, time: float) -> float:
        """The (real) number of workers at which T(n) falls to `time`, by Amdahl's law.

        It is 1 when a single worker is fast enough, infinity when no number of workers is.
        """
        if time >= self.time_1:
            return 1.0
        parallel = self.time_1 * (1 - self.serial)
        rest = time - self.time_1 * self.serial
        return parallel / rest if rest > 0 else math.inf


def fit(n: npt.ArrayLike, time: npt.ArrayLike, *, coherence: bool = False) -> Law:
    """The law with the least sum of squared relative errors of the times, s and k >= 0.

    The law is linear in 1/n, 1 and n-1, so the fit is a non-negative least-squares problem: it has
    one solution and needs no starting point.

    Args:
        n: [points] numbers of workers.
        time: [points] the measured time of each number of workers.
        coherence: fit k too; otherwise k = 0 (Amdahl).

    Raises:
        ValueError: there are fewer different n than parameters of the law.
    """
    from scipy.optimize import nnls

    n, time = np.asarray(n, float), np.asarray(time, float)
    terms = np.stack([1 / n, np.ones_like(n), n - 1][: 3 if coherence else 2], axis=1)
    if np.unique(n).size < terms.shape[1]:
        raise ValueError(f"{terms.shape[1]} parameters from {np.unique(n).size} worker counts")
    weights, _ = nnls(terms / time[:, None], np.ones_like(n))
    parallel, serial, coherent = (*weights, 0.0)[:3]
    time_1 = parallel + serial
    return Law(float(time_1), float(serial / time_1), float(coherent / time_1))


def fit_draws(n: npt.ArrayLike, draws: npt.ArrayLike, *, coherence: bool = False) -> list[Law]:
    """Fits the law to each bootstrap draw of the times; `draws` is [draws, points]."""
    return [fit(n, times, coherence=coherence) for times in np.asarray(draws, float)]
