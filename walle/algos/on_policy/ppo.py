"""Proximal policy optimisation with clipping (Schulman et al. 2017).

Departures from the paper:
    - advantages are recomputed with the newest value function before every epoch
      (`recompute_advantages`; Andrychowicz et al. 2021, section 3.5, "GAE"), and are normalised
      only on request;
    - observations are normalised, and rewards scaled, by running moments (Engstrom et al. 2020);
    - a round is short rollouts of many lanes (128 of 32 steps) instead of one rollout of 2,048
      steps; minibatches have 1,024 rows; λ is 0.9 instead of 0.95; some tasks have their own
      settings (conf/env/tuned);
    - an episode that a time limit cuts bootstraps from its last observation;
    - policy and critic are separate networks, as in the paper's MuJoCo tasks, but share one
      optimizer, so that `value_weight` and the bound on the gradient's norm couple them; initial
      weights are orthogonal, and small in the policy's last layer (Engstrom et al. 2020);
    - the step size falls linearly on all tasks, from 2e-3 instead of 3e-4; Adam's β₂ is 0.99; and
      gradients are clipped by their norm;
    - the noise's size falls linearly, as in the paper's runs on Roboschool (`log_std_end`);
    - the updates of a round end when the KL divergence passes 1.5 times `target_kl`; on request the
      value loss is clipped (`value_clip`);
    - with a memory (`net=gru`), which policy and critic share, minibatches are sequences of steps;
      the memory's state before a sequence is recomputed together with the advantages
      (rows.SequenceRows); with images (`net=cnn`) policy and critic share the convolutions;
    - experience of an older policy is corrected (`correction`): the clipped ratio is relative to
      the newest policy, and advantages get a truncated weight (Hilton, Cobbe & Schulman 2022,
      "Batch size-invariance for policy optimization") or V-trace (Espeholt et al. 2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from walle.algos import engines
from walle.algos.base import Capabilities, Problem
from walle.algos.on_policy.base import (
    OnPolicyActorCritic,
    OnPolicySettings,
    StepBatch,
    schedule_factor,
)
from walle.algos.on_policy.experience import Experience
from walle.errors import ConfigError, not_negative, one_of, positive, within
from walle.learning import losses
from walle.learning.adam import AdamSettings
from walle.learning.native.passes import Loss
from walle.learning.step import Info, Optimizer
from walle.nets.factory import NetSettings
from walle.types import Rollout


@dataclass(kw_only=True)
class PPOSettings(OnPolicySettings):
    """Settings in conf/algo/ppo.yaml, which explains every key."""

    shared_minibatches: ClassVar[tuple[str, ...]] = ("minibatch_size",)
    clip: float = within("(0, 1)", example=0.2)
    epochs: int = positive()
    minibatch_size: int = positive()
    learning_rate: float = positive()
    schedule: str = one_of("linear", "constant")
    value_weight: float = not_negative()
    value_clip: float | None = positive()
    entropy_weight: float
    max_grad_norm: float | None = positive()
    adam_beta2: float = within("[0, 1)", example=0.999, default=0.999)
    target_kl: float | None = positive()
    recompute_advantages: bool
    log_std_end: float | None = within("[-10, 2]", example=-1.6, default=None)

    def __post_init__(self) -> None:
        """Checks the bounds; refuses an entropy bonus if a schedule sets the noise."""
        super().__post_init__()
        if self.log_std_end is not None and self.entropy_weight:
            raise ConfigError(
                f"algo.entropy_weight={self.entropy_weight} with algo.log_std_end="
                f"{self.log_std_end}, which sets Gaussian noise; add algo.log_std_end=null"
            )


TOO_FAR = 1.5  # updates of a round end when the KL divergence passes this multiple of its target


class PPO(OnPolicyActorCritic):
    """PPO: epochs of minibatches on the clipped ratio."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        PPOSettings, recurrent=True, images=True, asymmetric=True
    )

    def __init__(self, settings: PPOSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        super().__init__(settings, net, problem, settings.minibatch_size)
        self.log_std_end = settings.log_std_end if net.has_log_std(problem.action_space) else None
        self.adam_settings = AdamSettings(
            beta2=settings.adam_beta2, max_grad_norm=settings.max_grad_norm
        )
        self.optimizer = Optimizer(
            self.loss,
            self.adam_settings,
            stop=self.too_far if settings.target_kl is not None else None,
            shards=problem.shards,
        )

    def loss(self, vector: Tensor, batch: StepBatch) -> tuple[Tensor, Info]:
        """L = L_clip + c_v L_value - c_h H, over a minibatch."""
        s = self.settings
        policy, critic = self.networks.split(vector)
        features = self.rows.features(policy, batch.obs)
        if self.log_std_end is not None:  # `set_noise` sets the noise's size
            policy = {**policy, "log_std": policy["log_std"].detach()}
        dist = self.policy.dist(policy, features)
        log_prob = self.policy.log_prob(dist, batch.action)
        policy_loss, info = losses.ppo_clip(log_prob, batch.log_prob, batch.advantage, s.clip)
        value = self.critic(critic, features)
        value_loss = losses.value_loss(value, batch.target, batch.value, s.value_clip)
        entropy = self.policy.entropy(dist).mean()
        loss = policy_loss + s.value_weight * value_loss - s.entropy_weight * entropy
        info |= {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        return loss, info

    def load_native(self) -> None:
        """Takes all later passes in C++."""
        s = self.settings
        loss = Loss(
            objective="clip",
            clip=s.clip,
            value_weight=s.value_weight,
            value_clip=s.value_clip,
            entropy_weight=s.entropy_weight,
            noise_is_learned=self.log_std_end is None,
            kl_limit=None if s.target_kl is None else TOO_FAR * s.target_kl,
        )
        self.learn_in_cpp(engines.passes(self, self.critic, loss))

    def learn(self, experience: Experience, rollout: Rollout) -> dict[str, float]:
        """Passes up to `epochs` times over the round in minibatches, until the KL is too large."""
        metrics, gradient_steps = self.improve_networks(
            experience,
            epochs=self.settings.epochs,
            minibatch_size=self.rows.minibatch_size,
            recompute=self.settings.recompute_advantages,
        )
        self.set_noise(self.env_steps + rollout.env_steps)
        return {**metrics, "gradient_steps": gradient_steps}

    def start_from(self, state: dict[str, Any]) -> str:
        """See `OnPolicy.start_from`; the schedule of the noise begins again."""
        names = super().start_from(state)
        self.set_noise(self.env_steps)
        return names

    def set_noise(self, env_steps: int) -> None:
        """Sets the noise's size if it is not learned (LinearAnneal in table 4 of the paper)."""
        if (end := self.log_std_end) is None:
            return
        left = schedule_factor("linear", env_steps, self.problem.schedule_steps)
        vector = self.vector.clone()
        self.networks.split(vector)[0]["log_std"].fill_(end + (self.net.log_std - end) * left)
        self.vector = vector

    def too_far(self, info: Mapping[str, float]) -> bool:
        """Whether the KL divergence is above 1.5 times its target."""
        return bool(info["kl"] > TOO_FAR * self.settings.target_kl)
