"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018a, 2018b).

Departures from the papers:
    - log α is learned instead of α, and log σ is kept within [-20, 2], both as in the authors'
      code;
    - there is no separate state-value function, as in 2018b and unlike 2018a;
    - an episode that a time limit cuts is not terminal: its last step bootstraps;
    - the step size is 1e-3 and Adam's β₁ is 0.5, as in Bhatt et al. (2024); 2018b has 3e-4 and 0.9.
      On HalfCheetah, SAC learned more with a β₁ of 0.5 than with 0.9;
    - actions are drawn uniformly from [-1, 1] for the first `learning_starts` steps;
    - collection and updates alternate by rounds: each round's steps are followed by
      `updates_per_step` updates for every step, for any number of lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos import engines
from walle.algos.base import Capabilities, Problem
from walle.algos.off_policy.base import ContinuousOffPolicy, OffPolicySettings, Sample
from walle.learning import losses
from walle.learning.adam import TrainState
from walle.learning.native.replay_updates import NativeUpdates
from walle.learning.step import gradient_of
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


class SAC(ContinuousOffPolicy):
    """SAC: two critics, a squashed Gaussian policy and a learned temperature."""

    capabilities: ClassVar[Capabilities] = Capabilities(SACSettings, replay=True, asymmetric=True)
    kind, draws = "squashed", 2
    entropy: ClassVar[float] = -1.0  # the default target entropy for each entry of an action
    log_temperature: ClassVar[float] = 0.0  # log α at the start
    # q is the critics' mean value, temperature is α
    metrics = ("critic_loss", "policy_loss", "q", "entropy", "temperature")

    def __init__(self, settings: SACSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters; the default target entropy is -A."""
        super().__init__(settings, net, problem)
        default, chosen = self.entropy * self.policy.action_dim, settings.target_entropy
        self.target_entropy = default if chosen is None else chosen

    def native_updates(self) -> NativeUpdates:
        """See `OffPolicy`."""
        return NativeUpdates(self, "sac", engines.actor_critic(self), self.target_entropy)

    def start(self, policy: Tensor, critic: Tensor) -> Any:
        """The state before the first update; the target is a copy of the critics."""
        log_temperature = torch.tensor(self.log_temperature, device=policy.device)
        return SACState(
            policy=TrainState.start(policy),
            critic=TrainState.start(critic),
            log_temperature=TrainState.start(log_temperature),
            critic_target=critic,
        )

    def target(self, state: SACState, batch: Sample) -> Tensor:
        """The critics' target, [B], for an action a' ~ π(s').

        y = r + γ c (min_k Q'_k(s', a') - α log π(a'|s')).
        """
        x, temperature = batch.transitions, state.log_temperature.vector.exp()
        action, log_prob = self.policy.draw(state.policy.vector, x.next_obs, batch.noise[:, 0])
        q = self.critic(state.critic_target, x.next_obs, action)
        gamma = self.settings.gamma
        return losses.soft_td_target(x.reward, x.continues, q, log_prob, temperature, gamma)

    def policy_gradient(self, state: SACState, batch: Sample) -> tuple[Tensor, Tensor]:
        """The gradient of the policy's loss, [P]; the loss, the mean of log π(a|s), and α."""
        obs, temperature = batch.transitions.obs, state.log_temperature.vector.exp()

        def loss(vector: Tensor) -> tuple[Tensor, list[Tensor]]:
            action, log_prob = self.policy.draw(vector, obs, batch.noise[:, 1])
            q = self.critic(state.critic.vector, obs, action)
            value = losses.soft_policy_loss(q, log_prob, temperature)
            return value, [log_prob.mean(), temperature]

        return gradient_of(loss, state.policy.vector)

    def policy_step(
        self, state: SACState, grad: Tensor, numbers: Tensor
    ) -> tuple[SACState, Tensor]:
        """Moves the policy along the gradient [P], then the temperature and the target."""
        after = SACState(
            self.adam_step(state.policy, grad),
            state.critic,
            self.temperature_step(state.log_temperature, numbers[1]),
            torch.lerp(state.critic_target, state.critic.vector, self.settings.tau),
        )
        return after, numbers

    def temperature_step(self, log_temperature: TrainState, log_prob: Tensor) -> TrainState:
        """Takes one step on log α, given `log_prob`, the mean of log π(a|s), []."""

        def temperature_loss(vector: Tensor) -> tuple[Tensor, list[Tensor]]:
            return losses.temperature_loss(vector, log_prob, self.target_entropy), []

        slope, _ = gradient_of(temperature_loss, log_temperature.vector)
        return self.adam_step(log_temperature, slope, self.settings.updates_per_block)

    def summary(self, numbers: Sequence[Tensor]) -> Tensor:
        """See `OffPolicy.summary`; the critics' metrics are means over the block."""
        *critic, (policy_loss, log_prob, temperature) = numbers
        critic_loss, q = torch.stack(critic).mean(0)
        return torch.stack((critic_loss, policy_loss, q, -log_prob, temperature))
