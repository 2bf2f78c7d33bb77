"""Dealing: how many lanes each sampler steps, in proportion to the samplers' recent speeds."""

from __future__ import annotations

from collections.abc import Sequence

UNEVEN = 1.15  # lanes move if the slowest sampler takes this many times as long as the quickest
WINDOW_S = 1.0  # work of each sampler over which its speed is measured, in seconds
MOST = 2  # a sampler's lanes at most, as a multiple of its initial ones


class Dealer:
    """Measures the samplers' speeds and decides on the numbers of their lanes."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts, self._most = list(counts), [MOST * count for count in counts]
        self._speeds: list[float] = []
        self._start_window()

    def _start_window(self) -> None:
        self._steps, self._seconds = [0] * len(self._counts), [0.0] * len(self._counts)

    def note(self, steps: Sequence[int], seconds: Sequence[float]) -> None:
        """Notes the environment steps of a round and the seconds of work, by sampler."""
        self._steps = [a + b for a, b in zip(self._steps, steps, strict=True)]
        self._seconds = [a + b for a, b in zip(self._seconds, seconds, strict=True)]

    def deal(self) -> list[int] | None:
        """The numbers of lanes from now on, by sampler; None if they stay.

        The round ends soonest if each lane in turn goes to the sampler that would finish it first.
        """
        if min(self._seconds) < WINDOW_S:
            return None
        speeds = [n / s for n, s in zip(self._steps, self._seconds, strict=True)]
        # The mean with the earlier speeds: what is slow for a moment alone keeps its lanes.
        earlier = self._speeds or speeds
        self._speeds = [(a + b) / 2 for a, b in zip(earlier, speeds, strict=True)]
        self._start_window()
        times = [count / speed for count, speed in zip(self._counts, self._speeds, strict=True)]
        if max(times) < UNEVEN * min(times):
            return None
        before, self._counts = self._counts, [1] * len(self._counts)
        for _ in range(sum(before) - len(before)):
            free = [i for i, count in enumerate(self._counts) if count < self._most[i]]
            next_one = min(free, key=lambda i: (self._counts[i] + 1) / self._speeds[i])
            self._counts[next_one] += 1
        return self._counts if self._counts != before else None
