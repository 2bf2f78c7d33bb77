"""Three ways to take a gradient step: eager, compiled, shared among learners.

All three give the same numbers, except for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.learning.adam import AdamSettings, AdamState, adam_step, clip_by_norm, step_sizes
from walle.learning.compiled import Function, compile_function

Batch = Any
"""A named tuple of tensors [N, ...], which may hold further named tuples."""
Tree = TypeVar("Tree")
Info = Mapping[str, Tensor]
Loss = Callable[[Tensor, Batch], tuple[Tensor, Info]]
StepResult = tuple[Tensor, AdamState, Tensor]
"""The new parameters, Adam's new state, and the step's numbers [I]: loss, gradient norm, info."""


def leaves(tree: Any) -> list[Any]:
    """All leaves of nested named tuples, in order; a leaf is any value that is no tuple."""
    if not isinstance(tree, tuple):
        return [tree]
    found: list[Any] = []
    for part in tree:  # called for every minibatch: a leaf costs no call of its own
        if isinstance(part, tuple):
            found += leaves(part)
        else:
            found.append(part)
    return found


def rebuild(like: Tree, values: Iterator[Any]) -> Tree:
    """Named tuples of the structure of `like`, filled with `values` in the order of `leaves`."""
    if not isinstance(like, tuple):
        filled: Tree = next(values)
        return filled
    make: Any = type(like)
    parts = [rebuild(x, values) if isinstance(x, tuple) else next(values) for x in like]
    rebuilt: Tree = make(*parts)
    return rebuilt


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Named tuples of the same structure, with `function` applied to every leaf."""
    return rebuild(tree, map(function, leaves(tree)))


def batch_rows(batch: Batch) -> int:
    """N, the number of rows of a batch."""
    return next(len(x) for x in leaves(batch) if x.dim())


class GradientStep(Protocol):
    """A function that takes one gradient step."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the step's numbers [I]; known after the first step."""
        ...

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch) -> StepResult:
        """Takes one step of size `rate` [] on parameters [P]."""
        ...


class Team(Protocol):
    """The interface of one learner to all learners that take steps together."""

    rank: int
    size: int

    def sum(self, x: Tensor) -> None:
        """Replaces `x` by its sum over the learners."""
        ...

    def meet(self) -> None:
        """Waits until every learner has called this method."""
        ...

    def announce(
        self, optimizer: int, minibatch_size: int, data: Batch, state: Sequence[Tensor]
    ) -> None:
        """Sends the other learners the data of the epoch that the leader is about to begin.

        Args:
            optimizer: the number of the optimizer.
            minibatch_size: rows in a minibatch.
            data: the rows in the order of this epoch.
            state: parameters, the three tensors of `AdamState`, the step size.
        """
        ...


def _eager_gradient(loss: Loss, vector: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Info]:
    """The gradient [P], the loss and its info."""
    leaf = vector.detach().requires_grad_()
    value, info = loss(leaf, batch)
    (grad,) = torch.autograd.grad(value, leaf)
    return grad, value, info


@torch.no_grad()
def _info_names(loss: Loss, vector: Tensor, batch: Batch) -> tuple[str, ...]:
    _, info = loss(vector, batch)
    return tuple(info)


def _clip_and_step(
    vector: Tensor, grad: Tensor, state: AdamState, rate: Tensor, settings: AdamSettings
) -> tuple[Tensor, AdamState, Tensor, Tensor]:
    """One Adam step with the clipped gradient; also the norm before clipping and the step sizes."""
    grad, norm = clip_by_norm(grad, settings.max_grad_norm)
    sizes = step_sizes(state.steps + 1, rate, settings)
    return *adam_step(vector, grad, state, sizes, settings), norm, sizes


class EagerStep:
    """A gradient step that torch runs operation by operation."""

    def __init__(self, loss: Loss, settings: AdamSettings) -> None:
        """Minimises `loss` by Adam."""
        self._loss = loss
        self._settings = settings
        self.names: tuple[str, ...] = ()

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch) -> StepResult:
        """See `GradientStep`."""
        grad, loss, info = _eager_gradient(self._loss, vector, batch)
        vector, state, norm, _ = _clip_and_step(vector, grad, state, rate, self._settings)
        self.names = ("loss", "grad_norm", *info)
        return vector, state, torch.stack([loss, norm, *info.values()]).detach()


