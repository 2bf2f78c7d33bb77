"""What the on-policy algorithms share: a round comes in, the policy improves, the round goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from walle.algos.base import AlgorithmSettings, Capabilities
from walle.algos.experience import Experience, Normalizers, values
from walle.algos.networks import NetSettings
from walle.algos.problem import Problem
from walle.errors import one_of, positive, within
from walle.learning import returns
from walle.learning.compiled import MODES, Compiling
from walle.learning.optimizer import Optimizer
from walle.types import PolicySnapshot, Rollout


@dataclass(kw_only=True)
class OnPolicySettings(AlgorithmSettings):
    """What every on-policy algorithm can be told; its YAML explains every key."""

    gamma: float = within("[0, 1]", example=0.99)
    gae_lambda: float = within("[0, 1]", example=0.99)
    normalize_advantages: bool
    normalize_observations: bool
    normalize_rewards: bool
    obs_clip: float = positive()
    correction: str = one_of("none", "truncated", "vtrace")
    compile: str = one_of(*MODES)

    def __post_init__(self) -> None:
        """Refuses what cannot work."""
        self.compile = str(self.compile).lower()  # YAML's true and false are not strings
        super().__post_init__()


class Estimates(NamedTuple):
    """What a round says of its steps, [T, L] each.

    Attributes:
        advantage: how much better the action was than the policy's mean action.
        target: of the value function.
        value: the value function's estimate before it learned from the round.
    """

    advantage: Tensor
    target: Tensor
    value: Tensor


class OnPolicy(ABC):
    """Learns from one round at a time, and forgets it.

    A subclass adds its loss, `policy_vector`, `learn`, and the state it changes.
    """

    capabilities: ClassVar[Capabilities]
    replay = None
    compiling: Compiling

    def __init__(self, settings: Any, net: NetSettings, problem: Problem) -> None:
        """Makes the policy; the subclass draws the initial parameters from `generator`."""
        self.settings, self.problem, self.net = settings, problem, net
        self.policy_factory = net.policy_factory(problem)
        self.policy = self.policy_factory()
        self.generator = problem.generator()
        self.normalizers = Normalizers.from_settings(settings, problem)
        self.obs_clip = self.normalizers.obs_clip
        self.env_steps = 0

    @property
    @abstractmethod
    def policy_vector(self) -> Tensor:
        """The policy's parameters, [P]."""

    @abstractmethod
    def learn(self, experience: Experience, rollout: Rollout) -> dict[str, float]:
        """Improves the policy by one round; returns what to log.

        Args:
            experience: the round, normalised; lag is corrected as far as the settings ask.
            rollout: the round as it came.
        """

    @abstractmethod
    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers that several learners can share."""

    def features(self, experience: Experience) -> Experience:
        """The round with what policy and critic see in the place of its observations."""
        return experience

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learns from one round; then the normaliser takes the round in."""
        experience = self.normalizers.experience(rollout)
        if self.settings.correction != "none" and rollout.lag.any():
            experience = self.as_seen_now(experience)
        metrics = self.learn(experience, rollout)
        self.normalizers.update(rollout)
        self.env_steps += rollout.env_steps
        return metrics

    @torch.no_grad()
    def as_seen_now(self, experience: Experience) -> Experience:
        """What an older policy μ collected, with the newest policy π's log-probabilities.

        Updates then begin with a ratio of 1 (Hilton et al. 2022, eq. 5), and π / μ is kept to
        correct the advantages.
        """
        params = self.policy.layout.unflatten(self.policy_vector)
        dist = self.policy.dist(params, self.features(experience).obs)
        log_prob = self.policy.log_prob(dist, experience.action)
        ratio = torch.exp(log_prob - experience.log_prob)
        return experience._replace(log_prob=log_prob, ratio=ratio)

    def estimates(
        self,
        experience: Experience,
        value_of: Callable[[Tensor], Tensor],
        gae_lambda: float | None = None,
    ) -> Estimates:
        """Advantages and targets of a round, as the settings ask for them.

        Args:
            experience: the round, with features in the place of observations.
            value_of: maps [N, F] to values [N].
            gae_lambda: instead of the settings'.
        """
        s = self.settings
        value, next_value = values(value_of, experience)
        return advantages(
            experience,
            value,
            next_value,
            s.gamma,
            s.gae_lambda if gae_lambda is None else gae_lambda,
            normalize=s.normalize_advantages,
            correction=s.correction,
        )

    def warm_up(self) -> str:
        """Compiles what pays; says what was chosen, and why."""
        return self.compiling.run()

    def snapshot(self) -> PolicySnapshot:
        """The policy's parameters and the normaliser."""
        return self.normalizers.snapshot(self.policy_vector)

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {
            "normalizers": self.normalizers.state_dict(),
            "generator": self.generator.get_state(),
            "env_steps": self.env_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self.normalizers.load_state_dict(state["normalizers"])
        self.generator.set_state(state["generator"])
        self.env_steps = state["env_steps"]


def advantages(
    experience: Experience,
    value: Tensor,
    next_value: Tensor,
    gamma: float,
    lam: float,
    *,
    normalize: bool = False,
    correction: str = "none",
) -> Estimates:
    """Advantages and the targets of the value function, [T, L] each.

    Args:
        experience: the round; its `ratio`, where there is one, says what lag did.
        value: [T, L] of every step, as `values` gives it.
        next_value: [T, L] of its true successor.
        gamma: discount.
        lam: λ of the generalised advantage estimate.
        normalize: to mean 0 and standard deviation 1.
        correction: of lag: none, truncated (advantages are weighted by min(1, ratio)) or vtrace.
    """
    x, ratio = experience, experience.ratio
    steps = x.reward, x.continues, x.ended, value, next_value
    if ratio is not None and correction == "vtrace":
        target, advantage = returns.vtrace(*steps, ratio, gamma, lam)
    else:
        advantage = returns.gae(*steps, gamma, lam)
        target = advantage + value
    if normalize:
        std = advantage.std(correction=min(1, advantage.numel() - 1))  # of a single step: 0
        advantage = (advantage - advantage.mean()) / (std + 1e-8)
    if ratio is not None and correction == "truncated":
        advantage = advantage * ratio.clamp(max=1.0)
    return Estimates(advantage, target, value)


def as_rows(x: Tensor) -> Tensor:
    """Every step as a row: [T, L, ...] -> [T L, ...]."""
    return x.flatten(0, 1)


def remaining(schedule: str, env_steps: int, total_steps: int) -> float:
    """The factor of the step size: falls linearly to 0 at `total_steps`, or stays 1."""
    return 1.0 if schedule == "constant" else max(0.0, 1 - env_steps / total_steps)
