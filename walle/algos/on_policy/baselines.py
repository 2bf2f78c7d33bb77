"""A state-value function that is fitted after each round, separately from the policy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos import engines
from walle.algos.engines import Part
from walle.algos.on_policy.base import OnPolicy, OnPolicySettings
from walle.errors import positive
from walle.learning.adam import AdamSettings, AdamState, TrainState
from walle.learning.losses import value_loss
from walle.learning.native.passes import Loss, Passes
from walle.learning.sharing.team import map_rows
from walle.learning.step import Divisible, Info, Optimizer


@dataclass(kw_only=True)
class BaselineSettings(OnPolicySettings):
    """Settings of an algorithm with a `NeuralBaseline`; its YAML explains every key."""

    shared_minibatches: ClassVar[tuple[str, ...]] = ("value_minibatch_size",)
    value_epochs: int = positive()
    value_minibatch_size: int = positive()
    value_learning_rate: float = positive()


class FitBatch(NamedTuple):
    """Observations [N, O] and their target values [N]."""

    obs: Tensor
    target: Tensor


class NeuralBaseline:
    """A network that values normalised observations, fitted by minibatch Adam."""

    def __init__(self, algorithm: OnPolicy) -> None:
        """Draws the initial parameters with the algorithm's generator, which also shuffles rows."""
        problem, self._generator = algorithm.problem, algorithm.generator
        self._critic, self._settings = algorithm.net.critic(problem), algorithm.settings
        self.vector = self._critic.init(self._generator).to(problem.device)
        self._adam = AdamState.zeros_like(self.vector)
        self._optimizer: Any = Optimizer(self._loss, AdamSettings(), shards=problem.shards)

    def _loss(self, vector: Tensor, batch: FitBatch) -> tuple[Tensor, Info]:
        value = self._critic(self._critic.layout.unflatten(vector), batch.obs)
        return value_loss(value, batch.target), {}

    @torch.no_grad()
    def __call__(self, obs: Tensor) -> Tensor:
        """Values [N] of normalised observations [N, O]."""
        params = self._critic.layout.unflatten(self.vector)
        return map_rows(partial(self._critic, params), obs)

    def fit(self, obs: Tensor, target: Tensor) -> float:
        """Fits the targets [N]; returns the squared error before each step, averaged over steps."""
        result = self._optimizer.minimise(
            self.vector,
            self._adam,
            FitBatch(obs, target),
            epochs=self._settings.value_epochs,
            minibatch_size=self._settings.value_minibatch_size,
            learning_rate=self._settings.value_learning_rate,
            generator=self._generator,
        )
        self.vector, self._adam = result.vector, result.state
        return float(result.info["loss"])

    def optimizers(self) -> list[Divisible]:
        """The network's optimizer."""
        return [self._optimizer]

    def parts(self, algorithm: Any, rounds: int = 1) -> list[Part]:
        """The gradient steps of the fits to the data of `rounds` rounds of an algorithm."""
        problem, size = algorithm.problem, self._settings.value_minibatch_size
        rows = rounds * problem.batch_size

        def load_native() -> None:
            activation = algorithm.net.activation
            adam, shards, width = AdamSettings(), problem.shards, problem.obs_dim
            passes = Passes(None, self._critic, activation, Loss(), adam, shards, width)
            passes.join_team(self._optimizer.team)
            self._optimizer = passes

        def compile_step() -> None:
            obs = torch.zeros(rows, problem.obs_dim, device=self.vector.device)
            example = FitBatch(obs, torch.zeros(rows, device=self.vector.device))
            self._optimizer.compile(TrainState(self.vector, self._adam), example, size)

        steps = problem.rounds * self._settings.value_epochs * -(-rows // size)
        load = load_native if engines.has_networks(algorithm) else None
        return [Part("value function", steps, load, compile_step)]

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {"vector": self.vector, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self.vector = state["vector"].to(self.vector.device)
        self._adam = AdamState.restored(state["adam"], self.vector.device)
