"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018a, 2018b).

Departures from the papers:
    - log α is learned instead of α, as in the authors' code; log σ is kept within [-20, 2] there
      and here;
    - there is no separate state-value function, as in 2018b and unlike 2018a;
    - an episode that a time limit cuts is not terminal: its last step bootstraps;
    - actions are drawn evenly from [-1, 1] for the first `learning_starts` steps;
    - collection and updates alternate by rounds: each round's steps are followed by
      `updates_per_step` updates for every step, for any number of lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos import native
from walle.algos.base import Capabilities
from walle.algos.off_policy.base import OffPolicySettings
from walle.algos.off_policy.continuous import ContinuousOffPolicy
from walle.algos.problem import Problem
from walle.learning import losses
from walle.learning.native.replay_updates import NativeUpdates, sac_updates
from walle.learning.off_policy_updates import (
    Stage,
    TrainState,
    Values,
    adam_step,
    adam_update,
    gradient_of,
    polyak_update,
)
from walle.learning.replay import Transitions
from walle.nets.factory import NetSettings


@dataclass(kw_only=True)
class SACSettings(OffPolicySettings):
    """Settings in conf/algo/sac.yaml, which explains every key."""

    target_entropy: float | None


class SACState(NamedTuple):
    """Parameters and optimizers' states; `critic_target` [Q] is a slow copy of the critics."""

    policy: TrainState
    critic: TrainState
    log_temperature: TrainState
    critic_target: Tensor


class SACMetrics(NamedTuple):
    """Metrics of an update, scalars; `q` is the critics' mean value, `temperature` is α."""

    critic_loss: Tensor
    policy_loss: Tensor
    q: Tensor
    entropy: Tensor
    temperature: Tensor


class SAC(ContinuousOffPolicy):
    """SAC: two critics, a squashed Gaussian policy and a learned temperature."""

    capabilities: ClassVar[Capabilities] = Capabilities(SACSettings, replay=True)
    metrics = SACMetrics

    def __init__(self, settings: SACSettings, net: NetSettings, problem: Problem) -> None:
        """Builds two critics; the default target entropy is -A."""
        super().__init__(settings, net, problem, "squashed", critics=2, draws=2)
        self.target_entropy = -float(self.policy.action_dim)
        if settings.target_entropy is not None:
            self.target_entropy = settings.target_entropy

    def make_native(self) -> NativeUpdates:
        """See `OffPolicy`."""
        return sac_updates(native.actor_critic(self, self.critics), self.target_entropy)

    def start(self, policy: Tensor, critic: Tensor) -> SACState:
        """The state before the first update; the target is a copy of the critics, and α is 1."""
        return SACState(
            policy=TrainState.start(policy),
            critic=TrainState.start(critic),
            log_temperature=TrainState.start(torch.zeros((), device=policy.device)),
            critic_target=critic,
        )

    def stages(self) -> list[Stage]:
        """Updates the critics, then the policy, the temperature and the target (2018b, alg. 1)."""
        return [
            Stage(self.critic_gradient, self.critic_step),
            Stage(self.policy_gradient, self.policy_step),
        ]

    def critic_gradient(
        self, state: SACState, minibatch: Tensor, noise: Tensor
    ) -> tuple[Tensor, Values]:
        """The gradient of the critics' loss, [Q]; the loss, and the critics' mean value."""
        batch = Transitions.split(minibatch, self.obs_dim)
        temperature = state.log_temperature.vector.exp()
        target = self.target(state, batch, temperature, noise[0])

        def loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            q = self.critic(vector, batch.obs, batch.action)
            return losses.critic_loss(q, target), q.mean()

        return gradient_of(loss, state.critic.vector)

    def critic_step(self, state: SACState, grad: Tensor, values: Values) -> SACState:  # noqa: ARG002
        """Moves the critics along the gradient [Q]."""
        return state._replace(critic=adam_step(state.critic, grad, self.settings.learning_rate))

    def policy_gradient(
        self, state: SACState, minibatch: Tensor, noise: Tensor
    ) -> tuple[Tensor, Values]:
        """The gradient of the policy's loss, [P]; the loss, log π(a|s) [B], and α."""
        batch = Transitions.split(minibatch, self.obs_dim)
        temperature = state.log_temperature.vector.exp()

        def loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            action, log_prob = self.policy.draw(vector, batch.obs, noise[1])
            q = self.critic(state.critic.vector, batch.obs, action)
            return losses.soft_policy_loss(q, log_prob, temperature), log_prob

        grad, values = gradient_of(loss, state.policy.vector)
        return grad, (*values, temperature)

    def policy_step(self, state: SACState, grad: Tensor, values: Values) -> SACState:
        """Moves the policy along the gradient [P], then the temperature and the target."""
        s, (_, log_prob, _) = self.settings, values

        def temperature_loss(log_temperature: Tensor) -> tuple[Tensor, Tensor]:
            loss = losses.temperature_loss(log_temperature, log_prob, self.target_entropy)
            return loss, log_temperature

        policy = adam_step(state.policy, grad, s.learning_rate)
        log_temperature, *_ = adam_update(temperature_loss, state.log_temperature, s.learning_rate)
        return SACState(
            policy,
            state.critic,
            log_temperature,
            polyak_update(state.critic_target, state.critic.vector, s.tau),
        )

    def summary(self, found: Sequence[Values]) -> SACMetrics:
        """See `OffPolicy.summary`."""
        (critic_loss, q), (policy_loss, log_prob, temperature) = found
        return SACMetrics(critic_loss, policy_loss, q, -log_prob.mean(), temperature)

    def target(
        self, state: SACState, batch: Transitions, temperature: Tensor, noise: Tensor
    ) -> Tensor:
        """The critics' target, [B], for an action a' ~ π(s').

        y = r + γ c (min_k Q'_k(s', a') - α log π(a'|s')).
        """
        action, log_prob = self.policy.draw(state.policy.vector, batch.next_obs, noise)
        q = self.critic(state.critic_target, batch.next_obs, action)
        gamma = self.settings.gamma
        return losses.soft_td_target(batch.reward, batch.continues, q, log_prob, temperature, gamma)
