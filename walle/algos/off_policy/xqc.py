"""XQC (Palenicek et al. 2025, arXiv 2509.25174): SAC whose critics are well conditioned.

XQC is SAC with five changes: policy and critics are batch-normalised; the incoming weights of each
unit have unit norm; a critic computes a distribution over values, learned by cross-entropy; rewards
are divided by the deviation of returns; and the policy moves once every `policy_delay` updates of
the critics.

Departures from the paper:
    - two hidden layers of 256 units, instead of the critics' four of 512 and the policy's four of
      256; one update a step instead of two (HalfCheetah, Walker2d: two);
    - the step size falls from 1e-3 to 0, instead of from 3e-4 to 3e-5; the discount is 0.99, not a
      value computed from the length of episodes;
    - log σ is kept within [-20, 2], instead of [-10, 2]; normalised inputs are not shifted;
    - the gradient of the critics' loss does not flow through (s', a'), although the moments of the
      batch depend on (s', a') too; this takes less time;
    - if a minibatch has several shards, each shard is normalised as a batch of its own;
    - an episode that a time limit cuts is not terminal: its last step bootstraps;
    - collection and updates alternate by rounds: each round's steps are followed by
      `updates_per_step` updates for every step, for any number of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos import engines
from walle.algos.base import Capabilities, Problem
from walle.algos.off_policy.base import Sample
from walle.algos.off_policy.sac import SAC, SACSettings
from walle.errors import ConfigError, positive
from walle.learning import losses
from walle.learning.adam import TrainState
from walle.learning.native.replay_updates import NativeUpdates
from walle.learning.step import gradient_of
from walle.learning.trees import replaced
from walle.nets.factory import NetSettings
from walle.nets.normed import MOMENTUM, NormedMLPs

_BOUND = 5.0  # of values, in deviations of the return


@dataclass(kw_only=True)
class XQCSettings(SACSettings):
    """Settings in conf/algo/xqc.yaml, which explains every key."""

    policy_delay: int = positive()
    normalize_rewards: bool = True


class XQCState(NamedTuple):
    """Parameters and optimizers' states, the critics' slow copy [Q], and running moments.

    The vectors and moments are those of `NormedMLPs`.
    """

    policy: TrainState
    critic: TrainState
    log_temperature: TrainState
    critic_target: Tensor
    policy_moments: Tensor
    critic_moments: Tensor


class XQC(SAC):
    """XQC: SAC with batch-normalised networks of unit-norm weights, and categorical values."""

    capabilities: ClassVar[Capabilities] = Capabilities(XQCSettings, replay=True, asymmetric=True)
    entropy, log_temperature, outputs = -0.5, -4.6051702, 101  # α starts at 0.01
    settings: XQCSettings

    def __init__(self, settings: XQCSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters; refuses shards of one row and layers normalised twice."""
        if net.activation.endswith("norm_relu"):
            raise ConfigError(
                f"net.activation={net.activation}: xqc normalises its layers; use relu"
            )
        if settings.minibatch_size < 2 * problem.shards:
            raise ConfigError(
                f"algo.minibatch_size={settings.minibatch_size} with {problem.shards} shards: batch"
                f" normalisation needs two rows a shard at least; use {2 * problem.shards} or more"
            )
        self.atoms = torch.linspace(-_BOUND, _BOUND, self.outputs, device=problem.device)
        super().__init__(settings, net, problem)

    def draw_parameters(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """See `ContinuousOffPolicy`."""
        self.normed_policy = NormedMLPs([self.policy.mlp])
        self.normed_critic = NormedMLPs(self.critic.mlps)
        return self.normed_policy.init(generator), self.normed_critic.init(generator)

    def start(self, policy: Tensor, critic: Tensor) -> Any:
        """The state before the first update; the target is a copy of the critics."""
        moments = (net.initial_moments() for net in (self.normed_policy, self.normed_critic))
        state = super().start(policy, critic)
        return XQCState(*state, *(x.to(policy.device) for x in moments))

    def native_updates(self) -> NativeUpdates:
        """See `OffPolicy`."""
        parts = engines.actor_critic(self)
        return NativeUpdates(self, "xqc", parts, self.target_entropy, _BOUND)

    @property
    def policy_vector(self) -> Tensor:
        """The parameters of an ordinary policy, whose weights have absorbed the running moments."""
        return self.normed_policy.fold(self.state.policy.vector, self.state.policy_moments)

    def values(self, logits: Tensor) -> Tensor:
        """Q = Σ_i z_i softmax(logits)_i of logits [..., N]: [...]."""
        return logits.softmax(-1) @ self.atoms

    def critic_gradient(self, state: Any, batch: Sample) -> tuple[Tensor, Tensor]:
        """The gradient of the critics' loss, [Q]; the loss, mean value and the batch's moments.

        Critics and their slow copies normalise (s, a) and (s', a') as one batch, with a' ~ π(s').
        The target is the distribution of r + γ c (Z' - α log π(a'|s')). Z' is the distribution at
        (s', a') computed by the slow copy whose mean there is smaller.
        """
        x, temperature = batch.transitions, state.log_temperature.vector.exp()
        policy = self.normed_policy.fold(state.policy.vector, state.policy_moments)
        next_action, log_prob = self.policy.draw(policy, x.next_obs, batch.noise[:, 0])
        pairs = torch.cat((x.obs, x.next_obs)), torch.cat((x.action, next_action))
        rows = len(x.reward)
        after = slice(rows, None)
        next_logits, _ = self.normed_critic.train(state.critic_target, *pairs, rows=after)
        smaller = self.values(next_logits).argmin(0)
        p = next_logits[smaller, torch.arange(rows, device=smaller.device)].softmax(-1)
        soft = (self.atoms - temperature * log_prob.unsqueeze(-1)).T  # [N, B]
        y = x.reward + self.settings.gamma * x.continues * soft
        target = losses.categorical_target(p, y.T, _BOUND)

        def loss(vector: Tensor) -> tuple[Tensor, list[Tensor]]:
            logits, moments = self.normed_critic.train(vector, *pairs, rows=slice(rows))
            return losses.cross_entropy(logits, target), [self.values(logits).mean(), moments]

        return gradient_of(loss, state.critic.vector)

    def critic_step(self, state: Any, grad: Tensor, numbers: Tensor) -> tuple[Any, Tensor]:
        """Updates the critics (with the gradient [Q]), their running moments and the slow copy."""
        critic = _projected(self.normed_critic, self.adam_step(state.critic, grad))
        after = replaced(
            state,
            critic=critic,
            critic_target=torch.lerp(state.critic_target, critic.vector, self.settings.tau),
            critic_moments=_moved(state.critic_moments, numbers[2:]),
        )
        return after, numbers[:2]

    def policy_gradient(self, state: Any, batch: Sample) -> tuple[Tensor, Tensor]:
        """The gradient of the policy's loss, [P]; loss, mean log π(a|s), α, the batch's moments."""
        obs, temperature = batch.transitions.obs, state.log_temperature.vector.exp()
        critic = self.normed_critic.fold(state.critic.vector, state.critic_moments)

        def loss(vector: Tensor) -> tuple[Tensor, list[Tensor]]:
            outputs, moments = self.normed_policy.train(vector, obs)
            action, log_prob = self.policy.squash(outputs[0], batch.noise[:, 1])
            q = self.values(self.critic.logits(critic, obs, action))
            value = losses.soft_policy_loss(q, log_prob, temperature)
            return value, [log_prob.mean(), temperature, moments]

        return gradient_of(loss, state.policy.vector)

    def policy_step(self, state: Any, grad: Tensor, numbers: Tensor) -> tuple[Any, Tensor]:
        """Updates the policy (with the gradient [P]), its running moments and the temperature."""
        delay = self.settings.updates_per_block
        after = replaced(
            state,
            policy=_projected(self.normed_policy, self.adam_step(state.policy, grad, delay)),
            log_temperature=self.temperature_step(state.log_temperature, numbers[1]),
            policy_moments=_moved(state.policy_moments, numbers[3:]),
        )
        return after, numbers[:3]


def _projected(nets: NormedMLPs, part: TrainState) -> TrainState:
    return replaced(part, vector=nets.project(part.vector))


def _moved(moments: Tensor, seen: Tensor) -> Tensor:
    """The running moments after those of a batch."""
    return torch.lerp(moments, seen.view_as(moments), 1 - MOMENTUM)
