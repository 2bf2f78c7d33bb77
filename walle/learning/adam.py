"""Adam on one flat parameter vector, as pure functions."""

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
        """The state that `state_dict` returned, moved to `device`."""
        return cls(**{name: value.to(device) for name, value in state.items()})

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {name: value.clone() for name, value in self._asdict().items()}


def clip_by_norm(grad: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor]:
    """Scales `grad` [P] down to the norm `max_norm` at most; also returns the norm before."""
    norm = torch.linalg.vector_norm(grad)
    if max_norm is None:
        return grad, norm
    return grad * (max_norm / (norm + 1e-6)).clamp(max=1.0), norm


def step_sizes(steps: Tensor, learning_rate: Tensor, settings: AdamSettings) -> Tensor:
    """The corrected step size and epsilon of step number t = `steps` ([], from 1): [2].

    α √(1 - β₂ᵗ) / (1 - β₁ᵗ) and ε √(1 - β₂ᵗ) correct the bias of both moments (Kingma & Ba 2015,
    end of section 2).
    """
    root = (1 - settings.beta2**steps).sqrt()
    rate = learning_rate * root / (1 - settings.beta1**steps)
    return torch.stack((rate, settings.epsilon * root))


def adam_step(
    vector: Tensor, grad: Tensor, state: AdamState, sizes: Tensor, settings: AdamSettings
) -> tuple[Tensor, AdamState]:
    """One Adam step (Kingma & Ba 2015, algorithm 1); `sizes` is the result of `step_sizes`."""
    rate, epsilon = sizes
    mean = torch.lerp(state.mean, grad, 1 - settings.beta1)
    square = torch.lerp(state.square, grad * grad, 1 - settings.beta2)
    step = rate * mean / (square.sqrt() + epsilon)
    return vector - step, AdamState(mean, square, state.steps + 1)
