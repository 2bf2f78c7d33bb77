"""Notices samplers that owe a rollout and are silent for too long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

LEAST_S, TIMES_THE_LONGEST = 60.0, 10.0


class Silent(NamedTuple):
    """A sampler that is silent: for how long, and what to do about it."""

    sampler: int
    seconds: float
    remedy: Literal["tell", "replace"]


class Silence:
    """The time since each sampler owes its next rollout.

    The limit is `timeout_s`; if that is None, ten times the longest round so far and a minute at
    least. After one limit a sampler is named, after two it is replaced.
    """

    def __init__(
        self, samplers: int, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begins with samplers that owe nothing."""
        self._timeout_s, self._clock = timeout_s, clock
        self._since: list[float | None] = [None] * samplers
        self._told: set[int] = set()
        self._longest_s = 0.0

    @property
    def limit_s(self) -> float:
        """The seconds of silence after which a sampler is named."""
        if self._timeout_s is not None:
            return self._timeout_s
        return max(LEAST_S, TIMES_THE_LONGEST * self._longest_s)

    def update(self, sampler: int, *, owes: bool) -> None:
        """Notes whether the sampler owes a rollout now; its time runs from the first such note."""
        if not owes:
            self.heard(sampler)
        elif self._since[sampler] is None:
            self._since[sampler] = self._clock()

    def heard(self, sampler: int, took_s: float = 0.0) -> None:
        """Notes a sign of life; `took_s` is the time of the round that it delivered, if any."""
        self._since[sampler] = None
        self._told.discard(sampler)
        self._longest_s = max(self._longest_s, took_s)

    def wait_s(self) -> float | None:
        """Seconds until the next sampler is overdue; None if no sampler owes anything."""
        limits = [
            since + self.limit_s * (2 if sampler in self._told else 1)
            for sampler, since in enumerate(self._since)
            if since is not None
        ]
        return max(0.0, min(limits) - self._clock()) if limits else None

    def overdue(self) -> list[Silent]:
        """The samplers to name now, once each, and those to replace."""
        found, now = [], self._clock()
        for sampler, since in enumerate(self._since):
            if since is None or now - since < self.limit_s:
                continue
            if now - since >= 2 * self.limit_s and sampler in self._told:
                found.append(Silent(sampler, now - since, "replace"))
            elif sampler not in self._told:
                self._told.add(sampler)
                found.append(Silent(sampler, now - since, "tell"))
        return found
