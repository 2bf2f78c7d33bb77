"""Cadences: what happens every so many environment steps."""

from __future__ import annotations


class Every:
    """A cadence in environment steps: true once for every `period` that passes; None is never."""

    def __init__(self, period: int | None) -> None:
        """The first time comes at `period`."""
        self._period = period
        self._next = period

    def __call__(self, env_steps: int) -> bool:
        """Whether a period has passed since the last true."""
        if self._period is None or self._next is None or env_steps < self._next:
            return False
        self._next = (env_steps // self._period + 1) * self._period
        return True
