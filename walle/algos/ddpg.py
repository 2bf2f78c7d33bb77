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

import torch
from torch import Tensor

from walle.algos.base import Capabilities, NetSettings, Problem
from walle.algos.off_policy import (
    OffPolicy,
    OffPolicyAlgorithm,
    OffPolicySettings,
    check_exploration,
    continuous_actions,
    q_functions,
    random_first,
)
from walle.learning import losses
from walle.learning.off_policy_updates import TrainState, adam_update, polyak_update
from walle.learning.replay import Transitions
from walle.nets.bounded_policies import DeterministicPolicy
from walle.nets.mlp import activation

INFO = ("critic_loss", "policy_loss", "q")


@dataclass
class DDPGSettings(OffPolicySettings):
    """conf/algo/ddpg.yaml, where every key is explained."""

    exploration: float

    def __post_init__(self) -> None:
        """Refuses what cannot work."""
        super().__post_init__()
        check_exploration(self.exploration)


class DDPGState(NamedTuple):
    """All that learning changes; the targets are slow copies of the vectors."""

    policy: TrainState
    critic: TrainState
    policy_target: Tensor
    critic_target: Tensor


class DDPG(OffPolicyAlgorithm):
    """A critic and a deterministic policy, each with its slow target."""

    capabilities: ClassVar[Capabilities] = Capabilities(DDPGSettings)

    def __init__(self, settings: DDPGSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        self.settings = settings
        actions = continuous_actions(settings.name, problem)
        make = partial(
            DeterministicPolicy,
            problem.obs_dim,
            actions,
            net.policy_hidden,
            activation(net.activation),
            settings.exploration,
        )
        self.policy = make()
        self.critic = q_functions(net, problem, actions, count=1)
        self.policy_factory = random_first(make, actions)
        generator = problem.generator()
        policy = self.policy.init(generator).to(problem.device)
        critic = self.critic.init(generator).to(problem.device)
        start = DDPGState(TrainState.start(policy), TrainState.start(critic), policy, critic)
        self.obs_dim = problem.obs_dim
        self.learner = OffPolicy(
            settings, problem, generator, start, self.block, draws=0, info=INFO
        )

    def block(
        self,
        state: DDPGState,
        rows: Tensor,
        noise: Tensor,  # noqa: ARG002 - the updates of DDPG draw nothing
    ) -> tuple[DDPGState, Tensor]:
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
        return after, torch.stack((critic_value, policy_value, q_mean))

    def target(self, state: DDPGState, batch: Transitions) -> Tensor:
        """The target, y = r + γ c Q'(s', π'(s')): [B]."""
        action = self.policy.act(state.policy_target, batch.next_obs)
        q = self.critic(state.critic_target, batch.next_obs, action)
        return losses.td_target(batch.reward, batch.continues, q, self.settings.gamma)
