"""Twin delayed deterministic policy gradient (Fujimoto, van Hoof & Meger 2018).

DDPG with three changes: the least of two critics in the target, noise on the target's action, and a
policy that moves, as the targets do, once in `policy_delay` updates of the critics.

Departures from the paper:
    - two hidden layers of 256 units and minibatches of 256, as in the authors' later code;
    - actions are drawn evenly from [-1, 1] for the first `learning_starts` steps, for every task
      as many;
    - collection and updates alternate by rounds: a round's updates follow its steps, as many a
      step as `updates_per_step` says, and whatever the number of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos.base import Capabilities
from walle.algos.networks import NetSettings
from walle.algos.off_policy import NoisySettings, OffPolicy
from walle.algos.problem import Problem
from walle.errors import not_negative, positive
from walle.learning import losses
from walle.learning.off_policy_updates import TrainState, adam_update, polyak_update
from walle.learning.replay import Transitions
from walle.nets.bounded_policies import DeterministicPolicy


@dataclass(kw_only=True)
class TD3Settings(NoisySettings):
    """conf/algo/td3.yaml, where every key is explained."""

    policy_delay: int = positive()
    target_noise: float = not_negative()
    target_noise_clip: float = positive()


class TD3State(NamedTuple):
    """All that learning changes; the targets are slow copies of the vectors."""

    policy: TrainState
    critic: TrainState
    policy_target: Tensor
    critic_target: Tensor


class TD3Metrics(NamedTuple):
    """What a block of updates tells, scalars; `q` is the critics' mean value."""

    critic_loss: Tensor
    policy_loss: Tensor
    q: Tensor


class TD3(OffPolicy):
    """Two critics and a deterministic policy, each with its slow target."""

    capabilities: ClassVar[Capabilities] = Capabilities(TD3Settings, replay=True)
    metrics = TD3Metrics

    def __init__(self, settings: TD3Settings, net: NetSettings, problem: Problem) -> None:
        """See `OffPolicy`."""
        policy = partial(DeterministicPolicy, exploration=settings.exploration)
        delay = settings.policy_delay
        super().__init__(settings, net, problem, policy, critics=2, draws=1, updates=delay)

    def start(self, policy: Tensor, critic: Tensor) -> TD3State:
        """The targets begin as copies."""
        return TD3State(TrainState.start(policy), TrainState.start(critic), policy, critic)

    def block(self, state: TD3State, rows: Tensor, noise: Tensor) -> tuple[TD3State, TD3Metrics]:
        """`policy_delay` updates of the critics, then one of the policy, then the targets follow.

        Algorithm 1. `rows` [K, B, W]; `noise` [K, 1, B, A].
        """
        s, critic, found = self.settings, state.critic, []
        for minibatch, draw in zip(rows, noise, strict=True):
            batch = Transitions.split(minibatch, self.obs_dim)
            critic, *info = self.improve_critic(state, critic, batch, draw[0])
            found.append(torch.stack(info))

        def policy_loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            q = self.critic.first(critic.vector, batch.obs, self.policy.act(vector, batch.obs))
            return losses.deterministic_policy_loss(q), q.mean()

        policy, policy_value, _ = adam_update(policy_loss, state.policy, s.learning_rate)
        after = TD3State(
            policy,
            critic,
            polyak_update(state.policy_target, policy.vector, s.tau),
            polyak_update(state.critic_target, critic.vector, s.tau),
        )
        critic_value, q_mean = torch.stack(found).mean(0)
        return after, TD3Metrics(critic_value, policy_value, q=q_mean)

    def improve_critic(
        self, state: TD3State, critic: TrainState, batch: Transitions, noise: Tensor
    ) -> tuple[TrainState, Tensor, Tensor]:
        """One step of the critics; also their loss and mean value. `noise` [B, A]."""
        target = self.target(state, batch, noise)

        def loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            q = self.critic(vector, batch.obs, batch.action)
            return losses.critic_loss(q, target), q.mean()

        return adam_update(loss, critic, self.settings.learning_rate)

    def target(self, state: TD3State, batch: Transitions, noise: Tensor) -> Tensor:
        """The target, y = r + γ c min_k Q'_k(s', ã), where ã is π'(s') with clipped noise: [B]."""
        s = self.settings
        action = losses.target_policy_smoothing(
            self.policy.act(state.policy_target, batch.next_obs),
            noise,
            s.target_noise,
            s.target_noise_clip,
        )
        q = self.critic(state.critic_target, batch.next_obs, action)
        return losses.td_target(batch.reward, batch.continues, q, s.gamma)
