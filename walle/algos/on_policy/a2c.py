"""Advantage actor-critic: one gradient step a round (Mnih et al. 2016, section 4, synchronous).

Departures from the paper:
    - all lanes' steps make one batch and one gradient instead of one gradient a thread;
    - a gradient is the mean over the steps, not their sum, and is clipped by its norm; the value
      loss is weighted (`value_weight`);
    - policy and critic are separate networks, which share layers only if they see images
      (`net=cnn`); with continuous actions the deviation does not depend on the state unless
      `net.scale=state`;
    - the entropy bonus is 0 by default (the paper's is 0.01, and 0.0001 with continuous actions);
    - Adam instead of RMSProp: RMSProp has no bias correction, so with so few steps its first steps
      would be the largest;
    - `gae_lambda` below 1 gives generalised advantage estimates; at 1 they are the paper's n-step
      returns, with n up to the length of the rollout: 8 steps by default, at most 5 in the paper;
    - an episode that a time limit cuts bootstraps from its last observation;
    - observations are normalised, and rewards scaled, by running moments;
    - experience that an older policy collected is weighted (`correction`;
      OnPolicy.with_newest_log_probs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from walle.algos import engines
from walle.algos.base import Capabilities, Problem
from walle.algos.engines import Part
from walle.algos.on_policy.base import OnPolicyActorCritic, OnPolicySettings, StepBatch
from walle.algos.on_policy.experience import Experience
from walle.errors import not_negative, one_of, positive
from walle.learning import losses
from walle.learning.adam import AdamSettings
from walle.learning.native.passes import Loss
from walle.learning.step import Info, Optimizer
from walle.nets.factory import NetSettings
from walle.types import Rollout


@dataclass(kw_only=True)
class A2CSettings(OnPolicySettings):
    """Settings in conf/algo/a2c.yaml, which explains every key."""

    learning_rate: float = positive()
    schedule: str = one_of("linear", "constant")
    adam_epsilon: float = positive()
    value_weight: float = not_negative()
    entropy_weight: float
    max_grad_norm: float | None = positive()


class A2C(OnPolicyActorCritic):
    """A2C: one gradient step a round."""

    capabilities: ClassVar[Capabilities] = Capabilities(A2CSettings, images=True, asymmetric=True)

    def __init__(self, settings: A2CSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        super().__init__(settings, net, problem, problem.batch_size)
        self.adam_settings = AdamSettings(
            epsilon=settings.adam_epsilon, max_grad_norm=settings.max_grad_norm
        )
        self.optimizer = Optimizer(self.loss, self.adam_settings, shards=problem.shards)

    def loss(self, vector: Tensor, batch: StepBatch) -> tuple[Tensor, Info]:
        """L = -E[A log π] + c_v L_value - c_h H, over the round."""
        s = self.settings
        policy, critic = self.networks.split(vector)
        features = self.rows.features(policy, batch.obs)
        dist = self.policy.dist(policy, features)
        log_prob = self.policy.log_prob(dist, batch.action)
        policy_loss = losses.policy_gradient(log_prob, batch.advantage)
        value_loss = losses.value_loss(self.critic(critic, features), batch.target)
        entropy = self.policy.entropy(dist).mean()
        loss = policy_loss + s.value_weight * value_loss - s.entropy_weight * entropy
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    def parts(self) -> list[Part]:
        """The gradient step of a round."""
        compile_step = None if self.problem.rounds_vary else self.compile
        load = self.load_native if engines.has_policy(self) else None
        return [Part("learning", self.problem.rounds, load, compile_step)]

    def load_native(self) -> None:
        """Takes all later gradient steps in C++."""
        weights = {k: getattr(self.settings, k) for k in ("value_weight", "entropy_weight")}
        self.learn_in_cpp(engines.passes(self, self.critic, Loss("policy_gradient", **weights)))

    def learn(self, experience: Experience, rollout: Rollout) -> dict[str, float]:  # noqa: ARG002
        """Takes one gradient step on the whole round."""
        rows = experience.reward.numel()
        metrics, _ = self.improve_networks(experience, epochs=1, minibatch_size=rows)
        return metrics
