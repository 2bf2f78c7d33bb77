"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018a, 2018b).

Departures from the papers:
    - log α is learned rather than α, as in the authors' code;
    - actions are drawn evenly from [-1, 1] for the first `learning_starts` steps;
    - collection and updates alternate by rounds: a round's updates follow its steps, as many a
      step as `updates_per_step` says, and whatever the number of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos.base import Capabilities, NetSettings, Problem
from walle.algos.off_policy import (
    OffPolicy,
    OffPolicyAlgorithm,
    OffPolicySettings,
    continuous_actions,
    q_functions,
    random_first,
)
from walle.learning import losses
from walle.learning.off_policy_updates import TrainState, adam_update, polyak_update
from walle.learning.replay import Transitions
from walle.nets.bounded_policies import SquashedGaussianPolicy
from walle.nets.mlp import activation

INFO = ("critic_loss", "policy_loss", "q", "entropy", "temperature")


@dataclass
class SACSettings(OffPolicySettings):
    """conf/algo/sac.yaml, where every key is explained."""

    target_entropy: float | None


class SACState(NamedTuple):
    """All that learning changes; `critic_target` is the slow copy of the critics' vector."""

    policy: TrainState
    critic: TrainState
    log_temperature: TrainState
    critic_target: Tensor


class SAC(OffPolicyAlgorithm):
    """Two critics, a squashed Gaussian policy, a temperature."""

    capabilities: ClassVar[Capabilities] = Capabilities(SACSettings)

    def __init__(self, settings: SACSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        self.settings = settings
        actions = continuous_actions(settings.name, problem)
        make = partial(
            SquashedGaussianPolicy,
            problem.obs_dim,
            actions,
            net.policy_hidden,
            activation(net.activation),
        )
        self.policy = make()
        self.critic = q_functions(net, problem, actions, count=2)
        self.policy_factory = random_first(make, actions)
        self.target_entropy = -float(actions)
        if settings.target_entropy is not None:
            self.target_entropy = settings.target_entropy
        generator = problem.generator()
        policy = self.policy.init(generator).to(problem.device)
        critic = self.critic.init(generator).to(problem.device)
        start = SACState(
            policy=TrainState.start(policy),
            critic=TrainState.start(critic),
            log_temperature=TrainState.start(torch.zeros((), device=problem.device)),
            critic_target=critic,
        )
        self.obs_dim = problem.obs_dim
        self.learner = OffPolicy(
            settings, problem, generator, start, self.block, draws=2, info=INFO
        )

    def block(self, state: SACState, rows: Tensor, noise: Tensor) -> tuple[SACState, Tensor]:
        """One update: critics, then policy, then temperature; the target follows (2018b, alg. 1).

        `rows` [1, B, W]; `noise` [1, 2, B, A].
        """
        s, batch = self.settings, Transitions.split(rows[0], self.obs_dim)
        temperature = state.log_temperature.vector.exp()
        target = self.target(state, batch, temperature, noise[0, 0])

        def critic_loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            q = self.critic(vector, batch.obs, batch.action)
            return losses.critic_loss(q, target), q.mean()

        critic, critic_value, q_mean = adam_update(critic_loss, state.critic, s.learning_rate)

        def policy_loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            action, log_prob = self.policy.draw(vector, batch.obs, noise[0, 1])
            q = self.critic(critic.vector, batch.obs, action)
            return losses.soft_policy_loss(q, log_prob, temperature), log_prob

        policy, policy_value, log_prob = adam_update(policy_loss, state.policy, s.learning_rate)

        def temperature_loss(log_temperature: Tensor) -> tuple[Tensor, Tensor]:
            loss = losses.temperature_loss(log_temperature, log_prob, self.target_entropy)
            return loss, log_temperature

        log_temperature, *_ = adam_update(temperature_loss, state.log_temperature, s.learning_rate)
        after = SACState(
            policy,
            critic,
            log_temperature,
            polyak_update(state.critic_target, critic.vector, s.tau),
        )
        info = (critic_value, policy_value, q_mean, -log_prob.mean(), temperature)
        return after, torch.stack(info)

    def target(
        self, state: SACState, batch: Transitions, temperature: Tensor, noise: Tensor
    ) -> Tensor:
        """The target, y = r + γ c (min_k Q'_k(s', a') - α log π(a'|s')) with a' ~ π(s'): [B]."""
        action, log_prob = self.policy.draw(state.policy.vector, batch.next_obs, noise)
        q = self.critic(state.critic_target, batch.next_obs, action)
        gamma = self.settings.gamma
        return losses.soft_td_target(batch.reward, batch.continues, q, log_prob, temperature, gamma)
