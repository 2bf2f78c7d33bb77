"""A gradient step in PyTorch, by one learner or by several.

Each learner is a process with the same parameters, the same round and the same random orders (see
`walle.learning.sharing.learners`), so all take the same minibatches. A minibatch is divided into a
fixed number of shards. Each learner computes the gradients of its share of the shards, the `Team`
gathers all gradients, and every learner adds them in the shards' order and applies the sum. The
configuration fixes the shards, so the parameters are bit-identical for any number of learners; with
one shard, this is the plain step on the whole minibatch.

`Optimizer` takes such steps in passes over the rows of a round. `Updates` takes blocks of them on
minibatches from a replay buffer. `walle.learning.native` does both in C++, and is preferred.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.learning.adam import AdamSettings, AdamState, Result, TrainState, adam_step
from walle.learning.sharing.team import ALONE, Team, dealt
from walle.learning.trees import leaves, map_leaves, rebuild
from walle.system.files import cache_directory

Batch = Any
"""A named tuple of tensors [N, ...], which may hold further named tuples."""
Info = Mapping[str, Tensor]
Loss = Callable[[Tensor, Batch], tuple[Tensor, Info]]
"""(parameters [P], batch) -> (loss, numbers to log): means over rows if `shards` > 1."""
Stop = Callable[[Mapping[str, float]], bool]


class Stage(NamedTuple):
    """A gradient step in two parts, between which learners exchange gradients."""

    # (state, batch) -> (gradient [P], numbers [I]): means over the batch's rows
    gradient: Callable[[Any, Batch], tuple[Tensor, Tensor]]
    # (state, gradient [P], numbers [I]) -> (the state after the step, numbers to log)
    apply: Callable[[Any, Tensor, Tensor], tuple[Any, Tensor]]
    minibatch: int = 0  # the number of its minibatch in a block of updates, from 0
    # (state, batch) -> what `apply` returns: both parts compiled as one, for undivided minibatches
    undivided: Callable[[Any, Batch], tuple[Any, Tensor]] | None = None


class Minibatch(NamedTuple):
    """A minibatch as one learner sees it."""

    shards: Sequence[Batch]  # this learner's shards
    # each shard's fraction of the minibatch's rows, for the shards of all learners
    weights: Sequence[float]


@torch.no_grad()
def take_step(
    stage: Stage, state: Any, minibatch: Minibatch, team: Team = ALONE
) -> tuple[Any, Tensor]:
    """Takes a step on the gradients of all shards; returns the new state and the numbers to log.

    Every learner of `team` must call it with the same state.
    """
    if stage.undivided and len(minibatch.weights) == 1:
        return stage.undivided(state, minibatch.shards[0])
    ours = [stage.gradient(state, shard) for shard in minibatch.shards]
    gradient, numbers = ours[0]
    if (shards := len(minibatch.weights)) > 1:
        packed = [torch.cat(pair) for pair in ours]  # gradient and numbers, one vector a shard
        first = dealt(shards, team.rank, team.size).start  # our first shard among those of all
        of_all = team.gather(shards, len(packed[0]), lambda shard: packed[shard - first])
        total = of_all[0] * minibatch.weights[0]
        for vector, weight in zip(of_all[1:], minibatch.weights[1:], strict=True):
            total = total + vector * weight
        gradient, numbers = total[: len(gradient)], total[len(gradient) :]
    return stage.apply(state, gradient, numbers)


def gradient_of(
    loss: Callable[[Tensor], tuple[Tensor, Sequence[Tensor]]], vector: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient [P] of `loss(vector) -> (loss, numbers)`, and the loss with the numbers, [I].

    The numbers are tensors of any shapes, which are flattened and concatenated.
    """
    if torch.compiler.is_compiling():  # the compiler cannot trace autograd.grad
        grad, (value, numbers) = grad_and_value(loss, has_aux=True)(vector)
    else:
        with torch.enable_grad():
            leaf = vector.detach().requires_grad_()
            value, numbers = loss(leaf)
            (grad,) = torch.autograd.grad(value, leaf)
    return grad, torch.cat([x.reshape(-1) for x in (value, *numbers)]).detach()


