"""The ways of taking one gradient step: eager, compiled, shared among learners.

All give the same numbers, to rounding.
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
Stepped = tuple[Tensor, AdamState, Tensor]


def leaves(tree: Any) -> list[Any]:
    """What nested named tuples hold, in order; whatever is no tuple is a leaf."""
    if not isinstance(tree, tuple):
        return [tree]
    return [leaf for part in tree for leaf in leaves(part)]


def rebuild(like: Tree, values: Iterator[Any]) -> Tree:
    """Named tuples nested like `like`, filled with `values` in the order of `leaves`."""
    if not isinstance(like, tuple):
        filled: Tree = next(values)
        return filled
    make: Any = type(like)
    rebuilt: Tree = make._make(rebuild(part, values) for part in like)
    return rebuilt


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """The same named tuples with `function` of every leaf."""
    return rebuild(tree, map(function, leaves(tree)))


def batch_rows(batch: Batch) -> int:
    """N, the rows of a batch."""
    return next(len(x) for x in leaves(batch) if x.dim())


class Step(Protocol):
    """One gradient step."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numbers that a step tells; known after the first step."""
        ...

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch) -> Stepped:
        """The parameters and Adam's state after the step, and what the step tells: [I] numbers."""
        ...


class Team(Protocol):
    """The learners that take steps together, as one of them sees them."""

    rank: int
    size: int

    def sum(self, x: Tensor) -> None:
        """Replaces `x` by its sum over the learners."""
        ...

    def meet(self) -> None:
        """Waits until every learner has come here."""
        ...

    def announce(
        self, optimizer: int, minibatch_size: int, data: Batch, state: Sequence[Tensor]
    ) -> None:
        """Has the others take part in the epoch that the leader is about to begin.

        Args:
            optimizer: the number of the optimizer.
            minibatch_size: rows a step.
            data: in the order of this epoch.
            state: parameters, the optimiser's three, the step size.
        """
        ...


class EagerStep:
    """Operation by operation."""

    def __init__(self, loss: Loss, settings: AdamSettings) -> None:
        """`loss` is minimised by Adam."""
        self._loss = loss
        self._settings = settings
        self.names: tuple[str, ...] = ()

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch) -> Stepped:
        """See `Step`."""
        leaf = vector.detach().requires_grad_()
        loss, info = self._loss(leaf, batch)
        (grad,) = torch.autograd.grad(loss, leaf)
        grad, norm = clip_by_norm(grad, self._settings.max_grad_norm)
        sizes = step_sizes(state.steps + 1, rate, self._settings)
        vector, state = adam_step(vector, grad, state, sizes, self._settings)
        self.names = ("loss", "grad_norm", *info)
        return vector, state, torch.stack([loss, norm, *info.values()]).detach()


class CompiledStep:
    """Gradient, clipping and Adam in one library, for minibatches of one shape.

    A minibatch of another shape, such as the remainder of an epoch, goes the eager way. Adam's step
    sizes are among what is returned for then inductor works them out once, not for every parameter.
    """

    def __init__(self, loss: Loss, settings: AdamSettings, vector: Tensor, batch: Batch) -> None:
        """Compiles for parameters like `vector` and minibatches like `batch`."""
        self._shapes = [x.shape for x in leaves(batch)]
        self._eager = EagerStep(loss, settings)
        self.names: tuple[str, ...] = ()

        def step(vector: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            *adam, rate = rest[:4]
            grad, (value, info) = grad_and_value(loss, has_aux=True)(
                vector, rebuild(batch, iter(rest[4:]))
            )
            grad, norm = clip_by_norm(grad, settings.max_grad_norm)
            sizes = step_sizes(adam[-1] + 1, rate, settings)
            vector, state = adam_step(vector, grad, AdamState(*adam), sizes, settings)
            self.names = ("loss", "grad_norm", *info)
            return vector, *state, torch.stack([value, norm, *info.values()]), sizes

        state, rate = AdamState.zeros_like(vector), torch.zeros((), device=vector.device)
        self._program = compile_function(step, (vector, *state, rate, *leaves(batch)))

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch) -> Stepped:
        """See `Step`."""
        columns = [x.contiguous() for x in leaves(batch)]
        if [x.shape for x in columns] != self._shapes:
            return self._eager(vector, state, rate, batch)
        vector, *adam, told, _ = self._program(vector, *state, rate, *columns)
        return vector, AdamState(*adam), told


class SharedStep:
    """A step of several learners: each takes its rows of the minibatch, gradients are averaged.

    The loss and its info have to be means over the rows. A learner's part is weighted by its rows,
    so a minibatch that cannot be dealt evenly gives the same numbers too.
    """

    def __init__(self, loss: Loss, settings: AdamSettings, team: Team) -> None:
        """Begins eager."""
        self._loss = loss
        self._settings = settings
        self._team = team
        self._info: tuple[str, ...] = ()
        self._shapes: list[torch.Size] = []
        self._gradient: Function | None = None
        self._apply: Function = self._finish

    @property
    def names(self) -> tuple[str, ...]:
        """See `Step`."""
        return ("loss", "grad_norm", *self._info)

    def compile(self, vector: Tensor, batch: Batch) -> None:
        """Compiles what comes before the exchange and what comes after it."""
        part, _ = self._part(batch)

        def gradient(vector: Tensor, *columns: Tensor) -> tuple[Tensor]:
            of = grad_and_value(self._loss, has_aux=True)
            grad, (value, info) = of(vector, rebuild(part, iter(columns)))
            self._info = tuple(info)
            return (torch.cat((grad, torch.stack([value, *info.values()]))),)

        program = compile_function(gradient, (vector, *leaves(part)))
        state, rate = AdamState.zeros_like(vector), torch.zeros((), device=vector.device)
        flat = torch.zeros(len(vector) + 1 + len(self._info), device=vector.device)
        self._apply = compile_function(self._finish, (vector, *state, rate, flat))
        self._shapes = [x.shape for x in leaves(part)]
        self._gradient = program

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch) -> Stepped:
        """See `Step`."""
        part, weight = self._part(batch)
        flat = self._weighted(vector, part, weight)
        self._team.sum(flat)
        vector, *adam, told, _ = self._apply(vector, *state, rate, flat)
        return vector, AdamState(*adam), told

    def _part(self, batch: Batch) -> tuple[Batch, float]:
        """This learner's rows, and their fraction of all; one row, of no weight, if it has none."""
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
            flat = self._eager_gradient(vector, part)
        return flat * weight

    def _eager_gradient(self, vector: Tensor, part: Batch) -> Tensor:
        leaf = vector.detach().requires_grad_()
        loss, info = self._loss(leaf, part)
        (grad,) = torch.autograd.grad(loss, leaf)
        self._info = tuple(info)
        return torch.cat((grad, torch.stack([loss, *info.values()]).detach()))

    def _finish(self, vector: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """Clipping and Adam, with the gradient of the whole minibatch."""
        *adam, rate, flat = rest
        grad, norm = clip_by_norm(flat[: len(vector)], self._settings.max_grad_norm)
        info = flat[len(vector) :]
        sizes = step_sizes(adam[-1] + 1, rate, self._settings)
        vector, state = adam_step(vector, grad, AdamState(*adam), sizes, self._settings)
        return vector, *state, torch.cat((info[:1], norm.unsqueeze(0), info[1:])), sizes
