"""Losses: pure functions of tensors. Each returns `(loss, info)` or a scalar; the caller logs."""

from __future__ import annotations

import torch
from torch import Tensor

Info = dict[str, Tensor]


def ppo_clip(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float
) -> tuple[Tensor, Info]:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7), to be minimised.

    -E[min(ρ A, clip(ρ, 1 - ε, 1 + ε) A)] with ρ = π(a|s) / π_old(a|s). All inputs [B].

    `kl` is the estimate E[(ρ - 1) - log ρ] (Schulman 2020, "Approximating KL divergence").
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    info = {
        "kl": (ratio - 1 - log_ratio).mean(),
        "clip_fraction": ((ratio - 1).abs() > clip).to(ratio.dtype).mean(),
    }
    return loss, info


def ppo_kl(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    kl: Tensor,
    beta: float | Tensor,
    eta: float,
    target: float,
) -> tuple[Tensor, Info]:
    """The KL-penalised surrogate (Schulman et al. 2017, eq. 8) with Batch PPO's hinge.

    -E[ρ A] + β k + η max(0, k - 2 target)², where k = E[KL(π_old || π)]. Inputs [B].
    """
    ratio = torch.exp(log_prob - old_log_prob)
    mean_kl = kl.mean()
    excess = torch.relu(mean_kl - 2 * target)
    loss = -(ratio * advantage).mean() + beta * mean_kl + eta * excess.square()
    return loss, {"kl": mean_kl}


def surrogate(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor) -> Tensor:
    """-E[π(a|s) / π_old(a|s) A] (Schulman et al. 2015, eq. 14), to be minimised; inputs [B]."""
    return -(torch.exp(log_prob - old_log_prob) * advantage).mean()


def policy_gradient(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """-E[A log π(a|s)], whose gradient is the policy gradient's negative.

    Mnih et al. 2016, section 4; Williams 1992. Inputs [B], `advantage` a constant.
    """
    return -(log_prob * advantage).mean()


def value_loss(
    value: Tensor, target: Tensor, old_value: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """Mean squared error, E[(v - target)²]; inputs [B].

    With `clip`, a value may not gain from moving further than `clip` from `old_value`: the mean of
    the larger of the clipped and the plain error (Baselines' PPO2).
    """
    error = (value - target).square()
    if clip is not None and old_value is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - target).square())
    return error.mean()


def explained_variance(value: Tensor, target: Tensor) -> float:
    """1 - Var[target - v] / Var[target]: 1 is perfect, 0 no better than a constant.

    NaN where the target does not vary.
    """
    variance = target.var(correction=0)
    if variance == 0:
        return float("nan")
    return float(1 - (target - value).var(correction=0) / variance)
