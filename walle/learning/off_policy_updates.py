"""Gradient updates on minibatches from a replay buffer: the optimizer of off-policy learning.

An algorithm gives one pure function, which takes a block of updates: every step of every optimiser
and what the targets follow. Compiled, a block is one call of one library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.learning.adam import AdamSettings
from walle.learning.compiled import compile_function

ADAM = AdamSettings()
State = TypeVar("State", bound=tuple[Any, ...])
Block = Callable[[State, Tensor, Tensor], tuple[State, Tensor]]
"""(state, rows [K, B, W], noise [K, M, B, A]) -> (state after K updates, information [I])."""


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
    """(1 - τ) θ' + τ θ: a target network's slow step."""
    return torch.lerp(target, vector, tau)


class Updates:
    """Takes blocks of updates, eager until compiled; the numbers are the same to rounding."""

    def __init__(self, block: Block[Any]) -> None:
        """`block` must be pure."""
        self._step = block
        self._block = block

    def compile(self, state: Any, rows: Tensor, noise: Tensor) -> None:
        """From now on blocks are compiled, for arguments of these shapes."""
        block = self._block

        def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
            *leaves, rows, noise = inputs
            after, info = block(packed(state, iter(leaves)), rows, noise)
            return (*unpacked(after), info)

        program = compile_function(flat, (*unpacked(state), rows, noise))

        def step(state: Any, rows: Tensor, noise: Tensor) -> tuple[Any, Tensor]:
            *leaves, info = program(*unpacked(state), rows, noise)
            return packed(state, iter(leaves)), info

        self._step = step

    @torch.no_grad()
    def run(self, state: Any, rows: Tensor, noise: Tensor) -> tuple[Any, list[Tensor]]:
        """Takes as many blocks as there are.

        Args:
            state: to start from.
            rows: [N, K, B, W] the blocks' minibatches.
            noise: [N, K, M, B, A] standard normal.

        Returns:
            The state after them, and a row of information a block.
        """
        found = []
        for minibatches, draws in zip(rows, noise, strict=True):
            state, info = self._step(state, minibatches, draws)
            found.append(info)
        return state, found


def unpacked(state: Any) -> list[Tensor]:
    """The tensors of nested named tuples, in order."""
    if isinstance(state, Tensor):
        return [state]
    return [leaf for part in state for leaf in unpacked(part)]


def packed(like: Any, leaves: Iterator[Tensor]) -> Any:
    """Named tuples nested as in `like`, filled with `leaves`."""
    if isinstance(like, Tensor):
        return next(leaves)
    return type(like)._make(packed(part, leaves) for part in like)