def compiled(stage: Stage, state: Any, minibatch: Minibatch) -> Stage:
    """The stage compiled by `torch.compile`, for minibatches whose shards have these shapes.

    Other shapes, such as the last minibatch of a pass, stay eager, so that a step's bits never
    depend on earlier shapes.
    """
    # Torch's default cache is below the world-writable /tmp, and its default is a pool of compiler
    # processes, which one function does not need.
    cache = str(cache_directory(for_code=True) / "inductor")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", cache)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    shapes = [x.shape for x in leaves(minibatch.shards[0])]

    def program(function: Callable[[Any, Batch], Any]) -> Callable[[Any, Batch], Any]:
        # The gradient of a memory calls hundreds of kernels; a wrapper in C++ takes two thirds of
        # the time of one in Python.
        options = {"cpp_wrapper": leaves(minibatch.shards[0])[0].device.type == "cpu"}
        fast = torch.compile(function, dynamic=False, options=options)
        with torch.no_grad():
            fast(state, minibatch.shards[0])

        def call(state: Any, batch: Batch) -> Any:
            same = [x.shape for x in leaves(batch)] == shapes
            return (fast if same else function)(state, batch)

        return call

    def undivided(state: Any, batch: Batch) -> tuple[Any, Tensor]:
        return stage.apply(state, *stage.gradient(state, batch))

    if len(minibatch.weights) == 1:
        return stage._replace(undivided=program(undivided))
    return stage._replace(gradient=program(stage.gradient))


def batch_rows(batch: Batch) -> int:
    """N, the number of rows of a batch."""
    return next(len(x) for x in leaves(batch) if x.dim())


def taken(data: Batch, index: Tensor) -> Batch:
    """The rows `index` [M] of `data`."""
    # index_select takes a third of the time of indexing
    return map_leaves(lambda x: x.index_select(0, index.to(x.device)) if x.dim() else x, data)


