"""Cadences of events, in environment steps."""

from __future__ import annotations


class Every:
    """A cadence: true once in every `period` environment steps; never if `period` is None."""

    def __init__(self, period: int | None, env_steps: int = 0) -> None:
        """Becomes true for the first time at the next multiple of `period` after `env_steps`."""
        self._period = period
        self._next = None if period is None else (env_steps // period + 1) * period

    def __call__(self, env_steps: int) -> bool:
        """Whether a multiple of the period was passed since the last True."""
        if self._period is None or self._next is None or env_steps < self._next:
            return False
        self._next = (env_steps // self._period + 1) * self._period
        return True
