"""Advantage actor-critic: one gradient step a round (Mnih et al. 2016, section 4, synchronous).

Departures from the paper:
    - all lanes' steps make one batch and one gradient instead of one gradient a thread;
    - Adam instead of RMSProp, whose shared statistics had no bias correction: with steps this
      seldom its first ones would be the largest;
    - `gae_lambda` below 1 gives generalised advantage estimates; at 1 they are the paper's n-step
      returns, n up to the length of the rollout;
    - observations are normalised, and rewards scaled, by running moments;
    - under lag, what an older policy collected is weighted (`correction`; on_policy.corrected).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from walle.algos.base import Capabilities, Experience, NetSettings, Normalizers, Problem, values
from walle.algos.on_policy import advantages, check_on_policy, corrected, remaining
from walle.errors import ConfigError
from walle.learning import losses
from walle.learning.compiled import attempt, choose
from walle.learning.sgd import AdamSettings, AdamState, Batch, Info, Sgd
from walle.types import PolicySnapshot, Rollout


@dataclass
class A2CSettings:
    """conf/algo/a2c.yaml, where every key is explained."""

    name: str
    gamma: float
    gae_lambda: float
    learning_rate: float
    schedule: str
    adam_epsilon: float
    value_weight: float
    entropy_weight: float
    max_grad_norm: float | None
    normalize_advantages: bool
    normalize_observations: bool
    normalize_rewards: bool
    obs_clip: float
    correction: str
    compile: str

    def __post_init__(self) -> None:
        """Refuses what cannot work."""
        check_on_policy(self, "learning_rate", "adam_epsilon", "max_grad_norm")
        if self.value_weight < 0:
            raise ConfigError(f"algo.value_weight={self.value_weight} must not be negative")


class A2C:
    """One vector holds the policy's parameters, then the critic's."""

    capabilities: ClassVar[Capabilities] = Capabilities(A2CSettings)

    def __init__(self, settings: A2CSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        self.settings = settings
        self.problem = problem
        self.policy_factory = net.policy_factory(problem)
        self.policy = self.policy_factory()
        self.critic = net.critic(problem)
        generator = problem.generator()
        initial = (self.policy.init(generator), self.critic.init(generator))
        self.vector = torch.cat(initial).to(problem.device)
        self.adam = AdamState.zeros_like(self.vector)
        self.normalizers = Normalizers.as_asked(settings, problem)
        self.obs_clip = self.normalizers.obs_clip
        self.sgd = Sgd(
            self.loss,
            AdamSettings(epsilon=settings.adam_epsilon, max_grad_norm=settings.max_grad_norm),
        )
        self.choice = choose(
            settings.compile, problem.rounds, problem.device, rows_vary=problem.rounds_vary
        )
        self.version = 0
        self.env_steps = 0

    def split(self, vector: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The policy's and the critic's parameters."""
        sizes = [self.policy.layout.size, self.critic.layout.size]
        policy, critic = torch.split(vector, sizes)
        return self.policy.layout.unflatten(policy), self.critic.layout.unflatten(critic)

    def loss(self, vector: Tensor, batch: Batch) -> tuple[Tensor, Info]:
        """L = -E[A log π] + c_v L_value - c_h H, over the round's [B] rows."""
        s = self.settings
        policy, critic = self.split(vector)
        dist = self.policy.dist(policy, batch["obs"])
        log_prob = self.policy.log_prob(dist, batch["action"])
        policy_loss = losses.policy_gradient(log_prob, batch["advantage"])
        value_loss = losses.value_loss(self.critic(critic, batch["obs"]), batch["target"])
        entropy = self.policy.entropy(dist).mean()
        loss = policy_loss + s.value_weight * value_loss - s.entropy_weight * entropy
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    def value(self, obs: Tensor) -> Tensor:
        """V of observations [N, O]: [N]."""
        return self.critic(self.split(self.vector)[1], obs)

    def optimizers(self) -> list[Sgd]:
        """The one there is."""
        return [self.sgd]

    def warm_up(self) -> str:
        """Compiles the gradient step, if that pays."""

        def compile_step() -> None:
            example = self.batch(Experience.zeros(self.problem), None)
            self.sgd.compile(self.vector, example, len(example["obs"]))

        self.choice = attempt(self.choice, self.settings.compile, compile_step)
        return f"learning {self.choice}"

    @torch.no_grad()
    def batch(self, experience: Experience, ratio: Tensor | None) -> Batch:
        """The round's rows; `ratio` ([T, L]) where lag is to be corrected."""
        s, x = self.settings, experience
        value, next_value = values(self.value, x)
        advantage, target = advantages(
            x,
            value,
            next_value,
            s.gamma,
            s.gae_lambda,
            normalize=s.normalize_advantages,
            correction=s.correction,
            ratio=ratio,
        )
        rows = {
            "obs": x.obs,
            "action": x.action,
            "advantage": advantage,
            "target": target,
            "value": value,
        }
        return {name: tensor.flatten(0, 1) for name, tensor in rows.items()}

    def update(self, rollout: Rollout) -> dict[str, float]:
        """One gradient step; then the normaliser takes the round in."""
        s = self.settings
        experience, ratio = self.normalizers.experience(rollout), None
        if s.correction != "none" and (rollout.policy_version < self.version).any():
            experience, ratio = corrected(self.policy, self.split(self.vector)[0], experience)
        batch = self.batch(experience, ratio)
        rate = s.learning_rate * remaining(s.schedule, self.env_steps, self.problem.total_steps)
        result = self.sgd.step(self.vector, self.adam, batch, rate)
        self.vector, self.adam = result.vector, result.state
        self.normalizers.update(rollout)
        self.version += 1
        self.env_steps += rollout.steps
        return {
            **result.info,
            "explained_variance": losses.explained_variance(batch["value"], batch["target"]),
            "learning_rate": rate,
        }

    def snapshot(self) -> PolicySnapshot:
        """The policy's part of the vector, and the normaliser."""
        return self.normalizers.snapshot(self.version, self.vector[: self.policy.layout.size])

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {
            "vector": self.vector,
            "adam": self.adam.state_dict(),
            "normalizers": self.normalizers.state_dict(),
            "version": self.version,
            "env_steps": self.env_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        self.vector = state["vector"].to(self.problem.device)
        self.adam = AdamState.restored(state["adam"], self.problem.device)
        self.normalizers.load_state_dict(state["normalizers"])
        self.version = state["version"]
        self.env_steps = state["env_steps"]
