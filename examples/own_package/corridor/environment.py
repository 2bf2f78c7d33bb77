"""An environment of one's own, named by its class: `env.id=corridor.environment:Corridor`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

LEFT = 0


class Corridor(gym.Env[np.ndarray, int]):
    """A walk from the middle of a corridor to its right end, which is worth 1; a step costs 0.02.

    The policy sees its place, from -1 at the left end to 1 at the right end.
    """

    def __init__(self, length: int = 21) -> None:
        """`length` comes from `env.kwargs`."""
        self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._length = length
        self._place = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins within two places of the middle."""
        super().reset(seed=seed, options=options)
        self._place = self._length // 2 + int(self.np_random.integers(-2, 3))
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Goes one place to the left or to the right."""
        move = -1 if action == LEFT else 1
        self._place = min(max(self._place + move, 0), self._length - 1)
        arrived = self._place == self._length - 1
        return self._observation(), float(arrived) - 0.02, arrived, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([2 * self._place / (self._length - 1) - 1], np.float32)
