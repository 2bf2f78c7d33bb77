"""Adam on one flat parameter vector, as pure functions, and the results of passes with it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class AdamSettings(NamedTuple):
    """Settings of Adam (Kingma & Ba 2015), and the bound of the gradient's norm."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    max_grad_norm: float | None = None


class AdamState(NamedTuple):
    """Moments of the gradient, [P] each, and the number of steps taken, []."""

    mean: Tensor
    square: Tensor
    steps: Tensor

    @classmethod
    def zeros_like(cls, vector: Tensor) -> AdamState:
        """The state before the first step."""
        zero = torch.zeros_like(vector)
        return cls(zero, zero.clone(), torch.zeros((), device=vector.device))

    @classmethod
    def restored(cls, state: dict[str, Any], device: torch.device | str) -> AdamState:
        """The state returned by `state_dict`, moved to `device`."""
        return cls(*(state[name].to(device) for name in cls._fields))

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {name: x.clone() for name, x in self._asdict().items()}


class TrainState(NamedTuple):
    """Parameters [P] and their Adam state."""

    vector: Tensor
    adam: AdamState

    @classmethod
    def start(cls, vector: Tensor) -> TrainState:
        """The state before the first step on `vector` [P]."""
        return cls(vector, AdamState.zeros_like(vector))


class Result(NamedTuple):
    """The result of passes over rows: `Optimizer.minimise`, or `Passes.minimise` in C++."""

    vector: Tensor  # [P] the new parameters
    state: AdamState
    # `loss`, `grad_norm` and the entries of the loss's info, averaged over all minibatches,
    # including the one at which the stop criterion held.
    info: dict[str, float]
    gradient_steps: int
    stopped: bool  # whether the stop criterion ended the passes early


class Learned(NamedTuple):
    """The result of the passes over a round, and the first critic's estimates and targets, [N]."""

    result: Result
    value: Tensor
    target: Tensor


def clip_by_norm(grad: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor]:
    """Scales `grad` [P] down to a norm of at most `max_norm`; also returns its norm before."""
    norm = torch.linalg.vector_norm(grad)
    return grad if max_norm is None else grad * (max_norm / (norm + 1e-6)).clamp(max=1.0), norm


def adam_step(
    state: TrainState, grad: Tensor, rate: float | Tensor, settings: AdamSettings
) -> tuple[TrainState, Tensor]:
    """One step of Adam with the clipped gradient; also returns the norm [] before clipping.

    m ← β₁ m + (1 - β₁) g, v ← β₂ v + (1 - β₂) g², θ ← θ - αₜ m / (√v + εₜ) in step number t, with
    αₜ = α √(1 - β₂ᵗ) / (1 - β₁ᵗ) and εₜ = ε √(1 - β₂ᵗ), which correct the bias of both moments
    (Kingma & Ba 2015, algorithm 1 and end of section 2).
    """
    vector, adam = state
    grad, norm = clip_by_norm(grad, settings.max_grad_norm)
    steps = adam.steps + 1
    root = (1 - settings.beta2**steps).sqrt()
    mean = torch.lerp(adam.mean, grad, 1 - settings.beta1)
    square = torch.lerp(adam.square, grad * grad, 1 - settings.beta2)
    step = rate * root / (1 - settings.beta1**steps) * mean
    step = step / (square.sqrt() + settings.epsilon * root)
    return TrainState(vector - step, AdamState(mean, square, steps)), norm
