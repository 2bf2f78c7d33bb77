"""Deep deterministic policy gradient with replay (Lillicrap et al. 2016).

Departures from the paper:
    - exploration noise is Gaussian and uncorrelated: Fujimoto et al. 2018 found it no worse than
      the paper's Ornstein-Uhlenbeck process;
    - two hidden layers of 256 units, minibatches of 256 and a target rate τ of 0.005, as in later
      papers, and one step size for both networks; no weight decay and no batch normalisation; the
      action enters the critic together with the observation, instead of at its second layer;
    - all layers begin as torch draws them, where the paper drew the last ones within ±0.003;
    - an episode that a time limit cuts is not terminal: its last step bootstraps;
    - actions are drawn evenly from [-1, 1] for the first `learning_starts` steps;
    - collection and updates alternate by rounds: each round's steps are followed by
      `updates_per_step` updates for every step, for any number of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos.base import Capabilities
from walle.algos.continuous import ContinuousOffPolicy
from walle.algos.networks import NetSettings
from walle.algos.off_policy import OffPolicySettings
from walle.algos.problem import Problem
from walle.errors import ConfigError
from walle.learning import losses
from walle.learning.off_policy_updates import TrainState, adam_update, polyak_update
from walle.learning.replay import Transitions
from walle.nets.bounded_policies import DeterministicPolicy


@dataclass(kw_only=True)
class DDPGSettings(OffPolicySettings):
    """Settings in conf/algo/ddpg.yaml, which explains every key."""

    exploration: float

    def __post_init__(self) -> None:
        """Checks the bounds; refuses a policy without noise."""
        super().__post_init__()
        if self.exploration <= 0:
            raise ConfigError(
                f"algo.exploration={self.exploration} must be positive: without noise on its"
                " actions a deterministic policy tries nothing new; Fujimoto et al. used 0.1"
            )


class DDPGState(NamedTuple):
    """Parameters and optimizers' states; the targets [P] and [Q] are slow copies of the vectors."""

    policy: TrainState
    critic: TrainState
    policy_target: Tensor
    critic_target: Tensor


class DDPGMetrics(NamedTuple):
    """Metrics of a block of updates, scalars; `q` is the critic's mean value."""

    critic_loss: Tensor
    policy_loss: Tensor
    q: Tensor


class DDPG(ContinuousOffPolicy):
    """DDPG: a critic and a deterministic policy, each with a target network."""

    capabilities: ClassVar[Capabilities] = Capabilities(DDPGSettings, replay=True)
    metrics = DDPGMetrics

    def __init__(
        self, settings: DDPGSettings, net: NetSettings, problem: Problem, **sizes: int
    ) -> None:
        """Builds one critic; `sizes` overrides the sizes that `OffPolicy` gets."""
        policy = partial(DeterministicPolicy, exploration=settings.exploration)
        super().__init__(settings, net, problem, policy, **{"critics": 1, "draws": 0, **sizes})

    def start(self, policy: Tensor, critic: Tensor) -> DDPGState:
        """The state before the first update; the targets are copies of the networks."""
        return DDPGState(TrainState.start(policy), TrainState.start(critic), policy, critic)

    def block(
        self, state: DDPGState, minibatches: Tensor, noise: Tensor
    ) -> tuple[DDPGState, DDPGMetrics]:
        """Updates the critic K times, then the policy and the targets once.

        With K = 1 this is the paper's algorithm 1. See `OffPolicy.block`; M is 0 for DDPG.
        """
        s, critic, found = self.settings, state.critic, []
        for minibatch, draws in zip(minibatches, noise, strict=True):
            batch = Transitions.split(minibatch, self.obs_dim)
            target = self.target(state, batch, draws)
            critic, *info = self.improve_critic(critic, batch, target)
            found.append(torch.stack(info))

        def policy_loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            q = self.critic.first(critic.vector, batch.obs, self.policy.act(vector, batch.obs))
            return losses.deterministic_policy_loss(q), q.mean()

        policy, policy_value, _ = adam_update(policy_loss, state.policy, s.learning_rate)
        after = DDPGState(
            policy,
            critic,
            polyak_update(state.policy_target, policy.vector, s.tau),
            polyak_update(state.critic_target, critic.vector, s.tau),
        )
        critic_value, q_mean = torch.stack(found).mean(0)
        return after, DDPGMetrics(critic_value, policy_value, q=q_mean)

    def improve_critic(
        self, critic: TrainState, batch: Transitions, target: Tensor
    ) -> tuple[TrainState, Tensor, Tensor]:
        """Takes one step towards `target` [B]; returns the critic, its loss, its mean value."""

        def loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            q = self.critic(vector, batch.obs, batch.action)
            return losses.critic_loss(q, target), q.mean()

        return adam_update(loss, critic, self.settings.learning_rate)

    def target(self, state: DDPGState, batch: Transitions, draws: Tensor) -> Tensor:  # noqa: ARG002
        """The critic's target y = r + γ c Q'(s', π'(s')), [B]."""
        action = self.policy.act(state.policy_target, batch.next_obs)
        q = self.critic(state.critic_target, batch.next_obs, action)
        return losses.td_target(batch.reward, batch.continues, q, self.settings.gamma)
