"""Returns and advantages: pure functions over [T, L], time first.

Everywhere `continues` is 0 where a step ended in a terminal state and 1 elsewhere, and `ended` is
true wherever an episode ended, terminated or truncated. `next_value[t]` is the value of the true
successor of step t, so a truncated episode and the cut after the last step bootstrap from it and
only a terminal state does not.
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


def discounted_sums(x: Tensor, ended: Tensor, discount: float, last: Tensor) -> Tensor:
    """Gₜ = xₜ + d (1 - endedₜ) Gₜ₊₁ with G_T = `last` ([L]).

    By doubling (Hillis & Steele 1986): after k passes a row holds the sum of 2ᵏ terms and the
    factor of what follows them, so log₂ T passes over the whole do instead of T over its rows.
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
