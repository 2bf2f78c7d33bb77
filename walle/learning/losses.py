"""Losses: pure functions of tensors that return `(loss, info)` or a scalar."""

from __future__ import annotations

import torch
from torch import Tensor

Info = dict[str, Tensor]


LOG_LARGEST = 88.0  # whose exponential is just finite in float32


def likelihood_ratio(log_ratio: Tensor) -> Tensor:
    """ρ = π(a|s) / π_old(a|s) from its logarithm; its gradient is 0 where it would overflow."""
    return log_ratio.clamp(max=LOG_LARGEST).exp()


def ppo_clip(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float
) -> tuple[Tensor, Info]:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7), to be minimised.

    -E[min(ρ A, clip(ρ, 1 - ε, 1 + ε) A)] with ρ = π(a|s) / π_old(a|s). All inputs [B].

    `kl` is the estimate E[(ρ - 1) - log ρ] (Schulman 2020, "Approximating KL divergence").
    """
    log_ratio = log_prob - old_log_prob
    ratio = likelihood_ratio(log_ratio)
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
    ratio = likelihood_ratio(log_prob - old_log_prob)
    mean_kl = kl.mean()
    excess = torch.relu(mean_kl - 2 * target)
    loss = -(ratio * advantage).mean() + beta * mean_kl + eta * excess.square()
    return loss, {"kl": mean_kl}


def surrogate(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor) -> Tensor:
    """-E[π(a|s) / π_old(a|s) A] (Schulman et al. 2015, eq. 14), to be minimised; inputs [B]."""
    return -(likelihood_ratio(log_prob - old_log_prob) * advantage).mean()


def policy_gradient(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """-E[A log π(a|s)], whose gradient is the policy gradient's negative.

    Mnih et al. 2016, section 4; Williams 1992. Inputs [B], `advantage` a constant.
    """
    return -(log_prob * advantage).mean()


def value_loss(
    value: Tensor, target: Tensor, old_value: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """Mean squared error, E[(v - target)²]; inputs [B].

    With `clip` it is the mean of the larger of two errors: the error of v, and the error of v
    clipped to within `clip` of `old_value` (Baselines' PPO2).
    """
    error = (value - target).square()
    if clip is not None and old_value is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - target).square())
    return error.mean()


def td_target(reward: Tensor, continues: Tensor, next_q: Tensor, gamma: float) -> Tensor:
    """The target r + γ c Q(s', a') of DDPG and TD3, where c is 0 after a terminal state.

    `next_q` [K, B] holds one row for each critic; Q is the smallest, min_k Q_k (Fujimoto et al.
    2018, eq. 10). For DDPG K is 1 (Lillicrap et al. 2016, algorithm 1). The other arguments and the
    result are [B].
    """
    return reward + gamma * continues * next_q.amin(0)


def soft_td_target(
    reward: Tensor,
    continues: Tensor,
    next_q: Tensor,
    next_log_prob: Tensor,
    temperature: Tensor,
    gamma: float,
) -> Tensor:
    """The target r + γ c (min_k Q_k(s', a') - α log π(a'|s')) of SAC.

    Haarnoja et al. 2018b ("Soft actor-critic algorithms and applications"), eq. 3 and 5.

    `next_q` is [K, B]; `temperature` is α, []; the other arguments and the result are [B].
    """
    soft = next_q - temperature * next_log_prob
    return td_target(reward, continues, soft, gamma)


def target_policy_smoothing(action: Tensor, noise: Tensor, scale: float, bound: float) -> Tensor:
    """Target policy smoothing, clip(a + clip(σ ε, -c, c), -1, 1).

    Fujimoto et al. 2018 ("Addressing function approximation error in actor-critic methods"), 5.3.
    `action` and standard normal `noise` [B, A]; σ is `scale`, c is `bound`.
    """
    return (action + (scale * noise).clamp(-bound, bound)).clamp(-1.0, 1.0)


def critic_loss(q: Tensor, target: Tensor) -> Tensor:
    """Σ_k E[(Q_k(s, a) - y)²] over the critics; `q` [K, B], `target` [B]."""
    return (q - target).square().mean(-1).sum()


def categorical_target(p: Tensor, y: Tensor, bound: float) -> Tensor:
    """A distribution projected onto N even atoms within ±`bound` (Bellemare et al. 2017).

    A probability p(y) [B, N] of the value y [B, N], clipped to the bounds, is divided between the
    two atoms beside y: an atom's share is proportional to y's distance from the other one (eq. 7
    and algorithm 1).
    """
    atoms = p.shape[-1]
    place = (y.clamp(-bound, bound) + bound) * ((atoms - 1) / (2 * bound))
    below = place.floor().clamp(max=atoms - 2)
    above, index = place - below, below.long()
    lower = torch.zeros_like(p).scatter_add(-1, index, p * (1 - above))
    return lower.scatter_add(-1, index + 1, p * above)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-Σ_k E[Σ_i p_i log q_ki] over the critics; `logits` of q [K, B, N], `target` p [B, N]."""
    return -(target * logits.log_softmax(-1)).sum(-1).mean(-1).sum()


def deterministic_policy_loss(q: Tensor) -> Tensor:
    """-E[Q(s, π(s))], for DDPG and TD3 (Silver et al. 2014); `q` [B]."""
    return -q.mean()


def soft_policy_loss(q: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """E[α log π(a|s) - min_k Q_k(s, a)] with a ~ π (Haarnoja et al. 2018b, eq. 7).

    `q` [K, B] and `log_prob` [B] belong to actions that are differentiable in the policy's
    parameters; α is [].
    """
    return (temperature * log_prob - q.amin(0)).mean()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """-log α · E[log π(a|s) + H̄]: α falls while the entropy is above H̄.

    Haarnoja et al. 2018b, eq. 18, with log α instead of α as in the authors' code.
    `log_temperature` []; `log_prob` [B].
    """
    return -log_temperature * (log_prob + target_entropy).mean()


def explained_variance(value: Tensor, target: Tensor) -> float:
    """1 - Var[target - v] / Var[target]: 1 is perfect, and 0 is no better than a constant.

    It is NaN if the target does not vary.
    """
    variance = target.var(correction=0)
    if variance == 0:
        return float("nan")
    return float(1 - (target - value).var(correction=0) / variance)
