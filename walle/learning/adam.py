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
        zero, steps = torch.zeros_like(vector), torch.zeros((), device=vector.device)
        return cls(zero, zero.clone(), steps)

    @classmethod
    def restored(cls, state: dict[str, Any], device: torch.device | str) -> AdamState:
        """The state that `state_dict` returned, moved to `device`."""
        return cls(**{name: value.to(device) for name, value in state.items()})

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {name: x.clone() for name, x in self._asdict().items()}

    def tensors(self) -> list[Tensor]:
        """All tensors of the state, from which `AdamState(*tensors)` makes it again."""
        return list(self)


def clip_by_norm(grad: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor]:
    """Scales `grad` [P] down to the norm `max_norm` at most; also returns the norm before."""
    norm = torch.linalg.vector_norm(grad)
    return scaled_down(grad, norm, max_norm), norm


def scaled_down(grad: Tensor, norm: Tensor, max_norm: float | None) -> Tensor:
    """A gradient, or a part of one, scaled so that its whole `norm` [] is `max_norm` at most."""
    return grad if max_norm is None else grad * (max_norm / (norm + 1e-6)).clamp(max=1.0)


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
    """One step of Adam; `sizes` (α, ε) is the result of `step_sizes`.

    m ← β₁ m + (1 - β₁) g, v ← β₂ v + (1 - β₂) g², θ ← θ - α m / (√v + ε) (Kingma & Ba 2015,
    algorithm 1).
    """
    rate, epsilon = sizes
    mean = torch.lerp(state.mean, grad, 1 - settings.beta1)
    square = torch.lerp(state.square, grad * grad, 1 - settings.beta2)
    step = rate * mean / (square.sqrt() + epsilon)
    return vector - step, AdamState(mean, square, state.steps + 1)
