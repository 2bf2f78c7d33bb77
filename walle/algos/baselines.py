"""State-value functions that are fitted anew to every round: a network, or ridge regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from walle.learning.losses import value_loss
from walle.learning.sgd import AdamSettings, AdamState, Batch, Info, Sgd
from walle.nets.critics import Critic
from walle.types import BoolArray, IntArray, unique_lane_groups


class Baseline(Protocol):
    """V(s, t), with t the steps since the episode began."""

    def __call__(self, obs: Tensor, t: Tensor) -> Tensor:
        """Values [N] of normalised observations [N, O] at times [N]."""
        ...

    def fit(self, obs: Tensor, t: Tensor, target: Tensor) -> float:
        """Fits the targets [N]; returns the mean squared error."""
        ...

    def optimizers(self) -> Sequence[Sgd]:
        """Those that several learners can share."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        ...


class FitSettings(NamedTuple):
    """How a network is fitted: passes over a round, rows a gradient step, Adam's step size."""

    epochs: int
    minibatch_size: int
    learning_rate: float


class NeuralBaseline:
    """A network of the observation alone, fitted by minibatch Adam."""

    def __init__(
        self, critic: Critic, settings: FitSettings, generator: torch.Generator, device: str
    ) -> None:
        """Draws the initial parameters; `generator` draws the minibatches too."""
        self._critic, self._settings, self._generator = critic, settings, generator
        self.vector = critic.init(generator).to(device)
        self._adam = AdamState.zeros_like(self.vector)
        self._sgd = Sgd(self._loss, AdamSettings())

    def _loss(self, vector: Tensor, batch: Batch) -> tuple[Tensor, Info]:
        value = self._critic(self._critic.layout.unflatten(vector), batch["obs"])
        return value_loss(value, batch["target"]), {}

    @torch.no_grad()
    def __call__(self, obs: Tensor, t: Tensor) -> Tensor:  # noqa: ARG002 - of the observation alone
        """See `Baseline`."""
        return self._critic(self._critic.layout.unflatten(self.vector), obs)

    def fit(self, obs: Tensor, t: Tensor, target: Tensor) -> float:  # noqa: ARG002
        """See `Baseline`; the error is the mean over the minibatches as they came."""
        result = self._sgd.minimise(
            self.vector,
            self._adam,
            {"obs": obs, "target": target},
            epochs=self._settings.epochs,
            minibatch_size=self._settings.minibatch_size,
            learning_rate=self._settings.learning_rate,
            generator=self._generator,
        )
        self.vector, self._adam = result.vector, result.state
        return result.info["loss"]

    def optimizers(self) -> list[Sgd]:
        """The one there is."""
        return [self._sgd]

    def compile(self, rows: int, columns: int) -> None:
        """Compiles the gradient step, for rounds of `rows` observations [`columns`]."""
        device = self.vector.device
        data = {
            "obs": torch.zeros(rows, columns, device=device),
            "target": torch.zeros(rows, device=device),
        }
        self._sgd.compile(self.vector, data, self._settings.minibatch_size)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {"vector": self.vector, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        self.vector = state["vector"].to(self.vector.device)
        self._adam = AdamState.restored(state["adam"], self.vector.device)


class LinearBaseline:
    """Ridge regression on [o, o², t/100, (t/100)², 1], in double precision.

    Duan et al. 2016, "Benchmarking deep reinforcement learning for continuous control", section 4.
    Zero before the first fit.
    """

    def __init__(self, obs_dim: int, ridge: float, device: str) -> None:
        """`ridge` is added to the diagonal of the normal equations."""
        self._ridge = ridge
        self._weights = torch.zeros(2 * obs_dim + 3, dtype=torch.float64, device=device)

    def __call__(self, obs: Tensor, t: Tensor) -> Tensor:
        """See `Baseline`."""
        return (self._features(obs, t) @ self._weights).to(obs.dtype)

    def fit(self, obs: Tensor, t: Tensor, target: Tensor) -> float:
        """See `Baseline`; solves (XᵀX + ridge I) w = Xᵀ y."""
        x = self._features(obs, t)
        normal = x.T @ x + self._ridge * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        self._weights = torch.linalg.solve(normal, x.T @ target.double())
        return float(value_loss(self(obs, t), target))

    @staticmethod
    def _features(obs: Tensor, t: Tensor) -> Tensor:
        o, time = obs.double(), t.double().unsqueeze(1) / 100
        return torch.cat((o, o.square(), time, time.square(), torch.ones_like(time)), 1)

    def optimizers(self) -> list[Sgd]:
        """It takes no gradient steps."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {"weights": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        self._weights = state["weights"].to(self._weights.device)


class EpisodeClock:
    """How many steps into its episode each lane is, from rollout to rollout."""

    def __init__(self, lanes: int) -> None:
        """`lanes` counts those of the whole run; all stand at the start of an episode."""
        self._elapsed = np.zeros(lanes, np.int64)

    def __call__(self, ended: BoolArray, lane: IntArray) -> IntArray:
        """Steps since the episode began, before every step: [T, L].

        Args:
            ended: [T, L] an episode ended with this step.
            lane: [L] the lane of each column.
        """
        times = np.empty(ended.shape, np.int64)
        for columns in unique_lane_groups(lane):
            now = self._elapsed[lane[columns]]
            for t in range(len(ended)):
                times[t, columns] = now
                now = np.where(ended[t, columns], 0, now + 1)
            self._elapsed[lane[columns]] = now
        return times

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {"elapsed": self._elapsed.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        self._elapsed = state["elapsed"].copy()
