"""How fast each core does the same work, and how busy other programs keep the cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from statistics import median
from typing import Any, NamedTuple

from walle.system.machine import busy_s

PIECES = 20  # of work for each core, about 0.05 s each
MOST_PIECES = 400  # on all cores together: machines with more than 20 cores do fewer on each
FEWEST_PIECES = 3


class CoreSpeeds(NamedTuple):
    """A check of all cores.

    Attributes:
        work_s: the median of the seconds of a piece of work on each core.
        others_busy: the mean number of these cores that other programs kept busy meanwhile; None
            where the kernel does not tell.
    """

    work_s: dict[int, float]
    others_busy: float | None

    def as_record(self) -> dict[str, Any]:
        """The launch as manifest.json holds it."""
        cores = {str(core): round(seconds, 6) for core, seconds in self.work_s.items()}
        return {"work_s": cores, "others_busy": rounded(self.others_busy)}


class OthersClock:
    """Counts the processor time that other programs use on some cores."""

    def __init__(
        self,
        cores: Sequence[int],
        busy: Callable[[Sequence[int]], float | None] = busy_s,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts to count.

        Args:
            cores: the cores to watch.
            busy: seconds that the cores were busy since the machine started, summed.
            now: seconds on a monotonic clock.
        """
        self._cores, self._busy, self._now = cores, busy, now
        self._busy_s, self._start_s = busy(cores), now()

    def others_busy(self, own_s: float) -> float | None:
        """The mean number of cores that other programs kept busy; None if it is not known.

        Args:
            own_s: processor seconds of the work that was not other programs'.
        """
        busy, elapsed_s = self._busy(self._cores), self._now() - self._start_s
        if busy is None or self._busy_s is None or elapsed_s <= 0:
            return None
        return max(0.0, (busy - self._busy_s - own_s) / elapsed_s)


def rounded(number: float | None) -> float | None:
    """The number with three digits after the point."""
    return None if number is None else round(number, 3)


def time_on(core: int) -> float:
    """Seconds that one piece of work takes on a core; leaves this thread pinned to it."""
    os.sched_setaffinity(0, {core})
    start_s = time.perf_counter()
    _work()
    return time.perf_counter() - start_s


def _work() -> int:
    """A fixed amount of work that stays in the core's own cache."""
    total = 0
    for number in range(500_000):
        total += number * number % 7
    return total


def core_speeds(
    cores: Sequence[int],
    stop: Collection[int] = (),
    time_one: Callable[[int], float] = time_on,
    clock: Callable[[Sequence[int]], OthersClock] = OthersClock,
) -> CoreSpeeds | None:
    """Times the same work on one core after the other, several times round.

    Args:
        cores: to check.
        stop: the check ends early when something is in it.
        time_one: seconds of a piece of work on a core.
        clock: counts the time of other programs.

    Returns:
        The speeds; None if it ended early.
    """
    found: dict[int, list[float]] = {core: [] for core in cores}
    allowed = os.sched_getaffinity(0)
    others, own_s = clock(cores), time.thread_time()
    try:
        for _ in range(max(FEWEST_PIECES, min(PIECES, MOST_PIECES // len(cores)))):
            for core in cores:
                if stop:
                    return None
                found[core].append(time_one(core))
    finally:
        os.sched_setaffinity(0, allowed)
    work_s = {core: median(seconds) for core, seconds in found.items()}
    return CoreSpeeds(work_s, others.others_busy(time.thread_time() - own_s))
