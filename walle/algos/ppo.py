"""Proximal policy optimisation with clipping (Schulman et al. 2017).

Departures from the paper:
    - advantages are recomputed with the newest value function before every epoch
      (`recompute_advantages`; Andrychowicz et al. 2021, section 3.5, "GAE"), and are normalised
      only on request;
    - observations are normalised, and rewards scaled, by running moments (Engstrom et al. 2020);
    - the step size falls linearly, and gradients are clipped by their norm;
    - with a memory (`net=gru`), which policy and critic share, minibatches are sequences of steps
      whose first state is recomputed whenever advantages are (rows.Sequences);
    - what an older policy collected, under lag, is corrected (`correction`): the ratio is clipped
      around the newest policy, and the rest is a truncated weight (Hilton, Cobbe & Schulman 2022,
      "Batch size-invariance for policy optimization") or V-trace (Espeholt et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from walle.algos.base import (
    Capabilities,
    Experience,
    NetSettings,
    Normalizers,
    Problem,
    check_positive,
    values,
)
from walle.algos.on_policy import advantages, check_on_policy, corrected, remaining
from walle.algos.rows import make_rows
from walle.errors import ConfigError
from walle.learning import losses
from walle.learning.compiled import Blocks, attempt, choose
from walle.learning.sgd import AdamSettings, AdamState, Batch, Info, Sgd
from walle.types import PolicySnapshot, Rollout


@dataclass
class PPOSettings:
    """conf/algo/ppo.yaml, where every key is explained."""

    name: str
    gamma: float
    gae_lambda: float
    clip: float
    epochs: int
    minibatch_size: int
    learning_rate: float
    schedule: str
    value_weight: float
    value_clip: float | None
    entropy_weight: float
    max_grad_norm: float | None
    target_kl: float | None
    normalize_advantages: bool
    recompute_advantages: bool
    normalize_observations: bool
    normalize_rewards: bool
    obs_clip: float
    correction: str
    compile: str

    def __post_init__(self) -> None:
        """Refuses what cannot work."""
        check_on_policy(self, "epochs", "learning_rate")
        if not 0 < self.clip < 1:
            raise ConfigError(f"algo.clip={self.clip} must lie between 0 and 1, as in 0.2")
        if self.value_weight < 0:
            raise ConfigError(f"algo.value_weight={self.value_weight} must not be negative")
        check_positive(self, "minibatch_size", "value_clip", "max_grad_norm", "target_kl")


class PPO:
    """One vector holds the policy's parameters, then the critic's."""

    capabilities: ClassVar[Capabilities] = Capabilities(PPOSettings, recurrent=True)

    def __init__(self, settings: PPOSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        self.settings = settings
        self.problem = problem
        self.policy_factory = net.policy_factory(problem)
        self.policy = self.policy_factory()
        self.critic = net.critic(problem)
        self.net = net
        self.rows = make_rows(self.policy, net, settings.minibatch_size)
        self.generator = problem.generator()
        initial = (self.policy.init(self.generator), self.critic.init(self.generator))
        self.vector = torch.cat(initial).to(problem.device)
        self.adam = AdamState.zeros_like(self.vector)
        self.normalizers = Normalizers.as_asked(settings, problem)
        self.obs_clip = self.normalizers.obs_clip
        self.sgd = Sgd(
            self.loss,
            AdamSettings(max_grad_norm=settings.max_grad_norm),
            stop=self.too_far if settings.target_kl is not None else None,
        )
        self.value_of: Callable[[Tensor, Tensor], Tensor] = self.value
        minibatches = -(-problem.batch_size // settings.minibatch_size)
        self.choice = choose(
            settings.compile, problem.rounds * settings.epochs * minibatches, problem.device
        )
        self.version = 0
        self.env_steps = 0

    def split(self, vector: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The policy's and the critic's parameters."""
        sizes = [self.policy.layout.size, self.critic.layout.size]
        policy, critic = torch.split(vector, sizes)
        return self.policy.layout.unflatten(policy), self.critic.layout.unflatten(critic)

    def loss(self, vector: Tensor, batch: Batch) -> tuple[Tensor, Info]:
        """L = L_clip + c_v L_value - c_h H, over a minibatch: [B] steps, or [S, K] in sequences."""
        s = self.settings
        policy, critic = self.split(vector)
        features = self.rows.features(policy, batch)
        dist = self.policy.dist(policy, features)
        log_prob = self.policy.log_prob(dist, batch["action"])
        policy_loss, info = losses.ppo_clip(log_prob, batch["log_prob"], batch["advantage"], s.clip)
        value = self.critic(critic, features)
        value_loss = losses.value_loss(value, batch["target"], batch["value"], s.value_clip)
        entropy = self.policy.entropy(dist).mean()
        loss = policy_loss + s.value_weight * value_loss - s.entropy_weight * entropy
        info |= {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        return loss, info

    def value(self, vector: Tensor, features: Tensor) -> Tensor:
        """V of features [N, F] (see `Rows`) under the critic in `vector`: [N]."""
        return self.critic(self.split(vector)[1], features)

    def optimizers(self) -> list[Sgd]:
        """The one there is."""
        return [self.sgd]

    def warm_up(self) -> str:
        """Compiles the gradient step and the critic."""

        def compile_all() -> None:
            zeros = Experience.zeros(self.problem, self.net.state_size)
            self.sgd.compile(self.vector, self.batch(zeros, self.vector), self.rows.minibatch_size)
            self.value_of = Blocks(
                self.value,
                self.vector,
                self.net.features(self.problem),
                self.problem.batch_size,
            )

        self.choice = attempt(self.choice, self.settings.compile, compile_all)
        return f"learning {self.choice}"

    @torch.no_grad()
    def batch(
        self,
        experience: Experience,
        vector: Tensor,
        old_value: Tensor | None = None,
        ratio: Tensor | None = None,
    ) -> Batch:
        """The rows to learn from, advantages estimated with the critic in `vector`.

        `old_value` (as rows) is the round's first estimate; None if this is it. `ratio` ([T, L]) is
        the newest policy's over the acting one's, where lag is to be corrected.
        """
        s, x = self.settings, experience
        seen = self.rows.seen(self.split(vector)[0], x)
        value, next_value = values(partial(self.value_of, vector), seen)
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
        columns = {
            "obs": x.obs,
            "action": x.action,
            "log_prob": x.log_prob,
            "advantage": advantage,
            "target": target,
            "value": value,
        }
        batch = self.rows.cut(columns, x, seen)
        return batch if old_value is None else {**batch, "value": old_value}

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learns from one round; then the normaliser takes it in."""
        s = self.settings
        experience, ratio = self.normalizers.experience(rollout), None
        if s.correction != "none" and (rollout.policy_version < self.version).any():
            policy = self.split(self.vector)[0]
            seen, ratio = corrected(self.policy, policy, self.rows.seen(policy, experience))
            experience = experience._replace(log_prob=seen.log_prob)
        first = self.batch(experience, self.vector, ratio=ratio)
        rate = s.learning_rate * remaining(s.schedule, self.env_steps, self.problem.total_steps)
        result = self.sgd.minimise(
            self.vector,
            self.adam,
            first,
            epochs=s.epochs,
            minibatch_size=self.rows.minibatch_size,
            learning_rate=rate,
            generator=self.generator,
            remake=partial(self.batch, experience, old_value=first["value"], ratio=ratio)
            if s.recompute_advantages
            else None,
        )
        self.vector, self.adam = result.vector, result.state
        self.normalizers.update(rollout)
        self.version += 1
        self.env_steps += rollout.steps
        variance = losses.explained_variance(first["value"], first["target"])
        return {
            **result.info,
            "explained_variance": variance,
            "learning_rate": rate,
            "minibatches": result.minibatches,
        }

    def too_far(self, info: Mapping[str, float]) -> bool:
        """Whether the policy has left its trust region: KL beyond 1.5 x target."""
        assert self.settings.target_kl is not None
        return info["kl"] > 1.5 * self.settings.target_kl

    def snapshot(self) -> PolicySnapshot:
        """The policy's part of the vector, and the normaliser."""
        return self.normalizers.snapshot(self.version, self.vector[: self.policy.layout.size])

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {
            "vector": self.vector,
            "adam": self.adam.state_dict(),
            "normalizers": self.normalizers.state_dict(),
            "generator": self.generator.get_state(),
            "version": self.version,
            "env_steps": self.env_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        self.vector = state["vector"].to(self.problem.device)
        self.adam = AdamState.restored(state["adam"], self.problem.device)
        self.normalizers.load_state_dict(state["normalizers"])
        self.generator.set_state(state["generator"])
        self.version = state["version"]
        self.env_steps = state["env_steps"]
