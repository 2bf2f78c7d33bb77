"""A gradient step in shards: fixed parts of a minibatch, whose gradients are added in their order.

The shards depend on the configuration alone. A team of learners divides them, and each learner adds
up the gradients of all, so the parameters are the same bits for any number of learners.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.learning.adam import AdamSettings, AdamState
from walle.learning.compiled import Function, compile_function
from walle.learning.gradient_steps import (
    Batch,
    Loss,
    StepResult,
    batch_rows,
    clip_and_step,
    eager_gradient,
    info_names,
    leaves,
    map_leaves,
    minibatches,
    rebuild,
    taken,
)
from walle.learning.sharing.team import ALONE, Team, dealt

_ALIGNED_ROWS = 16  # shards of a multiple of these begin at a line of the processor's cache


class Dealt(NamedTuple):
    """A learner's shards of a minibatch.

    Attributes:
        shards: its rows, a batch for each shard.
        weights: [S] each shard's fraction of the minibatch's rows, for all S shards.
    """

    shards: list[Batch]
    weights: Tensor


def bounds(rows: int, shards: int) -> list[int]:
    """The first row of each shard, and the number of rows after them all."""
    return [rows * shard // shards for shard in range(shards + 1)]


class ShardedStep:
    """A gradient step whose minibatch is divided into shards, by a team of learners.

    The loss and its info must be means over the rows.
    """

    def __init__(self, loss: Loss, settings: AdamSettings, shards: int) -> None:
        """Takes eager steps until `compile`, alone until `team` is set."""
        self._loss, self._settings, self._shards = loss, settings, shards
        self.team: Team = ALONE
        self._info: tuple[str, ...] = ()
        self._shapes: list[torch.Size] = []
        self._gradient: Function | None = None
        self._apply: Function = self._add_and_step

    @property
    def names(self) -> tuple[str, ...]:
        """See `GradientStep`."""
        return ("loss", "grad_norm", *self._info)

    def compile(self, vector: Tensor, batch: Batch, description: str | None = None) -> None:
        """Compiles the gradient of a shard, and the addition of all with Adam's step.

        Args:
            vector: parameters [P].
            batch: an example of a minibatch.
            description: describes the loss, see `compile_function`.
        """
        rows = -(-batch_rows(batch) // self._shards)
        shard = minibatches(batch, None, rows)[0]
        self._info = info_names(self._loss, vector, shard)
        of_loss = None if description is None else f"gradient of {description}"
        of_step = f"step {self._settings} of {self._shards} x {len(vector)}"

        def gradient(vector: Tensor, *columns: Tensor) -> tuple[Tensor]:
            of = grad_and_value(self._loss, has_aux=True)
            grad, (value, info) = of(vector, rebuild(shard, iter(columns)))
            return (torch.cat((grad, torch.stack([value, *info.values()]))),)

        program = compile_function(gradient, (vector, *leaves(shard)), of_loss)
        state = AdamState.zeros_like(vector).tensors()
        rate = torch.zeros((), device=vector.device)
        gradients = torch.zeros(self._shards, self._width(vector), device=vector.device)
        example = (vector, *state, rate, gradients, gradients[:, 0].clone())
        self._apply = compile_function(self._add_and_step, example, of_step)
        self._shapes = [x.shape for x in leaves(shard)]
        self._gradient = program

    def deal(self, data: Batch, order: Tensor | None, size: int) -> list[Dealt]:
        """This learner's shards of every minibatch; see `minibatches`."""
        rows, mine = batch_rows(data), dealt(self._shards, self.team.rank, self.team.size)
        order = torch.arange(rows) if order is None else order
        whole = rows // size if size % self._shards == 0 else 0
        return [
            *self._equal_shards(data, order[: whole * size], size, mine),
            *(
                self._unequal_shards(data, order[begin : begin + size], mine)
                for begin in range(whole * size, rows, size)
            ),
        ]

    def _equal_shards(self, data: Batch, order: Tensor, size: int, mine: range) -> list[Dealt]:
        if not len(order):
            return []
        rows = size // self._shards
        index = order.view(-1, self._shards, rows)[:, mine.start : mine.stop].flatten()
        found = minibatches(taken(data, index), None, rows)
        if rows % _ALIGNED_ROWS:  # the bits of a product may depend on where its rows lie
            found = [map_leaves(torch.clone, shard) for shard in found]
        weights = torch.full((self._shards,), 1 / self._shards, device=leaves(data)[0].device)
        each = len(mine)
        return [Dealt(found[i : i + each], weights) for i in range(0, len(found), each)]

    def _unequal_shards(self, data: Batch, order: Tensor, mine: range) -> Dealt:
        """Shards that differ by a row; one without rows gets a row of weight 0."""
        begin = bounds(len(order), self._shards)
        lengths = torch.tensor(begin, device=leaves(data)[0].device).diff()
        shards = [taken(data, order[begin[s] : max(begin[s + 1], begin[s] + 1)]) for s in mine]
        return Dealt(shards, lengths / len(order))

    def __call__(self, vector: Tensor, state: AdamState, rate: Tensor, batch: Dealt) -> StepResult:
        """See `GradientStep`."""
        if not self._info:
            self._info = info_names(self._loss, vector, batch.shards[0])
        first = dealt(self._shards, self.team.rank, self.team.size).start
        gradients = self.team.gather(
            self._shards,
            self._width(vector),
            lambda shard: self._gradient_of(vector, batch.shards[shard - first]),
        )
        vector, *adam, numbers, _ = self._apply(
            vector, *state.tensors(), rate, gradients, batch.weights
        )
        return vector, AdamState(*adam), numbers

    def _width(self, vector: Tensor) -> int:
        return len(vector) + 1 + len(self._info)

    def _gradient_of(self, vector: Tensor, shard: Batch) -> Tensor:
        """The gradient of a shard [P], its loss and its info."""
        columns = [x.contiguous() for x in leaves(shard)]
        if self._gradient is not None and [x.shape for x in columns] == self._shapes:
            return self._gradient(vector, *columns)[0]
        grad, loss, info = eager_gradient(self._loss, vector, shard)
        return torch.cat((grad, torch.stack([loss, *info.values()]).detach()))

    def _add_and_step(self, vector: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """Takes a step with `gradients` [S, P + 1 + I] of the shards, `weights` [S]."""
        *adam, rate, gradients, weights = rest
        total = gradients[0] * weights[0]
        for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
            total = total + gradient * weight
        grad, info = total[: len(vector)], total[len(vector) :]
        after = clip_and_step(vector, grad, AdamState(*adam), rate, self._settings)
        vector, state, norm, sizes = after
        return vector, *state.tensors(), torch.cat((info[:1], norm.unsqueeze(0), info[1:])), sizes
