"""How many updates are due after how many environment steps."""

from __future__ import annotations

import math


class Limiter:
    """Counts due updates: `per_step` for every environment step after the first `starts` steps.

    The count depends only on the environment steps so far, so every mode takes the same updates.
    Updates are taken in whole blocks; a remainder waits for the next call.
    """

    def __init__(self, per_step: float, starts: int, block: int) -> None:
        """A block has `block` updates."""
        self._per_step, self._starts, self._block = per_step, starts, block
        self.inserted = 0
        self.blocks = 0

    @property
    def started(self) -> bool:
        """Whether learning has begun."""
        return self.inserted >= self._starts

    def insert(self, steps: int) -> int:
        """Counts `steps` more environment steps; returns the number of blocks that are now due."""
        self.inserted += steps
        owed = math.floor(self._per_step * max(0, self.inserted - self._starts))
        due = owed // self._block - self.blocks
        self.blocks += due
        return due
