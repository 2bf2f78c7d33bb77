"""A linear value function of the observation and of the time in the episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from walle.learning.losses import value_loss
from walle.types import IntArray, Rollout, unique_lane_groups


class LinearBaseline:
    """Ridge regression on [o, o², t/100, (t/100)², 1], in double precision.

    The features come from Duan et al. 2016, "Benchmarking deep reinforcement learning for
    continuous control", section 4. All values are zero before the first fit.
    """

    def __init__(self, obs_dim: int, ridge: float, device: str) -> None:
        """Sets all weights to zero; `ridge` is added to the diagonal of the normal equations."""
        self._ridge = ridge
        self._weights = torch.zeros(2 * obs_dim + 3, dtype=torch.float64, device=device)

    def __call__(self, obs: Tensor, t: Tensor) -> Tensor:
        """Values [N] of normalised observations [N, O], `t` [N] steps after the episode began."""
        return (self._features(obs, t) @ self._weights).to(obs.dtype)

    def fit(self, obs: Tensor, target: Tensor, t: Tensor) -> float:
        """Solves (XᵀX + ridge I) w = Xᵀ y for targets y [N]; returns the mean squared error."""
        x = self._features(obs, t)
        normal = x.T @ x + self._ridge * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        self._weights = torch.linalg.solve(normal, x.T @ target.double())
        return float(value_loss(self(obs, t), target))

    @staticmethod
    def _features(obs: Tensor, t: Tensor) -> Tensor:
        o, time = obs.double(), t.double().unsqueeze(1) / 100
        return torch.cat((o, o.square(), time, time.square(), torch.ones_like(time)), 1)

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {"weights": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self._weights = state["weights"].to(self._weights.device)


class EpisodeClock:
    """The steps since each lane's episode began, kept from rollout to rollout."""

    def __init__(self, lanes: int) -> None:
        """Starts with all `lanes` of the run at the beginning of an episode."""
        self._elapsed = np.zeros(lanes, np.int64)

    def __call__(self, rollout: Rollout) -> IntArray:
        """The steps since the episode began, counted before every step: [T, L]."""
        ended, lane = rollout.ended, rollout.lane
        times = np.empty(ended.shape, np.int64)
        steps = np.arange(len(ended))[:, None]
        for columns in unique_lane_groups(lane):
            now = self._elapsed[lane[columns]]
            if rollout.begins.size:
                now[rollout.begins[columns]] = 0
            began = np.where(ended[:, columns], steps + 1, -now)  # the next step's episode began
            began = np.maximum.accumulate(np.vstack((-now, began)), axis=0)
            times[:, columns] = steps - began[:-1]
            self._elapsed[lane[columns]] = len(ended) - began[-1]
        return times

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {"elapsed": self._elapsed.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self._elapsed = np.asarray(state["elapsed"]).copy()
