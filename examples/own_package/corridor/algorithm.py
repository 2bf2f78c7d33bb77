"""An algorithm of one's own: reward-weighted regression with one gradient step a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos.base import AlgorithmSettings, Capabilities, Problem
from walle.algos.on_policy.experience import Normalizers
from walle.errors import positive, within
from walle.learning import returns
from walle.learning.adam import AdamSettings, AdamState
from walle.learning.step import Optimizer
from walle.nets.factory import NetSettings
from walle.types import PolicySnapshot, Rollout


@dataclass(kw_only=True)
class WeightedSettings(AlgorithmSettings):
    """Settings of `WeightedRegression`; a bound stands with each, and a default."""

    gamma: float = within("[0, 1]", example=0.99, default=0.99)
    learning_rate: float = positive(default=1e-2)
    temperature: float = positive(default=1.0)


class Batch(NamedTuple):
    """The steps of a round, [N, ...]."""

    obs: Tensor
    action: Tensor
    weight: Tensor


class WeightedRegression:
    """Imitates its own actions, weighted by exp(return to go / temperature).

    L = -E[w log π], with w = softmax of the standardised returns over the round, times its steps
    (Peters & Schaal 2007, equation 6, where returns take the place of rewards).
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        WeightedSettings,
        modes=("serial", "lock_step"),
        reason="it imitates the newest policy's own actions only",
    )
    obs_clip, replay = 10.0, None

    def __init__(self, settings: WeightedSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        self.settings, self.policy_factory = settings, net.policy_factory(problem)
        self.policy = self.policy_factory()
        self.vector = self.policy.init(problem.generator()).to(problem.device)
        self.adam = AdamState.zeros_like(self.vector)
        self.optimizer = Optimizer(self.loss, AdamSettings())
        gamma, clip = settings.gamma, self.obs_clip
        self.normalizers = Normalizers(problem, clip=clip, gamma=gamma, rewards=False)

    def loss(self, vector: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean of -w log π, and what to log."""
        dist = self.policy.dist(self.policy.layout.unflatten(vector), batch.obs)
        log_prob = self.policy.log_prob(dist, batch.action)
        return -(batch.weight * log_prob).mean(), {"entropy": -log_prob.mean()}

    def update(self, rollout: Rollout) -> dict[str, float]:
        """One gradient step on the round."""
        s, x = self.settings, self.normalizers.experience(rollout)
        to_go = returns.discounted_sums(x.reward, x.ended, s.gamma, torch.zeros(x.reward.shape[1]))
        score = (to_go - to_go.mean()) / (to_go.std() + 1e-8) / s.temperature
        weight = torch.softmax(score.flatten(), 0) * score.numel()
        batch = Batch(x.obs.flatten(0, 1), x.action.flatten(0, 1), weight)
        result = self.optimizer.step(self.vector, self.adam, batch, s.learning_rate)
        self.vector, self.adam = result.vector, result.state
        self.normalizers.update(rollout)
        return {**result.info, "weight_max": float(weight.max())}

    def optimizers(self) -> list[Optimizer]:
        """The optimizer."""
        return [self.optimizer]

    def warm_up(self) -> str:
        """Nothing is compiled."""
        return "learning eager: one gradient step a round"

    def snapshot(self) -> PolicySnapshot:
        """The newest policy."""
        return self.normalizers.snapshot(self.vector)

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        parts = {"adam": self.adam, "normalizers": self.normalizers}
        return {"vector": self.vector, **{name: part.state_dict() for name, part in parts.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self.vector, self.adam = state["vector"], AdamState(**state["adam"])
        self.normalizers.load_state_dict(state["normalizers"])
