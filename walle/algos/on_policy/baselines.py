"""State-value functions V(s, t) that are fitted after each round: a network or a regression."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from walle.algos.engines import Part
from walle.algos.problem import Problem
from walle.learning.adam import AdamSettings, AdamState, TrainState
from walle.learning.losses import value_loss
from walle.learning.sharing.team import map_rows
from walle.learning.step import Info, Optimizer
from walle.nets.critics import Critic


class FitSettings(NamedTuple):
    """Epochs, rows in a minibatch and Adam's step size when a network is fitted."""

    epochs: int
    minibatch_size: int
    learning_rate: float


class FitBatch(NamedTuple):
    """Observations [N, O] and their target values [N]."""

    obs: Tensor
    target: Tensor


class NeuralBaseline:
    """A network that values normalised observations, fitted by minibatch Adam; ignores the time."""

    def __init__(
        self, critic: Critic, settings: FitSettings, generator: torch.Generator, problem: Problem
    ) -> None:
        """Draws the initial parameters with `generator`, which later draws the minibatches too."""
        self._critic, self._settings, self._generator = critic, settings, generator
        self.vector = critic.init(generator).to(problem.device)
        self._adam = AdamState.zeros_like(self.vector)
        self._optimizer = Optimizer(self._loss, AdamSettings(), shards=problem.shards)

    def _loss(self, vector: Tensor, batch: FitBatch) -> tuple[Tensor, Info]:
        value = self._critic(self._critic.layout.unflatten(vector), batch.obs)
        return value_loss(value, batch.target), {}

    @torch.no_grad()
    def __call__(self, obs: Tensor, t: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Values [N] of normalised observations [N, O]; `t` is not used."""
        params = self._critic.layout.unflatten(self.vector)
        return map_rows(partial(self._critic.without_gradient, params), obs)

    def fit(self, obs: Tensor, target: Tensor, t: Tensor | None = None) -> float:  # noqa: ARG002
        """Fits the targets [N]; returns the minibatches' mean squared error before each step."""
        result = self._optimizer.minimise(
            self.vector,
            self._adam,
            FitBatch(obs, target),
            epochs=self._settings.epochs,
            minibatch_size=self._settings.minibatch_size,
            learning_rate=self._settings.learning_rate,
            generator=self._generator,
        )
        self.vector, self._adam = result.vector, result.state
        return result.info["loss"]

    def optimizers(self) -> list[Optimizer]:
        """The network's optimizer."""
        return [self._optimizer]

    def parts(self, problem: Problem, rounds: int = 1) -> list[Part]:
        """The gradient step, for fits to the data of `rounds` rounds."""
        rows, size = rounds * problem.batch_size, self._settings.minibatch_size

        def compile_step() -> None:
            obs = torch.zeros(rows, problem.obs_dim, device=self.vector.device)
            example = FitBatch(obs, torch.zeros(rows, device=self.vector.device))
            self._optimizer.compile(TrainState(self.vector, self._adam), example, size)

        steps = problem.rounds * self._settings.epochs * -(-rows // size)
        return [Part("value function", steps, None, compile_step)]

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {"vector": self.vector, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self.vector = state["vector"].to(self.vector.device)
        self._adam = AdamState.restored(state["adam"], self.vector.device)


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

    def optimizers(self) -> list[Optimizer]:
        """No optimizer: a linear baseline takes no gradient steps."""
        return []

    def parts(self, problem: Problem) -> list[Part]:  # noqa: ARG002
        """No part: a linear baseline takes no gradient steps."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {"weights": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self._weights = state["weights"].to(self._weights.device)


Baseline = NeuralBaseline | LinearBaseline
