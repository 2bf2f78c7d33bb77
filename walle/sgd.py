"""Epochs over minibatches of a pure loss: the engine every algorithm's update runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

Batch = dict[str, Tensor]
Info = Mapping[str, Tensor]
Loss = Callable[[Tensor, Batch], tuple[Tensor, Info]]


class AdamSettings(NamedTuple):
    """Adam (Kingma & Ba 2015) and the bound on the gradient's norm before it."""

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

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {name: value.clone() for name, value in self._asdict().items()}


def clip_by_norm(grad: Tensor, max_norm: float | None) -> tuple[Tensor, Tensor]:
    """`grad` scaled down to `max_norm` where it is longer; also returns its norm before."""
    norm = torch.linalg.vector_norm(grad)
    if max_norm is None:
        return grad, norm
    return grad * (max_norm / (norm + 1e-6)).clamp(max=1.0), norm


def adam_step(
    vector: Tensor, grad: Tensor, state: AdamState, learning_rate: Tensor, settings: AdamSettings
) -> tuple[Tensor, AdamState]:
    """One Adam step (Kingma & Ba 2015, algorithm 1); pure."""
    steps = state.steps + 1
    mean = torch.lerp(state.mean, grad, 1 - settings.beta1)
    square = torch.lerp(state.square, grad * grad, 1 - settings.beta2)
    mean_hat = mean / (1 - settings.beta1**steps)
    square_hat = square / (1 - settings.beta2**steps)
    step = learning_rate * mean_hat / (square_hat.sqrt() + settings.epsilon)
    return vector - step, AdamState(mean, square, steps)


class Result(NamedTuple):
    """What a call of `minimise` left behind.

    Attributes:
        vector: [P] the new parameters.
        state: the optimiser's new state.
        info: every entry of the loss's info, and `loss` and `grad_norm`, averaged over the
            minibatches taken.
        minibatches: how many gradient steps were taken.
        stopped: whether the stop criterion ended it early.
    """

    vector: Tensor
    state: AdamState
    info: dict[str, float]
    minibatches: int
    stopped: bool


class Sgd:
    """Minimises a pure `loss(vector, batch) -> (loss, info)` by minibatch Adam."""

    def __init__(self, loss: Loss, settings: AdamSettings) -> None:
        """`loss` sees a batch of the same keys as the data, rows chosen."""
        self._loss = loss
        self._settings = settings

    def minimise(
        self,
        vector: Tensor,
        state: AdamState,
        data: Batch | Callable[[Tensor], Batch],
        *,
        epochs: int,
        minibatch_size: int,
        learning_rate: float,
        generator: torch.Generator,
        stop: Callable[[Info], bool] | None = None,
    ) -> Result:
        """Passes `epochs` times over the rows of `data` in fresh random orders.

        Args:
            vector: [P] parameters to start from.
            state: the optimiser's state to go on with.
            data: tensors [N, ...]; or a function that makes them from the parameters, called
                before every epoch.
            epochs: passes over the data.
            minibatch_size: rows a step; the last minibatch of an epoch may be smaller.
            learning_rate: Adam's step size.
            generator: draws the orders; on the CPU.
            stop: given a minibatch's info before its step; true ends everything without the step.
        """
        rate = torch.tensor(learning_rate, device=vector.device)
        infos: list[Info] = []
        stopped = False
        for _ in range(epochs):
            rows = data(vector) if callable(data) else data
            for minibatch in _minibatches(rows, minibatch_size, generator):
                grad, info = self._gradient(vector, minibatch)
                if stop is not None and stop(info):
                    stopped = True
                    break
                infos.append(info)
                vector, state = adam_step(vector, grad, state, rate, self._settings)
            if stopped:
                break
        return Result(vector, state, _means(infos), len(infos), stopped)

    def _gradient(self, vector: Tensor, minibatch: Batch) -> tuple[Tensor, Info]:
        leaf = vector.detach().requires_grad_()
        loss, info = self._loss(leaf, minibatch)
        (grad,) = torch.autograd.grad(loss, leaf)
        grad, norm = clip_by_norm(grad, self._settings.max_grad_norm)
        found = {name: value.detach() for name, value in info.items()}
        return grad, {"loss": loss.detach(), "grad_norm": norm, **found}


def _minibatches(data: Batch, size: int, generator: torch.Generator) -> list[Batch]:
    length = len(next(iter(data.values())))
    if size >= length:
        return [data]  # a full batch needs no order
    order = torch.randperm(length, generator=generator)
    shuffled = {name: x[order.to(x.device)] for name, x in data.items()}
    starts = range(0, length, size)
    return [{name: x[i : i + size] for name, x in shuffled.items()} for i in starts]


def _means(infos: list[Info]) -> dict[str, float]:
    if not infos:
        return {}
    return {name: float(torch.stack([i[name] for i in infos]).mean()) for name in infos[0]}
