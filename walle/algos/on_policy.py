"""What the on-policy algorithms share by calling it: checks, advantages, the correction of lag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from walle.algos.base import Experience, check_positive
from walle.errors import ConfigError, nearest
from walle.learning import returns
from walle.learning.compiled import MODES
from walle.nets.policies import Policy

CORRECTIONS = ("none", "truncated", "vtrace")


def check_on_policy(settings: Any, *positive: str) -> None:
    """The bounds that on-policy settings share; `positive` names those that must be.

    Raises:
        ConfigError: the first that does not hold.
    """
    for name in ("gamma", "gae_lambda"):
        value = getattr(settings, name)
        if not 0 <= value <= 1:
            raise ConfigError(f"algo.{name}={value} must lie in [0, 1], as in 0.99")
    check_positive(settings, "obs_clip", *positive)
    settings.compile = str(settings.compile).lower()  # YAML's true and false are not strings
    if settings.compile not in MODES:
        raise ConfigError(f"algo.compile={settings.compile!r} must be 'auto', 'true' or 'false'")
    if getattr(settings, "schedule", "constant") not in ("linear", "constant"):
        raise ConfigError(f"algo.schedule={settings.schedule!r} must be 'linear' or 'constant'")
    check_choice(settings, correction=CORRECTIONS)


def check_choice(settings: Any, **choices: tuple[str, ...]) -> None:
    """Refuses a value that is none of its choices; a setting that is not there passes.

    Raises:
        ConfigError: the first that does not hold, with the nearest that would.
    """
    for name, allowed in choices.items():
        value = getattr(settings, name, allowed[0])
        if value not in allowed:
            raise ConfigError(f"algo.{name}={value!r} is unknown; {nearest(value, allowed)}")


@torch.no_grad()
def corrected(
    policy: Policy, params: Mapping[str, Tensor], experience: Experience
) -> tuple[Experience, Tensor]:
    """What an older policy μ collected, as seen from the newest one, π.

    Updates then begin with a ratio of 1 (Hilton et al. 2022, eq. 5).

    Returns:
        the experience with π's log-probabilities, and the ratios π / μ of its actions, [T, L].
    """
    dist = policy.dist(params, experience.obs)
    log_prob = policy.log_prob(dist, experience.action)
    return experience._replace(log_prob=log_prob), torch.exp(log_prob - experience.log_prob)


def advantages(
    experience: Experience,
    value: Tensor,
    next_value: Tensor,
    gamma: float,
    lam: float,
    *,
    normalize: bool = False,
    correction: str = "none",
    ratio: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Advantages and the targets of the value function, [T, L] each.

    Args:
        experience: the round.
        value: [T, L] of every step, as `values` gives it.
        next_value: [T, L] of its true successor.
        gamma: discount.
        lam: λ of the generalised advantage estimate.
        normalize: to mean 0 and standard deviation 1.
        correction: of lag: none, truncated (advantages are weighted by min(1, ratio)) or vtrace.
        ratio: [T, L] π / μ; None where no lag is to be corrected.
    """
    x = experience
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
    return advantage, target


def remaining(schedule: str, env_steps: int, total_steps: int) -> float:
    """The factor of the step size: falls linearly to 0 at `total_steps`, or stays 1."""
    return 1.0 if schedule == "constant" else max(0.0, 1 - env_steps / total_steps)