class CompiledStep:
    """A gradient step compiled to one library, for minibatches of one shape.

    A minibatch of another shape, such as the last one of an epoch, takes an eager step. The library
    also returns Adam's step sizes: otherwise inductor would compute them once for every parameter.
    """

    def __init__(
        self,
        loss: Loss,
        settings: AdamSettings,
        vector: Tensor,
        batch: Batch,
        description: str | None = None,
    ) -> None:
        """Compiles for parameters like `vector` and minibatches like `batch`.

        `description` describes the loss, see `compile_function`.
        """
        self._shapes = [x.shape for x in leaves(batch)]
        self._eager = EagerStep(loss, settings)
        self.names = ("loss", "grad_norm", *_info_names(loss, vector, batch))

        def step(vector: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            *adam, rate = rest[:4]
            grad, (value, info) = grad_and_value(loss, has_aux=True)(
                vector, rebuild(batch, iter(rest[4:]))
            )
            after = _clip_and_step(vector, grad, AdamState(*adam), rate, settings)
            vector, state, norm, sizes = after
            return vector, *state, torch.stack([value, norm, *info.values()]), sizes

        state, rate = AdamState.zeros_like(vector), torch.zeros((), device=vector.device)
        described = None if description is None else f"step {settings} of {description}"
        self._program = compile_function(step, (vector, *state, rate, *leaves(batch)), described)

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch) -> StepResult:
        """See `GradientStep`."""
        columns = [x.contiguous() for x in leaves(batch)]
        if [x.shape for x in columns] != self._shapes:
            return self._eager(vector, state, rate, batch)
        vector, *adam, numbers, _ = self._program(vector, *state, rate, *columns)
        return vector, AdamState(*adam), numbers


class SharedStep:
    """A gradient step of several learners, each with a part of the minibatch's rows.

    The gradients of the parts are averaged, weighted by their rows, so a minibatch that cannot be
    split evenly gives the same numbers. The loss and its info must be means over the rows.
    """

    def __init__(self, loss: Loss, settings: AdamSettings, team: Team) -> None:
        """Takes eager steps until `compile`."""
        self._loss = loss
        self._settings = settings
        self._team = team
        self._info: tuple[str, ...] = ()
        self._shapes: list[torch.Size] = []
        self._gradient: Function | None = None
        self._apply: Function = self._finish

    @property
    def names(self) -> tuple[str, ...]:
        """See `GradientStep`."""
        return ("loss", "grad_norm", *self._info)

    def compile(self, vector: Tensor, batch: Batch, description: str | None = None) -> None:
        """Compiles the gradient of this learner's part, and the Adam step after the exchange.

        `description` describes the loss, see `compile_function`.
        """
        part, _ = self._part(batch)
        self._info = _info_names(self._loss, vector, part)
        of_loss = None if description is None else f"gradient of {description}"
        of_step = f"step {self._settings} of {len(vector)}"

        def gradient(vector: Tensor, *columns: Tensor) -> tuple[Tensor]:
            of = grad_and_value(self._loss, has_aux=True)
            grad, (value, info) = of(vector, rebuild(part, iter(columns)))
            return (torch.cat((grad, torch.stack([value, *info.values()]))),)

        program = compile_function(gradient, (vector, *leaves(part)), of_loss)
        state, rate = AdamState.zeros_like(vector), torch.zeros((), device=vector.device)
        flat = torch.zeros(len(vector) + 1 + len(self._info), device=vector.device)
        self._apply = compile_function(self._finish, (vector, *state, rate, flat), of_step)
        self._shapes = [x.shape for x in leaves(part)]
        self._gradient = program

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch) -> StepResult:
        """See `GradientStep`."""
        part, weight = self._part(batch)
        flat = self._weighted(vector, part, weight)
        self._team.sum(flat)
        vector, *adam, numbers, _ = self._apply(vector, *state, rate, flat)
        return vector, AdamState(*adam), numbers

    def _part(self, batch: Batch) -> tuple[Batch, float]:
        """This learner's rows and their fraction of all; without rows, one row of weight 0."""
        rows = batch_rows(batch)
        rank, size = self._team.rank, self._team.size
        begin, end = rows * rank // size, rows * (rank + 1) // size
        weight = (end - begin) / rows
        if begin == end:
            begin, end = 0, 1
        return map_leaves(lambda x: x[begin:end] if x.dim() else x, batch), weight

    def _weighted(self, vector: Tensor, part: Batch, weight: float) -> Tensor:
        columns = [x.contiguous() for x in leaves(part)]
        if self._gradient is not None and [x.shape for x in columns] == self._shapes:
            (flat,) = self._gradient(vector, *columns)
        else:
            grad, loss, info = _eager_gradient(self._loss, vector, part)
            self._info = tuple(info)
            flat = torch.cat((grad, torch.stack([loss, *info.values()]).detach()))
        return flat * weight

    def _finish(self, vector: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """Takes a step with `flat`: the minibatch's gradient [P], its loss and its info."""
        *adam, rate, flat = rest
        grad, info = flat[: len(vector)], flat[len(vector) :]
        after = _clip_and_step(vector, grad, AdamState(*adam), rate, self._settings)
        vector, state, norm, sizes = after
        return vector, *state, torch.cat((info[:1], norm.unsqueeze(0), info[1:])), sizes
