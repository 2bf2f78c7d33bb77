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

from walle.algos.base import Capabilities, NetSettings, Problem, check_positive
from walle.algos.off_policy import (
    OffPolicy,
    OffPolicyAlgorithm,
    OffPolicySettings,
    check_exploration,
    continuous_actions,
    q_functions,
    random_first,
)
from walle.errors import ConfigError
from walle.learning import losses
from walle.learning.off_policy_updates import TrainState, adam_update, polyak_update
from walle.learning.replay import Transitions
from walle.nets.bounded_policies import DeterministicPolicy
from walle.nets.mlp import activation

INFO = ("critic_loss", "policy_loss", "q")


@dataclass
class TD3Settings(OffPolicySettings):
    """conf/algo/td3.yaml, where every key is explained."""

    exploration: float
    policy_delay: int
    target_noise: float
    target_noise_clip: float

    def __post_init__(self) -> None:
        """Refuses what cannot work."""
        super().__post_init__()
        check_positive(self, "policy_delay", "target_noise_clip")
        check_exploration(self.exploration)
        if self.target_noise < 0:
            raise ConfigError(f"algo.target_noise={self.target_noise} must not be negative")


class TD3State(NamedTuple):
    """All that learning changes; the targets are slow copies of the vectors."""

    policy: TrainState
    critic: TrainState
    policy_target: Tensor
    critic_target: Tensor


class TD3(OffPolicyAlgorithm):
    """Two critics and a deterministic policy, each with its slow target."""

    capabilities: ClassVar[Capabilities] = Capabilities(TD3Settings)

    def __init__(self, settings: TD3Settings, net: NetSettings, problem: Problem) -> None:
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
        self.critic = q_functions(net, problem, actions, count=2)
        self.policy_factory = random_first(make, actions)
        generator = problem.generator()
        policy = self.policy.init(generator).to(problem.device)
        critic = self.critic.init(generator).to(problem.device)
        start = TD3State(TrainState.start(policy), TrainState.start(critic), policy, critic)
        self.obs_dim = problem.obs_dim
        self.learner = OffPolicy(
            settings,
            problem,
            generator,
            start,
            self.block,
            updates=settings.policy_delay,
            draws=1,
            info=INFO,
        )

    def block(self, state: TD3State, rows: Tensor, noise: Tensor) -> tuple[TD3State, Tensor]:
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
        return after, torch.stack((critic_value, policy_value, q_mean))

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
