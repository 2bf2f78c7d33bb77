"""Epochs over minibatches of a pure loss: the engine every algorithm's update runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.compiled import compile_function

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


class Step(Protocol):
    """One gradient step. Every way of taking it gives the same numbers, to rounding."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the entries of a row of information; known after the first step."""
        ...

    def __call__(
        self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch
    ) -> tuple[Tensor, AdamState, Tensor]:
        """The parameters and the optimiser's state after the step, and a row of information."""
        ...


class EagerStep:
    """Operation by operation."""

    def __init__(self, loss: Loss, settings: AdamSettings) -> None:
        """`loss` is minimised by Adam."""
        self._loss = loss
        self._settings = settings
        self.names: tuple[str, ...] = ()

    def __call__(
        self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch
    ) -> tuple[Tensor, AdamState, Tensor]:
        """See `Step`."""
        leaf = vector.detach().requires_grad_()
        loss, info = self._loss(leaf, batch)
        (grad,) = torch.autograd.grad(loss, leaf)
        grad, norm = clip_by_norm(grad, self._settings.max_grad_norm)
        vector, state = adam_step(vector, grad, state, rate, self._settings)
        self.names = ("loss", "grad_norm", *info)
        return vector, state, torch.stack([loss.detach(), norm, *_detached(info)])


class CompiledStep:
    """Gradient, clipping and Adam in one library, for minibatches of one shape.

    A minibatch of another shape, such as the remainder of an epoch, goes the eager way.
    """

    def __init__(self, loss: Loss, settings: AdamSettings, vector: Tensor, batch: Batch) -> None:
        """Compiles for parameters like `vector` and minibatches like `batch`."""
        self._keys = tuple(batch)
        self._shapes = [x.shape for x in batch.values()]
        self._eager = EagerStep(loss, settings)
        self.names: tuple[str, ...] = ()

        def step(vector: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            *adam, rate = rest[:4]
            batch = dict(zip(self._keys, rest[4:], strict=True))
            grad, (value, info) = grad_and_value(loss, has_aux=True)(vector, batch)
            grad, norm = clip_by_norm(grad, settings.max_grad_norm)
            vector, state = adam_step(vector, grad, AdamState(*adam), rate, settings)
            self.names = ("loss", "grad_norm", *info)
            return vector, *state, torch.stack([value, norm, *info.values()])

        state, rate = AdamState.zeros_like(vector), torch.zeros((), device=vector.device)
        self._program = compile_function(step, (vector, *state, rate, *batch.values()))

    def __call__(
        self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch
    ) -> tuple[Tensor, AdamState, Tensor]:
        """See `Step`."""
        columns = [batch[key].contiguous() for key in self._keys]
        if [x.shape for x in columns] != self._shapes:
            return self._eager(vector, state, rate, batch)
        vector, *adam, row = self._program(vector, *state, rate, *columns)
        return vector, AdamState(*adam), row


class Sgd:
    """Minimises a pure `loss(vector, batch) -> (loss, info)` by minibatch Adam."""

    def __init__(
        self, loss: Loss, settings: AdamSettings, stop: Callable[[Info], bool] | None = None
    ) -> None:
        """Begins eager.

        Args:
            loss: sees a batch of the same keys as the data, rows chosen.
            settings: of the optimiser.
            stop: given a minibatch's info before its step; true ends everything without the step.
        """
        self._loss = loss
        self._settings = settings
        self._stop = stop
        self._step: Step = EagerStep(loss, settings)

    def compile(self, vector: Tensor, data: Batch, minibatch_size: int) -> None:
        """From now on steps are compiled, for full minibatches of data like `data`."""
        batch = _minibatches(data, minibatch_size, torch.Generator())[0]
        self._step = CompiledStep(self._loss, self._settings, vector, batch)

    def minimise(
        self,
        vector: Tensor,
        state: AdamState,
        data: Batch,
        *,
        epochs: int,
        minibatch_size: int,
        learning_rate: float,
        generator: torch.Generator,
        remake: Callable[[Tensor], Batch] | None = None,
    ) -> Result:
        """Passes `epochs` times over the rows of `data` in fresh random orders.

        Args:
            vector: [P] parameters to start from.
            state: the optimiser's state to go on with.
            data: tensors [N, ...]; those without dimensions reach every minibatch as they are.
            epochs: passes over the data.
            minibatch_size: rows a step; the last minibatch of an epoch may be smaller.
            learning_rate: Adam's step size.
            generator: draws the orders; on the CPU.
            remake: makes the data anew from the parameters, before every epoch but the first.
        """
        rate = torch.tensor(learning_rate, device=vector.device)
        rows: list[Tensor] = []
        for epoch in range(epochs):
            if epoch and remake is not None:
                data = remake(vector)
            for minibatch in _minibatches(data, minibatch_size, generator):
                new_vector, new_state, row = self._step(vector, state, rate, minibatch)
                if self._stop is not None and self._stop(self._named(row)):
                    return Result(vector, state, self._means(rows), len(rows), True)
                vector, state = new_vector, new_state
                rows.append(row)
        return Result(vector, state, self._means(rows), len(rows), False)

    def _named(self, row: Tensor) -> dict[str, Tensor]:
        return dict(zip(self._step.names, row, strict=True))

    def _means(self, rows: list[Tensor]) -> dict[str, float]:
        if not rows:
            return {}
        means = torch.stack(rows).mean(0)
        return {name: float(mean) for name, mean in self._named(means).items()}


def _detached(info: Info) -> list[Tensor]:
    return [value.detach() for value in info.values()]


def _minibatches(data: Batch, size: int, generator: torch.Generator) -> list[Batch]:
    columns = {name: x for name, x in data.items() if x.dim()}
    scalars = {name: x for name, x in data.items() if not x.dim()}
    length = len(next(iter(columns.values())))
    if size >= length:
        return [data]  # a full batch needs no order
    order = torch.randperm(length, generator=generator)
    split = [torch.split(x[order.to(x.device)], size) for x in columns.values()]
    return [dict(zip(columns, parts, strict=True)) | scalars for parts in zip(*split, strict=True)]
