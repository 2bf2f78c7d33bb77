"""Gradient updates on minibatches from a replay buffer.

An algorithm gives one pure function that takes a block of updates: every step of every optimizer,
and the moves of the target networks. Compiled, a block is one call of one library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.learning.adam import AdamSettings
from walle.learning.compiled import compile_function
from walle.learning.gradient_steps import leaves, rebuild

ADAM = AdamSettings()
State = TypeVar("State", bound=tuple[Any, ...])
Info = TypeVar("Info", bound=tuple[Tensor, ...])
Block = Callable[[State, Tensor, Tensor], tuple[State, Info]]
"""(state, rows [K, B, W], noise [K, M, B, A]) -> (state after K updates, their metrics)."""


class TrainState(NamedTuple):
    """Parameters, and the state of the Adam that moves them.

    Attributes:
        vector: [P] the parameters.
        mean: [P] the gradient's running mean.
        square: [P] the gradient's running mean square.
        fading: [2] β₁ᵗ and β₂ᵗ after t steps: what is left of the moments' first zeros. Kept, since
            compiled code would raise to the power of t once for every parameter.
    """

    vector: Tensor
    mean: Tensor
    square: Tensor
    fading: Tensor

    @classmethod
    def start(cls, vector: Tensor) -> TrainState:
        """Before the first step."""
        zero = torch.zeros_like(vector)
        return cls(vector, zero, zero.clone(), torch.ones(2, device=vector.device))


def adam_update(
    loss: Callable[[Tensor], tuple[Tensor, Tensor]], part: TrainState, learning_rate: float
) -> tuple[TrainState, Tensor, Tensor]:
    """One Adam step down `loss(vector) -> (loss, beside)`; also returns both; pure.

    Kingma & Ba 2015, algorithm 1, with its usual settings.
    """
    grad, (value, beside) = grad_and_value(loss, has_aux=True)(part.vector)
    beta1, beta2, epsilon = ADAM.beta1, ADAM.beta2, ADAM.epsilon
    first, second = part.fading[0] * beta1, part.fading[1] * beta2
    mean = torch.lerp(part.mean, grad, 1 - beta1)
    square = torch.lerp(part.square, grad * grad, 1 - beta2)
    size = learning_rate / (1 - first)
    step = size * mean / ((square / (1 - second)).sqrt() + epsilon)
    after = TrainState(part.vector - step, mean, square, torch.stack((first, second)))
    return after, value, beside


def polyak_update(target: Tensor, vector: Tensor, tau: float) -> Tensor:
    """(1 - τ) θ' + τ θ: a target network moves a small way towards its network."""
    return torch.lerp(target, vector, tau)


class Updates:
    """Takes blocks of updates, eager until compiled; the numbers are the same to rounding."""

    def __init__(self, block: Block[Any, Any]) -> None:
        """`block` must be pure, and returns its metrics as a named tuple of scalars."""
        self._block = block
        self._step = self._eager

    def _eager(self, state: Any, rows: Tensor, noise: Tensor) -> tuple[Any, Tensor]:
        after, metrics = self._block(state, rows, noise)
        return after, torch.stack(metrics)

    def compile(self, state: Any, rows: Tensor, noise: Tensor) -> None:
        """Compiles the further blocks, for arguments of these shapes."""

        def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
            *parts, rows, noise = inputs
            after, metrics = self._eager(rebuild(state, iter(parts)), rows, noise)
            return (*leaves(after), metrics)

        program = compile_function(flat, (*leaves(state), rows, noise))

        def step(state: Any, rows: Tensor, noise: Tensor) -> tuple[Any, Tensor]:
            *parts, metrics = program(*leaves(state), rows, noise)
            return rebuild(state, iter(parts)), metrics

        self._step = step

    @torch.no_grad()
    def run(self, state: Any, rows: Tensor, noise: Tensor) -> tuple[Any, list[Tensor]]:
        """Takes as many blocks as there are.

        Args:
            state: to start from.
            rows: [N, K, B, W] the blocks' minibatches.
            noise: [N, K, M, B, A] standard normal.

        Returns:
            The state after them, and the metrics of each block, [I].
        """
        found = []
        for minibatches, draws in zip(rows, noise, strict=True):
            state, metrics = self._step(state, minibatches, draws)
            found.append(metrics)
        return state, found
