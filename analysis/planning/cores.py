"""The times at which samplers that begin together on one machine end, sharing its cores.

A sampler alternates between bursts of work, for which it needs a core, and waits. Bursts are short
against a time slice of the scheduler, so a core finishes a burst before it begins the next one:
first come, first served. Samplers that never wait share the cores evenly.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from walle.analysis.measuring.stats import FloatArray

MOST_BURSTS = 2_000_000  # of all samplers and rounds together; beyond them a closed form answers


class Work(NamedTuple):
    """What each sampler of a machine does for a round.

    Attributes:
        head_s: the first burst.
        bursts: the number of the other bursts, each after a wait.
        burst_s: one of them.
        wait_s: the mean of all waits together.
        deviation_s: the standard deviation of all waits, or of all work where nothing waits.
    """

    head_s: float
    bursts: int
    burst_s: float
    wait_s: float
    deviation_s: float

    @property
    def cpu_s(self) -> float:
        """Seconds of a core."""
        return self.head_s + self.bursts * self.burst_s


def ends(
    work: Work, samplers: int, cores: float, rounds: int, rng: np.random.Generator
) -> FloatArray:
    """[rounds, samplers] seconds after which the samplers end, in a random order.

    Args:
        work: what each of them does.
        samplers: their number, n.
        cores: C; a fraction of a core makes all work slower where n > C - 1.
        rounds: the number of independent rounds.
        rng: draws waits from a gamma distribution, whose sums are gamma distributed too.
    """
    whole = max(1, math.ceil(min(cores, samplers) - 1e-9))
    slower = max(1.0, whole / cores)
    work = work._replace(head_s=work.head_s * slower, burst_s=work.burst_s * slower)
    shape = (rounds, samplers)
    if not work.wait_s:
        found = shared_evenly(gamma(work.cpu_s, work.deviation_s, shape, rng), whole)
    elif samplers <= whole:
        return np.asarray(work.cpu_s + gamma(work.wait_s, work.deviation_s, shape, rng))
    elif rounds * samplers * work.bursts > MOST_BURSTS:
        found = queued_in_all(work, samplers, whole, rounds, rng)
    else:
        found = queued(work, samplers, whole, rounds, rng)
    return found if samplers == 1 else rng.permuted(found, axis=-1)


def apart(
    work: Work, samplers: int, cores: float, rounds: int, rng: np.random.Generator
) -> FloatArray:
    """[rounds, samplers] seconds of samplers that do not begin together, as in free-running.

    Each takes its own time, and no less than what all of them together need of the cores.
    """
    shape, crowd = (rounds, samplers), max(1.0, samplers / cores)
    if not work.wait_s:
        return gamma(work.cpu_s, work.deviation_s, shape, rng) * crowd
    alone = work.cpu_s + gamma(work.wait_s, work.deviation_s, shape, rng)
    return np.asarray(np.maximum(alone, work.cpu_s * crowd))


def gamma(
    mean: float, deviation: float, shape: tuple[int, ...], rng: np.random.Generator
) -> FloatArray:
    """Draws from the gamma distribution with this mean and deviation."""
    if deviation <= 0 or mean <= 0:
        return np.full(shape, mean)
    k = (mean / deviation) ** 2
    return np.asarray(rng.standard_gamma(k, shape) * (mean / k))


def shared_evenly(work_s: FloatArray, cores: int) -> FloatArray:
    """[..., n] the ends of n pieces of work that begin together and share the cores evenly.

    While k of them are left each gets min(1, cores / k) of a core.
    """
    n = work_s.shape[-1]
    if n <= cores:
        return work_s
    ordered = np.sort(work_s, axis=-1)
    left = np.maximum(1.0, np.arange(n, 0, -1) / cores)
    return np.asarray(np.cumsum(np.diff(ordered, axis=-1, prepend=0.0) * left, axis=-1))


def queued(
    work: Work, samplers: int, cores: int, rounds: int, rng: np.random.Generator
) -> FloatArray:
    """[rounds, n] the ends of samplers that queue for the cores, burst by burst.

    The k-th bursts of all samplers are served in the order in which they come. That a quick
    sampler's next burst may come before a slow one's last is left out, so all of a round's work is
    a lower bound of its own. Within 6% of a queue of events, which takes 20 times as long.
    """
    now = first_come(np.zeros((rounds, samplers)), work.head_s, cores)
    each = work.wait_s / work.bursts, work.deviation_s / math.sqrt(work.bursts)
    for _ in range(work.bursts):
        now = first_come(now + gamma(*each, now.shape, rng), work.burst_s, cores)
    least = work.cpu_s * np.arange(1, samplers + 1) / cores
    return np.asarray(np.maximum(np.sort(now, axis=-1), least))


def first_come(arrivals: FloatArray, service_s: float, cores: int) -> FloatArray:
    """[..., n] the ends of equal bursts that arrive at these times, in the order of arrival.

    The m-th burst of a core ends at D_m = s + max(A_m, D_(m-1)) = (m + 1) s + max over j <= m of
    A_j - j s (Lindley's recursion).
    """
    n = arrivals.shape[-1]
    ends: FloatArray = np.sort(arrivals, axis=-1)
    for core in range(min(cores, n)):
        mine = ends[..., core::cores]
        ahead = np.arange(mine.shape[-1]) * service_s
        mine[...] = np.maximum.accumulate(mine - ahead, axis=-1) + ahead + service_s
    return ends


def queued_in_all(
    work: Work, samplers: int, cores: int, rounds: int, rng: np.random.Generator
) -> FloatArray:
    """`queued` in closed form: the k-th sampler is k / C bursts late, or the cores never rest."""
    alone = work.cpu_s + gamma(work.wait_s, work.deviation_s, (rounds, samplers), rng)
    place = np.arange(samplers)
    late = place // cores * max(work.head_s, work.burst_s)
    least = work.cpu_s * (place + 1) / cores
    return np.asarray(np.maximum(np.sort(alone + late, axis=-1), least))
