"""Two ways to take a gradient step on a minibatch: eager and compiled.

Both give the same numbers, except for rounding. `shards` has the third way, in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.learning.adam import AdamSettings, AdamState, adam_step, clip_by_norm, step_sizes
from walle.learning.compiled import compile_function

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


def minibatches(data: Batch, order: Tensor | None, size: int) -> list[Batch]:
    """Minibatches of `size` rows; the last one may be smaller.

    Args:
        data: tensors [N, ...]; tensors without dimensions reach every minibatch unchanged.
        order: [N] the rows in the order in which they are taken; None for the order of `data`.
        size: rows in a minibatch.
    """
    if order is not None:
        data = taken(data, order)
    count = -(-batch_rows(data) // size)
    columns = [torch.split(x, size) if x.dim() else [x] * count for x in leaves(data)]
    return [rebuild(data, iter(parts)) for parts in zip(*columns, strict=True)]


def taken(data: Batch, index: Tensor) -> Batch:
    """The rows `index` [M] of `data`."""
    # index_select takes a third of the time of indexing
    return map_leaves(lambda x: x.index_select(0, index.to(x.device)) if x.dim() else x, data)


class GradientStep(Protocol):
    """A function that takes one gradient step."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the step's numbers [I]; known after the first step."""
        ...

    def deal(self, data: Batch, order: Tensor | None, size: int) -> list[Batch]:
        """The minibatches of an epoch; see `minibatches`."""
        ...

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch) -> StepResult:
        """Takes one step of size `rate` [] on parameters [P]; `batch` is from `deal`."""
        ...


def eager_gradient(loss: Loss, vector: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Info]:
    """The gradient [P], the loss and its info."""
    leaf = vector.detach().requires_grad_()
    value, info = loss(leaf, batch)
    (grad,) = torch.autograd.grad(value, leaf)
    return grad, value, info


@torch.no_grad()
def info_names(loss: Loss, vector: Tensor, batch: Batch) -> tuple[str, ...]:
    """The names of a loss's info."""
    _, info = loss(vector, batch)
    return tuple(info)


def clip_and_step(
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

    def deal(self, data: Batch, order: Tensor | None, size: int) -> list[Batch]:
        """See `GradientStep`."""
        return minibatches(data, order, size)

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch) -> StepResult:
        """See `GradientStep`."""
        grad, loss, info = eager_gradient(self._loss, vector, batch)
        vector, state, norm, _ = clip_and_step(vector, grad, state, rate, self._settings)
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
        self.names = ("loss", "grad_norm", *info_names(loss, vector, batch))

        def step(vector: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            adam, rate, columns = rest[:moments], rest[moments], rest[moments + 1 :]
            grad, (value, info) = grad_and_value(loss, has_aux=True)(
                vector, rebuild(batch, iter(columns))
            )
            after = clip_and_step(vector, grad, AdamState(*adam), rate, settings)
            vector, state, norm, sizes = after
            return vector, *state.tensors(), torch.stack([value, norm, *info.values()]), sizes

        state = AdamState.zeros_like(vector).tensors()
        moments, rate = len(state), torch.zeros((), device=vector.device)
        described = None if description is None else f"step {settings} of {description}"
        self._program = compile_function(step, (vector, *state, rate, *leaves(batch)), described)

    def deal(self, data: Batch, order: Tensor | None, size: int) -> list[Batch]:
        """See `GradientStep`."""
        return minibatches(data, order, size)

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Batch) -> StepResult:
        """See `GradientStep`."""
        columns = [x.contiguous() for x in leaves(batch)]
        if [x.shape for x in columns] != self._shapes:
            return self._eager(vector, state, rate, batch)
        vector, *adam, numbers, _ = self._program(vector, *state.tensors(), rate, *columns)
        return vector, AdamState(*adam), numbers
