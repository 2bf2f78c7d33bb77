"""Deep deterministic policy gradient with replay (Lillicrap et al. 2016).

Departures from the paper:
    - exploration noise is Gaussian and uncorrelated: Fujimoto et al. 2018 found it no worse than
      the paper's Ornstein-Uhlenbeck process;
    - two hidden layers of 256 units, minibatches of 256 and a target rate τ of 0.005, as in later
      papers, and one step size for both networks; no weight decay; layer normalisation in the
      critic alone (`net.activation=critic_norm_relu`) instead of batch normalisation; the action
      enters the critic together with the observation, instead of at its second layer;
    - all layers have torch's initial weights; the paper drew the last layers within ±0.003;
    - an episode that a time limit cuts is not terminal: its last step bootstraps;
    - actions are drawn uniformly from [-1, 1] for the first `learning_starts` steps;
    - collection and updates alternate by rounds: each round's steps are followed by
      `updates_per_step` updates for every step, for any number of lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos import engines
from walle.algos.base import Capabilities, Problem
from walle.algos.off_policy.base import ContinuousOffPolicy, OffPolicySettings, Sample
from walle.errors import ConfigError
from walle.learning import losses
from walle.learning.adam import TrainState
from walle.learning.native.replay_updates import NativeUpdates
from walle.learning.step import gradient_of
from walle.nets.factory import NetSettings


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


class DDPG(ContinuousOffPolicy):
    """DDPG: a critic and a deterministic policy, each with a target network."""

    capabilities: ClassVar[Capabilities] = Capabilities(DDPGSettings, replay=True, asymmetric=True)
    kind, critics = "deterministic", 1
    metrics = ("critic_loss", "policy_loss", "q")  # q is the critic's mean value

    def __init__(self, settings: DDPGSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        super().__init__(settings, net, problem, settings.exploration)

    @property
    def smoothing(self) -> tuple[float, float]:
        """Scale and bound of the noise on the target's action; DDPG has none."""
        return 0.0, 0.0

    def native_updates(self) -> NativeUpdates:
        """See `OffPolicy`."""
        return NativeUpdates(self, "ddpg", engines.actor_critic(self), *self.smoothing)

    def start(self, policy: Tensor, critic: Tensor) -> DDPGState:
        """The state before the first update; the targets are copies of the networks."""
        return DDPGState(TrainState.start(policy), TrainState.start(critic), policy, critic)

    def target(self, state: DDPGState, batch: Sample) -> Tensor:
        """The critic's target y = r + γ c Q'(s', π'(s')), [B]."""
        x = batch.transitions
        action = self.policy.act(state.policy_target, x.next_obs)
        q = self.critic(state.critic_target, x.next_obs, action)
        return losses.td_target(x.reward, x.continues, q, self.settings.gamma)

    def policy_gradient(self, state: DDPGState, batch: Sample) -> tuple[Tensor, Tensor]:
        """The gradient of the policy's loss, [P], and the loss."""
        obs = batch.transitions.obs

        def loss(vector: Tensor) -> tuple[Tensor, list[Tensor]]:
            q = self.critic.first(state.critic.vector, obs, self.policy.act(vector, obs))
            return losses.deterministic_policy_loss(q), []

        return gradient_of(loss, state.policy.vector)

    def policy_step(
        self, state: DDPGState, grad: Tensor, numbers: Tensor
    ) -> tuple[DDPGState, Tensor]:
        """Moves the policy along the gradient [P], then the targets."""
        tau, delay = self.settings.tau, self.settings.updates_per_block
        policy = self.adam_step(state.policy, grad, delay)
        policy_target = torch.lerp(state.policy_target, policy.vector, tau)
        critic_target = torch.lerp(state.critic_target, state.critic.vector, tau)
        return DDPGState(policy, state.critic, policy_target, critic_target), numbers

    def summary(self, numbers: Sequence[Tensor]) -> Tensor:
        """See `OffPolicy.summary`; the critic's metrics are means over the block."""
        *critic, policy_loss = numbers
        critic_loss, q = torch.stack(critic).mean(0).unbind()
        return torch.stack((critic_loss, *policy_loss, q))
