"""Deep deterministic policy gradient with replay (Lillicrap et al. 2016).

Departures from the paper:
    - exploration noise is Gaussian and uncorrelated, as Fujimoto et al. 2018 found no worse than
      the paper's Ornstein-Uhlenbeck process;
    - two hidden layers of 256 units, minibatches of 256, targets that follow by 0.005, as in the
      works that followed, and one step size for both networks; no weight decay, no batch
      normalisation, and the action enters the critic with the observation;
    - actions are drawn evenly from [-1, 1] for the first `learning_starts` steps;
    - collection and updates alternate by rounds: a round's updates follow its steps, as many a
      step as `updates_per_step` says, and whatever the number of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

from torch import Tensor

from walle.algos.base import Capabilities
from walle.algos.networks import NetSettings
from walle.algos.off_policy import NoisySettings, OffPolicy
from walle.algos.problem import Problem
from walle.learning import losses
from walle.learning.off_policy_updates import TrainState, adam_update, polyak_update
from walle.learning.replay import Transitions
from walle.nets.bounded_policies import DeterministicPolicy


@dataclass(kw_only=True)
class DDPGSettings(NoisySettings):
    """conf/algo/ddpg.yaml, where every key is explained."""


class DDPGState(NamedTuple):
    """All that learning changes; the targets are slow copies of the vectors."""

    policy: TrainState
    critic: TrainState
    policy_target: Tensor
    critic_target: Tensor


class DDPGMetrics(NamedTuple):
    """What an update tells, scalars; `q` is the critic's mean value."""

    critic_loss: Tensor
    policy_loss: Tensor
    q: Tensor


class DDPG(OffPolicy):
    """A critic and a deterministic policy, each with its slow target."""

    capabilities: ClassVar[Capabilities] = Capabilities(DDPGSettings, replay=True)
    metrics = DDPGMetrics

    def __init__(self, settings: DDPGSettings, net: NetSettings, problem: Problem) -> None:
        """See `OffPolicy`."""
        policy = partial(DeterministicPolicy, exploration=settings.exploration)
        super().__init__(settings, net, problem, policy, critics=1, draws=0)

    def start(self, policy: Tensor, critic: Tensor) -> DDPGState:
        """The targets begin as copies."""
        return DDPGState(TrainState.start(policy), TrainState.start(critic), policy, critic)

    def block(
        self,
        state: DDPGState,
        rows: Tensor,
        noise: Tensor,  # noqa: ARG002 - the updates of DDPG draw nothing
    ) -> tuple[DDPGState, DDPGMetrics]:
        """One update (algorithm 1): the critic, then the policy; then the targets follow.

        `rows` [1, B, W].
        """
        s, batch = self.settings, Transitions.split(rows[0], self.obs_dim)
        target = self.target(state, batch)

        def critic_loss(vector: Tensor) -> tuple[Tensor, Tensor]:
            q = self.critic(vector, batch.obs, batch.action)
            return losses.critic_loss(q, target), q.mean()

        critic, critic_value, q_mean = adam_update(critic_loss, state.critic, s.learning_rate)

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
        return after, DDPGMetrics(critic_value, policy_value, q=q_mean)

    def target(self, state: DDPGState, batch: Transitions) -> Tensor:
        """The target, y = r + γ c Q'(s', π'(s')): [B]."""
        action = self.policy.act(state.policy_target, batch.next_obs)
        q = self.critic(state.critic_target, batch.next_obs, action)
        return losses.td_target(batch.reward, batch.continues, q, self.settings.gamma)
