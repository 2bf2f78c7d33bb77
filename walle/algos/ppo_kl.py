"""PPO with a KL penalty, as WALL-E ran it (Xu, Zhang & Zhao 2018; Hafner et al. 2017, Batch PPO).

The policy takes up to 20 full-batch steps on -E[ρ A] + β KL + η max(0, KL - 2 target)², and stops
when the KL passes four times its target; β and a multiplier of the step size adapt between rounds.
The value function is a network of its own, fitted on this round's and the previous round's data.

Departures from WALL-E's code:
    - an episode cut by its time limit bootstraps from the true successor instead of counting as
      terminal, so a rollout need not end with its episode;
    - one observation normaliser for all samplers instead of one each;
    - the value function's targets are λ-returns, since rollouts hold parts of episodes;
    - what an older policy collected, under lag, can be corrected (`correction`;
      on_policy.corrected), where WALL-E's asynchronous agent took it as it came.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from walle.algos.on_policy import advantages, check_on_policy, corrected
from walle.errors import ConfigError
from walle.learning import losses
from walle.learning.compiled import attempt, choose
from walle.learning.sgd import AdamSettings, AdamState, Batch, Info, Result, Sgd
from walle.types import PolicySnapshot, Rollout

BETA_MAX = 35.0
BETA_HIGH = 30.0
RATE_MIN, RATE_MAX = 0.1, 10.0
STEP = 1.5


@dataclass
class PPOKLSettings:
    """conf/algo/ppo_kl.yaml, where every key is explained."""

    name: str
    gamma: float
    gae_lambda: float
    kl_target: float
    eta: float
    epochs: int
    learning_rate: float
    value_epochs: int
    value_minibatch_size: int
    value_learning_rate: float
    normalize_advantages: bool
    normalize_observations: bool
    normalize_rewards: bool
    obs_clip: float
    correction: str
    compile: str

    def __post_init__(self) -> None:
        """Refuses what cannot work."""
        check_on_policy(self, "epochs", "learning_rate")
        check_positive(
            self, "kl_target", "value_epochs", "value_minibatch_size", "value_learning_rate"
        )
        if self.eta < 0:
            raise ConfigError(f"algo.eta={self.eta} must not be negative")


def adapt(beta: float, rate: float, kl: float, target: float) -> tuple[float, float]:
    """The next round's penalty weight β and step-size multiplier.

    KL > 2 target: β x1.5, at most 35, and the step / 1.5 while above 0.1 once β > 30.
    KL < target / 2: β / 1.5, at least 1/35, and the step x 1.5 while below 10 once β < 1/30.
    """
    if kl > 2 * target:
        beta = min(BETA_MAX, STEP * beta)
        if beta > BETA_HIGH and rate > RATE_MIN:
            rate /= STEP
    elif kl < target / 2:
        beta = max(1 / BETA_MAX, beta / STEP)
        if beta < 1 / BETA_HIGH and rate < RATE_MAX:
            rate *= STEP
    return beta, rate


class PPOKL:
    """Policy and critic have a vector and an optimiser each."""

    capabilities: ClassVar[Capabilities] = Capabilities(PPOKLSettings)

    def __init__(self, settings: PPOKLSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        self.settings = settings
        self.problem = problem
        self.policy_factory = net.policy_factory(problem)
        self.policy = self.policy_factory()
        self.critic = net.critic(problem)
        self.generator = problem.generator()
        self.vector = self.policy.init(self.generator).to(problem.device)
        self.critic_vector = self.critic.init(self.generator).to(problem.device)
        self.adam = AdamState.zeros_like(self.vector)
        self.critic_adam = AdamState.zeros_like(self.critic_vector)
        self.normalizers = Normalizers.as_asked(settings, problem)
        self.obs_clip = self.normalizers.obs_clip
        self.policy_sgd = Sgd(self.policy_loss, AdamSettings(epsilon=1e-8), stop=self.too_far)
        self.critic_sgd = Sgd(self.critic_loss, AdamSettings(epsilon=1e-8))
        minibatches = -(-2 * problem.batch_size // settings.value_minibatch_size)
        steps = {"policy": settings.epochs, "value function": settings.value_epochs * minibatches}
        self.choices = {
            name: choose(
                settings.compile,
                problem.rounds * count,
                problem.device,
                rows_vary=problem.rounds_vary and name == "policy",
            )
            for name, count in steps.items()
        }
        self.beta, self.rate = 1.0, 1.0
        self.previous: Batch | None = None
        self.version = 0

    def policy_loss(self, vector: Tensor, batch: Batch) -> tuple[Tensor, Info]:
        """The penalised surrogate over the whole round, [B] rows."""
        dist = self.policy.dist(self.policy.layout.unflatten(vector), batch["obs"])
        loss, info = losses.ppo_kl(
            self.policy.log_prob(dist, batch["action"]),
            batch["log_prob"],
            batch["advantage"],
            self.policy.kl(batch["dist"], dist),
            batch["beta"],
            self.settings.eta,
            self.settings.kl_target,
        )
        return loss, {**info, "policy_loss": loss, "entropy": self.policy.entropy(dist).mean()}

    def critic_loss(self, vector: Tensor, batch: Batch) -> tuple[Tensor, Info]:
        """E[(V - target)²] over a minibatch of [B] rows."""
        value = self.critic(self.critic.layout.unflatten(vector), batch["obs"])
        return losses.value_loss(value, batch["target"]), {}

    def value(self, obs: Tensor) -> Tensor:
        """V of observations [..., O]: [...]."""
        return self.critic(self.critic.layout.unflatten(self.critic_vector), obs)

    def optimizers(self) -> list[Sgd]:
        """The value function's: the policy's loss is no mean over the rows, for its hinge."""
        return [self.critic_sgd]

    def warm_up(self) -> str:
        """Compiles the steps of the policy and of the value function, each if it pays."""
        example = self.batch(Experience.zeros(self.problem))
        rows = {name: example[name] for name in ("obs", "target")}
        both = {name: torch.cat((x, x)) for name, x in rows.items()}
        size = self.settings.value_minibatch_size
        makers = {
            "policy": partial(self.policy_sgd.compile, self.vector, example, len(rows["obs"])),
            "value function": partial(self.critic_sgd.compile, self.critic_vector, both, size),
        }
        self.choices = {
            name: attempt(self.choices[name], self.settings.compile, make)
            for name, make in makers.items()
        }
        return "; ".join(f"{name} {choice}" for name, choice in self.choices.items())

    @torch.no_grad()
    def batch(self, experience: Experience, ratio: Tensor | None = None) -> Batch:
        """The round's rows: advantages, λ-returns, the old policy's distributions; and β.

        `ratio` ([T, L]) is the newest policy's over the acting one's, where lag is to be corrected.
        """
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
            "log_prob": x.log_prob,
            "dist": self.policy.dist(self.policy.layout.unflatten(self.vector), x.obs),
            "advantage": advantage,
            "target": target,
            "value": value,
        }
        beta = torch.tensor(self.beta, device=self.vector.device)
        return {name: tensor.flatten(0, 1) for name, tensor in rows.items()} | {"beta": beta}

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Improves the policy, adapts β and the step, fits the value function."""
        experience, ratio = self.normalizers.experience(rollout), None
        if self.settings.correction != "none" and (rollout.policy_version < self.version).any():
            params = self.policy.layout.unflatten(self.vector)
            experience, ratio = corrected(self.policy, params, experience)
        batch = self.batch(experience, ratio)
        used = {"beta": self.beta, "learning_rate": self.settings.learning_rate * self.rate}
        result = self.improve_policy(batch, used["learning_rate"])
        kl = self.kl(batch)
        self.beta, self.rate = adapt(self.beta, self.rate, kl, self.settings.kl_target)
        old_variance = losses.explained_variance(batch["value"], batch["target"])
        value_loss = self.fit_value(batch)
        self.normalizers.update(rollout)
        self.version += 1
        return {
            "policy_loss": result.info["policy_loss"],
            "value_loss": value_loss,
            "entropy": result.info["entropy"],
            "kl": kl,
            **used,
            "explained_variance_old": old_variance,
            "explained_variance": self.explained_variance(batch),
            "epochs": result.minibatches,
        }

    def improve_policy(self, batch: Batch, rate: float) -> Result:
        """Full-batch steps until `epochs` are done or the KL passes four times its target."""
        result = self.policy_sgd.minimise(
            self.vector,
            self.adam,
            batch,
            epochs=self.settings.epochs,
            minibatch_size=len(batch["obs"]),
            learning_rate=rate,
            generator=self.generator,
        )
        self.vector, self.adam = result.vector, result.state
        return result

    def too_far(self, info: Mapping[str, float]) -> bool:
        """Whether the KL has passed four times its target."""
        return info["kl"] > 4 * self.settings.kl_target

    @torch.no_grad()
    def kl(self, batch: Batch) -> float:
        """E[KL(old || new)] over the round."""
        dist = self.policy.dist(self.policy.layout.unflatten(self.vector), batch["obs"])
        return float(self.policy.kl(batch["dist"], dist).mean())

    def fit_value(self, batch: Batch) -> float:
        """Fits the value function on this and the previous round; returns the mean loss."""
        current = {name: batch[name] for name in ("obs", "target")}
        data = current
        if self.previous is not None:
            data = {name: torch.cat((self.previous[name], current[name])) for name in current}
        result = self.critic_sgd.minimise(
            self.critic_vector,
            self.critic_adam,
            data,
            epochs=self.settings.value_epochs,
            minibatch_size=self.settings.value_minibatch_size,
            learning_rate=self.settings.value_learning_rate,
            generator=self.generator,
        )
        self.critic_vector, self.critic_adam = result.vector, result.state
        self.previous = current
        return result.info["loss"]

    @torch.no_grad()
    def explained_variance(self, batch: Batch) -> float:
        """Of the fitted value function on this round's targets."""
        return losses.explained_variance(self.value(batch["obs"]), batch["target"])

    def snapshot(self) -> PolicySnapshot:
        """The policy's vector, and the normaliser."""
        return self.normalizers.snapshot(self.version, self.vector)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {
            "vector": self.vector,
            "adam": self.adam.state_dict(),
            "critic_vector": self.critic_vector,
            "critic_adam": self.critic_adam.state_dict(),
            "normalizers": self.normalizers.state_dict(),
            "generator": self.generator.get_state(),
            "previous": self.previous,
            "beta": self.beta,
            "rate": self.rate,
            "version": self.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        device = self.problem.device
        self.vector = state["vector"].to(device)
        self.critic_vector = state["critic_vector"].to(device)
        self.adam = AdamState.restored(state["adam"], device)
        self.critic_adam = AdamState.restored(state["critic_adam"], device)
        self.normalizers.load_state_dict(state["normalizers"])
        self.generator.set_state(state["generator"])
        previous = state["previous"]
        self.previous = previous and {name: x.to(device) for name, x in previous.items()}
        self.beta, self.rate = state["beta"], state["rate"]
        self.version = state["version"]
