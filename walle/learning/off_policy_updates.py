"""Gradient updates on minibatches from a replay buffer.

An algorithm provides one pure function that takes a block of K updates, with all optimizers' steps
and all moves of the target networks. Compiled, a block is one call of a library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.learning.adam import AdamSettings, clip_by_norm
from walle.learning.compiled import compile_function
from walle.learning.gradient_steps import leaves, rebuild

ADAM = AdamSettings()
State = TypeVar("State", bound=tuple[Any, ...])
Values = Sequence[Tensor]
Info = TypeVar("Info", bound=tuple[Tensor, ...])
Block = Callable[[State, Tensor, Tensor], tuple[State, Info]]
"""(state, minibatches [K, B, W], noise [K, M, B, A]) -> (state after K updates, metrics)."""


class TrainState(NamedTuple):
    """Parameters and their Adam state.

    Attributes:
        vector: [P] the parameters.
        mean: [P] the gradient's running mean.
        square: [P] the gradient's running mean square.
        decay: [2] β₁ᵗ and β₂ᵗ after t steps, for the bias correction; stored because compiled code
            would compute the powers once for every parameter.
    """

    vector: Tensor
    mean: Tensor
    square: Tensor
    decay: Tensor

    @classmethod
    def start(cls, vector: Tensor) -> TrainState:
        """The state before the first step on `vector` [P]."""
        zero = torch.zeros_like(vector)
        return cls(vector, zero, zero.clone(), torch.ones(2, device=vector.device))


def gradient_of(
    loss: Callable[[Tensor], tuple[Tensor, Tensor]], vector: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The gradient [P] of `loss(vector) -> (loss, aux)`, and (loss, aux); pure."""
    grad, found = grad_and_value(loss, has_aux=True)(vector)
    return grad, found


def adam_step(
    part: TrainState, grad: Tensor, learning_rate: float | Tensor, max_norm: float | None = None
) -> TrainState:
    """One Adam step along the gradient [P]; pure.

    Kingma & Ba 2015, algorithm 1, with the paper's settings. `max_norm` bounds the gradient's norm.
    """
    if max_norm is not None:
        grad, _ = clip_by_norm(grad, max_norm)
    beta1, beta2, epsilon = ADAM.beta1, ADAM.beta2, ADAM.epsilon
    first, second = part.decay[0] * beta1, part.decay[1] * beta2
    mean = torch.lerp(part.mean, grad, 1 - beta1)
    square = torch.lerp(part.square, grad * grad, 1 - beta2)
    size = learning_rate / (1 - first)
    step = size * mean / ((square / (1 - second)).sqrt() + epsilon)
    return TrainState(part.vector - step, mean, square, torch.stack((first, second)))


def adam_update(
    loss: Callable[[Tensor], tuple[Tensor, Tensor]],
    part: TrainState,
    learning_rate: float | Tensor,
) -> tuple[TrainState, Tensor, Tensor]:
    """One Adam step on `loss(vector) -> (loss, aux)`; returns the new state, loss and aux; pure."""
    grad, found = gradient_of(loss, part.vector)
    return adam_step(part, grad, learning_rate), *found


def polyak_update(target: Tensor, vector: Tensor, tau: float) -> Tensor:
    """Moves a target network towards its network: (1 - τ) θ' + τ θ."""
    return torch.lerp(target, vector, tau)


class Stage(NamedTuple):
    """A gradient step of a block in two parts; several learners exchange gradients between them.

    Attributes:
        gradient: (state, minibatch [B, W], noise [M, B, A]) -> (gradient [P], values). The gradient
            is a mean over the rows; of each value, [B] or [], only the mean is used. A stage has a
            value at least.
        step: (state, gradient [P], values) -> the state after the step.
        minibatch: number of its minibatch in the block, from 0.
    """

    gradient: Callable[[Any, Tensor, Tensor], tuple[Tensor, Values]]
    step: Callable[[Any, Tensor, Values], Any]
    minibatch: int = 0


def take_stages(
    stages: Sequence[Stage], state: State, minibatches: Tensor, noise: Tensor
) -> tuple[State, list[Values]]:
    """Takes the gradient steps of a block on whole minibatches; pure.

    Args:
        stages: the steps in their order.
        state: the state before the block.
        minibatches: [K, B, W].
        noise: [K, M, B, A] standard normal.

    Returns:
        The state after the block, and the values of each stage.
    """
    found = []
    for stage in stages:
        inputs = minibatches[stage.minibatch], noise[stage.minibatch]
        grad, values = stage.gradient(state, *inputs)
        state = stage.step(state, grad, values)
        found.append(values)
    return state, found


class TakesBlocks(Protocol):
    """The interface of what takes blocks of updates; see `Updates`."""

    def compile(
        self, state: Any, minibatches: Tensor, noise: Tensor, description: str | None = None
    ) -> None:
        """Compiles all later blocks."""
        ...

    def run(self, state: Any, minibatches: Tensor, noise: Tensor) -> tuple[Any, list[Tensor]]:
        """Takes N blocks of updates."""
        ...


class Updates:
    """A function that takes blocks of updates, eagerly until `compile`.

    Eager and compiled blocks give the same numbers, except for rounding.
    """

    def __init__(self, block: Block[Any, Any]) -> None:
        """`block` must be pure and return its metrics as a named tuple of scalars."""
        self._block = block
        self._take_block = self._eager

    def _eager(self, state: Any, minibatches: Tensor, noise: Tensor) -> tuple[Any, Tensor]:
        after, metrics = self._block(state, minibatches, noise)
        return after, torch.stack(metrics)

    def compile(
        self, state: Any, minibatches: Tensor, noise: Tensor, description: str | None = None
    ) -> None:
        """Compiles all later blocks, for arguments of these shapes.

        `description` describes the block, see `compile_function`.
        """

        def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
            *parts, minibatches, noise = inputs
            after, metrics = self._eager(rebuild(state, iter(parts)), minibatches, noise)
            return (*leaves(after), metrics)

        program = compile_function(flat, (*leaves(state), minibatches, noise), description)

        def compiled(state: Any, minibatches: Tensor, noise: Tensor) -> tuple[Any, Tensor]:
            *parts, metrics = program(*leaves(state), minibatches, noise)
            return rebuild(state, iter(parts)), metrics

        self._take_block = compiled

    @torch.no_grad()
    def run(self, state: Any, minibatches: Tensor, noise: Tensor) -> tuple[Any, list[Tensor]]:
        """Takes N blocks of updates.

        Args:
            state: the state before the first block.
            minibatches: [N, K, B, W] for each block.
            noise: [N, K, M, B, A] standard normal.

        Returns:
            The state after the last block, and the metrics [I] of each block.
        """
        found = []
        for inputs in zip(minibatches, noise, strict=True):
            state, metrics = self._take_block(state, *inputs)
            found.append(metrics)
        return state, found
