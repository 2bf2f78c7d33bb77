"""An environment whose steps wait, as a stand-in for a robot or a remote simulator.

Waiting needs no core, so this shows how samplers scale past the number of a machine's cores. With a
deviation some steps take much longer than others, and a round waits for the slowest sampler.
Its id is `walle.envs.slow:Slow-v0`.
"""

from __future__ import annotations

import math
import time
from typing import Any

import gymnasium as gym
import numpy as np

from walle.types import AnyArray


class SlowEnv(gym.Env[AnyArray, AnyArray]):
    """A point on a line, pushed by the action, rewarded for staying at the origin.

    x' = 0.9 x + 0.1 a + 0.01 e with e standard normal; the reward is -x'^2.
    """

    def __init__(
        self,
        step_ms: float = 5.0,  # milliseconds that a step waits; with a deviation, their mean
        step_ms_std: float = 0.0,  # their deviation, of a log-normal distribution; 0: none
    ) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._step_s = step_ms / 1000
        # A log-normal x has E[x] = exp(m + v / 2) and Var[x] = E[x]^2 (exp(v) - 1).
        variance = math.log1p((step_ms_std / step_ms) ** 2) if step_ms_std else 0.0
        self._log_mean, self._log_std = -variance / 2, math.sqrt(variance)
        self._delays: np.random.Generator | None = None
        self._x = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AnyArray, dict[str, Any]]:
        """Draws the point uniformly from [-1, 1]."""
        super().reset(seed=seed, options=options)
        if self._log_std and (seed is not None or self._delays is None):
            self._delays = self.np_random.spawn(1)[0]  # leaves the lane's own numbers unchanged
        self._x = float(self.np_random.uniform(-1, 1))
        return np.array([self._x]), {}

    def step(self, action: AnyArray) -> tuple[AnyArray, float, bool, bool, dict[str, Any]]:
        """Waits, then moves the point."""
        delay = self._delays
        time.sleep(self._step_s * (delay.lognormal(self._log_mean, self._log_std) if delay else 1))
        push = float(np.asarray(action, np.float64)[0])
        self._x = 0.9 * self._x + 0.1 * push + 0.01 * float(self.np_random.standard_normal())
        return np.array([self._x]), -(self._x**2), False, False, {}


gym.register("Slow-v0", entry_point="walle.envs.slow:SlowEnv", max_episode_steps=200)
