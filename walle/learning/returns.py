"""Returns and advantages: pure functions of tensors [T, L], time first.

In all functions `continues` is 0 where a step reached a terminal state and 1 elsewhere, and `ended`
is true where an episode ended, terminated or truncated. `next_value[t]` is the value of the true
successor of step t. A truncated episode and the end of the rollout bootstrap from this value; a
terminal state does not.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _same_shape(**tensors: Tensor) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"all inputs need one shape [T, L], got {shapes}")


def td_errors(
    reward: Tensor, continues: Tensor, value: Tensor, next_value: Tensor, gamma: float
) -> Tensor:
    """δₜ = rₜ + γ cₜ v(sₜ₊₁) - v(sₜ), values at times [0, T)."""
    _same_shape(reward=reward, continues=continues, value=value, next_value=next_value)
    return reward + gamma * continues * next_value - value


def discounted_sums(x: Tensor, ended: Tensor, discount: float | Tensor, last: Tensor) -> Tensor:
    """Gₜ = xₜ + dₜ (1 - endedₜ) Gₜ₊₁ with G_T = `last` ([L]); d is one number or [T, L].

    The sums are computed by doubling (Hillis & Steele 1986): after k passes each entry is the sum
    of 2ᵏ terms, so log₂ T passes over whole tensors replace T steps over their rows.
    """
    _same_shape(x=x, ended=ended)
    factor = discount * (1 - ended.to(x.dtype))
    sums = x.clone()
    sums[-1] += factor[-1] * last
    span = 1
    while span < len(x):
        sums[:-span] += factor[: len(x) - span] * sums[span:]
        factor = factor[:-span] * factor[span:]
        span *= 2
    return sums


def gae(
    reward: Tensor,
    continues: Tensor,
    ended: Tensor,
    value: Tensor,
    next_value: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16).

    Aₜ = δₜ + γ λ (1 - endedₜ) Aₜ₊₁, with A_T = 0. Values at times [0, T).
    """
    delta = td_errors(reward, continues, value, next_value, gamma)
    return discounted_sums(delta, ended, gamma * lam, torch.zeros_like(delta[0]))


def vtrace(
    reward: Tensor,
    continues: Tensor,
    ended: Tensor,
    value: Tensor,
    next_value: Tensor,
    ratio: Tensor,
    gamma: float,
    lam: float,
    rho_max: float = 1.0,
    c_max: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace targets, and advantages without their weight ρₜ (Espeholt et al. 2018, sec. 4.2).

    With ρₜ = min(rho_max, ratioₜ), cₜ = λ min(c_max, ratioₜ) and δₜ from `td_errors`:
    vₜ - v(sₜ) = ρₜ δₜ + γ cₜ (1 - endedₜ) (vₜ₊₁ - v(sₜ₊₁)), which is zero from T on, and
    Aₜ = δₜ + γ λ (1 - endedₜ) (vₜ₊₁ - v(sₜ₊₁)), which the policy's gradient multiplies by ρₜ.
    Values at times [0, T).

    If all ratios are 1, the advantage is GAE's; with λ = 1 the target is then the n-step return.
    The paper's advantage has λ = 1, and its rollouts come from many actors' queues; here the
    rollouts are a round's, and `ratio` is taken once, before the round's first gradient step.

    Args:
        reward: [T, L], like all tensors here.
        continues: 0 after a terminal state.
        ended: an episode ended here.
        value: value of every step.
        next_value: value of the true successor.
        ratio: π(a|s) / μ(a|s), the learning policy's probability over the acting one's.
        gamma: discount.
        lam: λ.
        rho_max: ρ-bar, determines the policy whose values the targets estimate.
        c_max: c-bar, bounds how far a TD error changes earlier targets.

    Returns:
        targets, and advantages without the factor ρₜ.
    """
    _same_shape(reward=reward, ended=ended, ratio=ratio)
    delta = td_errors(reward, continues, value, next_value, gamma)
    rho, c = ratio.clamp(max=rho_max), lam * ratio.clamp(max=c_max)
    trace = discounted_sums(rho * delta, ended, gamma * c, torch.zeros_like(delta[0]))
    later = torch.cat((trace[1:], torch.zeros_like(trace[:1]))) * (1 - ended.to(delta.dtype))
    return value + trace, delta + gamma * lam * later
