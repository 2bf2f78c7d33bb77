"""A state-value function that is fitted after each round, apart from the policy."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from walle.algos.compiling import Compilable
from walle.algos.problem import Problem
from walle.learning.adam import AdamSettings, AdamState
from walle.learning.gradient_steps import Info
from walle.learning.losses import value_loss
from walle.learning.optimizer import Optimizer
from walle.learning.sharing.team import map_rows
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
    """A network that values normalised observations, fitted by minibatch Adam."""

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
    def __call__(self, obs: Tensor) -> Tensor:
        """Values [N] of normalised observations [N, O]."""
        params = self._critic.layout.unflatten(self.vector)
        return map_rows(partial(self._critic.without_gradient, params), obs)

    def fit(self, obs: Tensor, target: Tensor) -> float:
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

    def compilable(self, problem: Problem, rounds: int = 1) -> list[Compilable]:
        """The gradient step, for fits to the data of `rounds` rounds."""
        rows, size = rounds * problem.batch_size, self._settings.minibatch_size

        def compile_step(description: str | None) -> None:
            obs = torch.zeros(rows, problem.obs_dim, device=self.vector.device)
            example = FitBatch(obs, torch.zeros(rows, device=self.vector.device))
            self._optimizer.compile(self.vector, example, size, description)

        steps = problem.rounds * self._settings.epochs * -(-rows // size)
        return [Compilable("value function", steps, size, compile_step)]

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {"vector": self.vector, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self.vector = state["vector"].to(self.vector.device)
        self._adam = AdamState.restored(state["adam"], self.vector.device)
