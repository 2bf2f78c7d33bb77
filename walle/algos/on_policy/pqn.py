"""Parallelised Q-learning: Q(λ) without a replay buffer or a target (Gallici et al. 2025).

Departures from the paper:
    - layer normalisation has no scale and shift (`net.activation=norm_relu`), and convolutions have
      none; observations are normalised, and rewards scaled, by running moments;
    - targets are recomputed with the newest values before every epoch;
    - Adam instead of RAdam, with a step size that falls linearly to 0;
    - an episode truncated by a time limit is bootstrapped from its last observation;
    - ε changes once a round, not in every step;
    - the defaults are for small tasks: 32 steps in 32 lanes a round, and eight passes in
      minibatches of 128 rows; the paper has 128 lanes and two passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from walle.algos import engines
from walle.algos.base import Capabilities, CompilableSettings, Problem, check_discrete
from walle.algos.on_policy.base import OnPolicyActorCritic, StepBatch
from walle.algos.on_policy.experience import Experience
from walle.errors import one_of, positive, within
from walle.learning import losses
from walle.learning.adam import AdamSettings
from walle.learning.native.passes import Loss
from walle.learning.step import Info, Optimizer
from walle.nets.critics import PolicyAndCritic
from walle.nets.factory import NetSettings
from walle.nets.mlp import Params
from walle.nets.replay_policies import EpsilonGreedyPolicy
from walle.types import Rollout


@dataclass(kw_only=True)
class PQNSettings(CompilableSettings):
    """Settings in conf/algo/pqn.yaml, which explains every key."""

    correction: ClassVar[str] = "none"  # Q-learning may learn from an older policy's actions
    normalize_advantages: ClassVar[bool] = False
    reward_scale: ClassVar[float] = 1.0
    shared_minibatches: ClassVar[tuple[str, ...]] = ("minibatch_size",)

    gamma: float = within("[0, 1]", example=0.99)
    q_lambda: float = within("[0, 1]", example=0.65)
    epochs: int = positive()
    minibatch_size: int = positive()
    learning_rate: float = positive()
    schedule: str = one_of("linear", "constant")
    max_grad_norm: float | None = positive()
    exploration_fraction: float = within("(0, 1]", example=0.16)
    exploration_final: float = within("[0, 1]", example=0.04)
    normalize_observations: bool
    normalize_rewards: bool
    obs_clip: float = positive()

    @property
    def gae_lambda(self) -> float:
        """λ of `OnPolicy.estimates`, whose targets are Q(λ) if V(s) = max_a Q(s, a)."""
        return self.q_lambda


class ActionValues(PolicyAndCritic):
    """A policy of action values that is its own critic: V(s) = max_a Q(s, a)."""

    def __init__(self, policy: EpsilonGreedyPolicy) -> None:
        self._greedy = policy

    def split(self, vector: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The policy's parameters, views of `vector`, for the policy and again for the critic."""
        params = self._greedy.layout.unflatten(vector)
        return params, params

    def value_function(self, vector: Tensor) -> Callable[[Tensor], Tensor]:
        """max_a Q(s, a) under the parameters in `vector`: features [N, F] -> [N]."""
        params, _ = self.split(vector)
        return lambda x: self.values(params, x).amax(-1)

    def values(self, params: Params, features: Tensor) -> Tensor:
        """Q(s, a) of every action: [N, F] -> [N, K]."""
        return self._greedy.dist(params, features)[..., :-1]


class PQN(OnPolicyActorCritic):
    """PQN: epochs of minibatches on the squared errors of action values.

    The last entry of `vector` is the place of ε in the policy's layout. No gradient changes it;
    `policy_vector` puts the present ε there.
    """

    kind = "epsilon_greedy"
    capabilities: ClassVar[Capabilities] = Capabilities(PQNSettings, images=True)

    def __init__(self, settings: PQNSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        check_discrete(settings.name, problem.action_space)
        super().__init__(settings, net, problem, settings.minibatch_size)
        self.adam_settings = AdamSettings(max_grad_norm=settings.max_grad_norm)
        self.optimizer = Optimizer(self.loss, self.adam_settings, shards=problem.shards)

    def add_critic(self) -> None:
        """The policy is its own critic."""
        self.networks: ActionValues = ActionValues(self.policy_factory())

    def loss(self, vector: Tensor, batch: StepBatch) -> tuple[Tensor, Info]:
        """L = E[(Q(s, a) - G)²], over a minibatch."""
        params, _ = self.networks.split(vector)
        q = self.networks.values(params, self.rows.features(params, batch.obs))
        loss = losses.value_loss(q.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1), batch.target)
        return loss, {"value_loss": loss}

    def load_native(self) -> None:
        """Takes all later passes in C++."""
        self.learn_in_cpp(engines.passes(self, None, Loss("action_value")))

    def learn(self, experience: Experience, rollout: Rollout) -> dict[str, float]:  # noqa: ARG002
        """Passes `epochs` times over the round in minibatches."""
        metrics, gradient_steps = self.improve_networks(
            experience,
            epochs=self.settings.epochs,
            minibatch_size=self.rows.minibatch_size,
            recompute=True,
        )
        return {**metrics, "gradient_steps": gradient_steps}

    @property
    def policy_vector(self) -> Tensor:
        """The parameters of the values, then ε."""
        return torch.cat((self.vector[:-1], self.vector.new_tensor([self.exploration])))

    @property
    def exploration(self) -> float:
        """ε: a line from 1 to `exploration_final`."""
        s: PQNSettings = self.settings
        share = min(1.0, self.env_steps / (s.exploration_fraction * self.problem.schedule_steps))
        return 1.0 + share * (s.exploration_final - 1.0)