def minibatches(
    data: Batch, order: Tensor | None, size: int, shards: int = 1, team: Team = ALONE
) -> Iterator[Minibatch]:
    """Minibatches of `size` rows of `data`, [N, ...]; the last one may be smaller.

    The rows are taken in `order` [N], if there is one. Tensors without dimensions reach every
    minibatch unchanged. Each learner of `team` gets its share of the shards, whose sizes differ by
    at most one row.
    """
    count = batch_rows(data)
    if shards == 1:
        data = data if order is None else taken(data, order)
        steps = -(-count // size)
        columns = [torch.split(x, size) if x.dim() else [x] * steps for x in leaves(data)]
        for parts in zip(*columns, strict=True):
            yield Minibatch([rebuild(data, iter(parts))], [1.0])
        return
    order = torch.arange(count) if order is None else order
    for index in torch.split(order, size):
        rows = len(index)
        begin = [rows * shard // shards for shard in range(shards + 1)]
        # A shard without rows takes a row of weight 0.
        ours = [
            taken(data, index[begin[s] : max(begin[s + 1], begin[s] + 1)])
            for s in dealt(shards, team.rank, team.size)
        ]
        yield Minibatch(ours, [(begin[s + 1] - begin[s]) / rows for s in range(shards)])


class Divisible(Protocol):
    """Gradient steps that several learners can divide."""

    def join_team(self, team: Team) -> None:
        """Takes all later steps with `team`."""
        ...


class Optimizer:
    """Minimises a pure `loss(vector, batch) -> (loss, info)` by minibatch Adam.

    Attributes:
        team: the learners that divide the shards.
    """

    def __init__(
        self, loss: Loss, settings: AdamSettings, stop: Stop | None = None, shards: int = 1
    ) -> None:
        """Takes eager steps until `compile` is called.

        `stop` gets the numbers of a minibatch, computed before its step; if it returns True, the
        step is discarded and the passes end. If `shards` is above 1, the loss and its info must be
        means over the rows.
        """
        self._loss, self._settings, self._stop, self._shards = loss, settings, stop, shards
        self._stage = Stage(self._gradient, self._apply)
        self._rate = torch.tensor(math.nan)  # of the passes that are running
        self._names: tuple[str, ...] = ()
        self.team: Team = ALONE

    def join_team(self, team: Team) -> None:
        """Takes all later steps with `team`; TypeError if it has more learners than shards."""
        if self._shards < team.size:
            raise TypeError(f"{self._shards} shards cannot be divided by {team.size} learners")
        self.team = team

    def compile(self, state: TrainState, data: Batch, minibatch_size: int) -> None:
        """Compiles the gradient of a full minibatch's shard; `data` is an example of a batch."""
        first = next(minibatches(data, None, minibatch_size, self._shards, self.team))
        self._gradient(state, first.shards[0])  # eagerly, for the names of its numbers
        self._stage = compiled(self._stage, state, first)

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
        recompute: Callable[[Tensor], Batch] | None = None,
    ) -> Result:
        """Passes `epochs` times over the rows of `data` [N, ...], or fewer if `stop` holds.

        Every pass has a new random order, drawn by `generator` on the CPU, unless one minibatch
        holds all rows. `recompute` maps parameters to new data, before every pass but the first.
        """
        train = TrainState(vector, state)
        self._rate = torch.tensor(learning_rate, device=vector.device)
        infos: list[Tensor] = []
        stopped = False
        for epoch in range(epochs):
            if epoch and recompute is not None:
                data = recompute(train.vector)
            rows = batch_rows(data)
            order = torch.randperm(rows, generator=generator) if minibatch_size < rows else None
            for minibatch in minibatches(data, order, minibatch_size, self._shards, self.team):
                after, numbers = take_step(self._stage, train, minibatch, self.team)
                infos.append(numbers)
                if self._stop is not None and self._stop(self._named(numbers)):
                    stopped = True
                    break
                train = after
            if stopped:
                break
        means = self._named(torch.stack(infos).mean(0))
        return Result(*train, means, len(infos) - stopped, stopped)

    def step(self, vector: Tensor, state: AdamState, data: Batch, learning_rate: float) -> Result:
        """Takes one gradient step on all rows of `data` ([N, ...])."""
        passes: dict[str, Any] = {"epochs": 1, "minibatch_size": batch_rows(data)}
        generator = torch.Generator()  # draws nothing: there is only one minibatch
        return self.minimise(
            vector, state, data, **passes, learning_rate=learning_rate, generator=generator
        )

    def _gradient(self, state: TrainState, batch: Batch) -> tuple[Tensor, Tensor]:
        def loss(vector: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
            value, info = self._loss(vector, batch)
            if not torch.compiler.is_compiling():
                self._names = ("loss", "grad_norm", *info)
            return value, tuple(info.values())

        return gradient_of(loss, state.vector)

    def _apply(self, state: TrainState, grad: Tensor, numbers: Tensor) -> tuple[TrainState, Tensor]:
        after, norm = adam_step(state, grad, self._rate, self._settings)
        return after, torch.cat((numbers[:1], norm.unsqueeze(0), numbers[1:]))

    def _named(self, numbers: Tensor) -> dict[str, float]:
        return dict(zip(self._names, numbers.tolist(), strict=True))


class Updates:
    """Blocks of gradient steps on minibatches from a replay buffer."""

    def __init__(
        self,
        stages: Sequence[Stage],  # the gradient steps of a block, in their order
        # makes a stage's batch from a minibatch [B, W] and its noise [M, B, A]
        split: Callable[[Tensor, Tensor], Batch],
        # computes a block's metrics [I] from the numbers of each stage
        summary: Callable[[Sequence[Tensor]], Tensor],
        shards: int = 1,  # into how many equal parts a minibatch is divided
    ) -> None:
        self._stages, self._split, self._summary = stages, split, summary
        self._shards = shards
        self._team: Team = ALONE

    def join_team(self, team: Team) -> None:
        """Takes all later blocks with `team`."""
        self._team = team

    def compile(self, state: Any, minibatches: Tensor, noise: Tensor) -> None:
        """Compiles the gradients, for arguments of these shapes; see `run`."""
        example = self._minibatch(minibatches[0, 0], noise[0, 0])
        once = {stage.gradient: stage for stage in self._stages}
        kinds = {key: compiled(stage, state, example) for key, stage in once.items()}
        self._stages = [
            kinds[stage.gradient]._replace(minibatch=stage.minibatch) for stage in self._stages
        ]

    @torch.no_grad()
    def run(self, state: Any, minibatches: Tensor, noise: Tensor) -> tuple[Any, list[Tensor]]:
        """Takes N blocks; every learner of the team must call it with the same arguments.

        Args:
            state: the state before the first block.
            minibatches: [N, K, B, W] rows of the replay buffer, for each block.
            noise: [N, K, M, B, A] standard normal.

        Returns:
            The state after the last block, and the metrics [I] of each block.
        """
        metrics = []
        for rows, draws in zip(minibatches, noise, strict=True):
            numbers = []
            for stage in self._stages:
                minibatch = self._minibatch(rows[stage.minibatch], draws[stage.minibatch])
                state, computed = take_step(stage, state, minibatch, self._team)
                numbers.append(computed)
            metrics.append(self._summary(numbers))
        return state, metrics

    def _minibatch(self, rows: Tensor, noise: Tensor) -> Minibatch:
        batch = self._split(rows, noise)
        return next(minibatches(batch, None, len(rows), self._shards, self._team))
