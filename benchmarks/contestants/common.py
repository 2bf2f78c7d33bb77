"""The common parts of the contestants: a policy, and the report of a block of work."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

LOG_STD = -0.5


class Policy:
    """A Gaussian policy of two tanh layers of 64, freshly initialised: walle's, in plain torch.

    Like walle, it scales actions from [-1, 1] to the bounds and clips them.
    """

    def __init__(self, obs_dim: int, low: np.ndarray, high: np.ndarray, seed: int = 0) -> None:
        """Draws the parameters."""
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        sizes = (obs_dim, 64, 64, len(low))
        layers: list[torch.nn.Module] = []
        for i, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
            linear = torch.nn.Linear(n_in, n_out)
            torch.nn.init.orthogonal_(linear.weight, 0.01 if i == 2 else math.sqrt(2))
            torch.nn.init.zeros_(linear.bias)
            layers += [linear, torch.nn.Tanh()]
        self._net = torch.nn.Sequential(*layers[:-1])
        self._std = math.exp(LOG_STD)
        self._low, self._high = (torch.as_tensor(b, dtype=torch.float32) for b in (low, high))
        self._scale, self._centre = (self._high - self._low) / 2, (self._high + self._low) / 2

    @torch.inference_mode()
    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Maps observations [L, O] to actions [L, A] in the environment's units."""
        mean = self._net(torch.as_tensor(obs, dtype=torch.float32))
        action = mean + self._std * torch.randn_like(mean)
        return torch.clamp(action * self._scale + self._centre, self._low, self._high).numpy()


def report(blocks: Iterable[int]) -> None:
    """Prints a JSON line per block of work: steps, and when it began and ended (monotonic)."""
    start = time.monotonic()
    for steps in blocks:
        end = time.monotonic()
        print(json.dumps([steps, start, end]), flush=True)
        start = time.monotonic()


def make_env(task: str) -> Any:
    """Makes a Gymnasium environment with its default arguments."""
    import gymnasium as gym

    return gym.make(task)
