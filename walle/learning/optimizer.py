"""An optimizer that minimises a pure loss in epochs of minibatches, by Adam."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from walle.learning.adam import AdamSettings, AdamState
from walle.learning.gradient_steps import (
    Batch,
    CompiledStep,
    EagerStep,
    GradientStep,
    Loss,
    SharedStep,
    Team,
    batch_rows,
    leaves,
    map_leaves,
    rebuild,
)

Stop = Callable[[Mapping[str, float]], bool]


class EpochResult(NamedTuple):
    """The result of one pass over the data.

    Attributes:
        vector: [P] the new parameters.
        state: Adam's new state.
        infos: the numbers [I] of each minibatch; `GradientStep.names` names them.
        stopped: whether the stop criterion ended the pass at the last of these minibatches.
    """

    vector: Tensor
    state: AdamState
    infos: list[Tensor]
    stopped: bool


class Result(NamedTuple):
    """The result of `Optimizer.minimise` and `Optimizer.step`.

    Attributes:
        vector: [P] the new parameters.
        state: Adam's new state.
        info: `loss`, `grad_norm` and the entries of the loss's info, averaged over all minibatches,
            including the one at which the stop criterion held.
        minibatches: number of gradient steps.
        stopped: whether the stop criterion ended the epochs early.
    """

    vector: Tensor
    state: AdamState
    info: dict[str, float]
    minibatches: int
    stopped: bool


class Optimizer:
    """Minimises a pure `loss(vector, batch) -> (loss, info)` by minibatch Adam.

    A batch is a named tuple of tensors, which may contain further named tuples.
    """

    def __init__(self, loss: Loss, settings: AdamSettings, stop: Stop | None = None) -> None:
        """Takes eager steps until `compile`.

        Args:
            loss: the loss of a minibatch.
            settings: settings of Adam, and the bound of the gradient's norm.
            stop: gets the info of a minibatch, computed before its step; if it returns True, the
                step is discarded and the epochs end.
        """
        self._loss = loss
        self._settings = settings
        self._stop = stop
        self._step: GradientStep = EagerStep(loss, settings)
        self._team: Team | None = None
        self._index = 0

    def join_team(self, team: Team, index: int) -> None:
        """Takes all later steps with `team`, which knows this optimizer as number `index`.

        The loss and its info must be means over the rows.
        """
        self._team, self._index = team, index
        self._step = SharedStep(self._loss, self._settings, team)

    def meet(self) -> None:
        """Waits for the other learners, if this optimizer has joined a team."""
        if self._team is not None:
            self._team.meet()

    def compile(
        self, vector: Tensor, data: Batch, minibatch_size: int, description: str | None = None
    ) -> None:
        """Compiles the later steps; `data` is an example, of which they take full minibatches.

        `description` describes the loss, see `compile_function`.
        """
        batch = _minibatches(data, minibatch_size)[0]
        if isinstance(self._step, SharedStep):
            self._step.compile(vector, batch, description)
        else:
            settings = self._settings
            self._step = CompiledStep(self._loss, settings, vector, batch, description)

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
        """Passes `epochs` times over the rows of `data`, or fewer if `stop` holds.

        Every pass has a new random order, unless one minibatch holds all rows.

        Args:
            vector: [P] the first parameters.
            state: Adam's state before the first step.
            data: tensors [N, ...]; tensors without dimensions reach every minibatch unchanged.
            epochs: passes over the data.
            minibatch_size: rows in a minibatch; the last one of an epoch may be smaller.
            learning_rate: Adam's step size.
            generator: draws the orders, on the CPU.
            recompute: maps parameters to new data, before every epoch except the first.
        """
        rate = torch.tensor(learning_rate, device=vector.device)
        infos: list[Tensor] = []
        stopped = False
        for epoch in range(epochs):
            if epoch and recompute is not None:
                data = recompute(vector)
            shuffled = _shuffled(data, minibatch_size, generator)
            vector, state, more, stopped = self._lead_epoch(
                vector, state, rate, shuffled, minibatch_size
            )
            infos += more
            if stopped:
                break
        return Result(vector, state, self._means(infos), len(infos) - stopped, stopped)

    def step(self, vector: Tensor, state: AdamState, data: Batch, learning_rate: float) -> Result:
        """Takes one gradient step on all rows of `data` ([N, ...])."""
        rate = torch.tensor(learning_rate, device=vector.device)
        vector, state, infos, stopped = self._lead_epoch(
            vector, state, rate, data, batch_rows(data)
        )
        return Result(vector, state, self._means(infos), len(infos) - stopped, stopped)

    def _lead_epoch(
        self, vector: Tensor, state: AdamState, rate: Tensor, data: Batch, minibatch_size: int
    ) -> EpochResult:
        """Runs one epoch, which it announces to the other learners, if there are any."""
        if self._team is not None:
            self._team.announce(self._index, minibatch_size, data, (vector, *state, rate))
        return self.run_epoch(vector, state, rate, data, minibatch_size)

    def run_epoch(
        self, vector: Tensor, state: AdamState, rate: Tensor, data: Batch, minibatch_size: int
    ) -> EpochResult:
        """Passes once over `data`, in the order of its rows."""
        infos: list[Tensor] = []
        for minibatch in _minibatches(data, minibatch_size):
            new_vector, new_state, info = self._step(vector, state, rate, minibatch)
            infos.append(info)
            if self._stop is not None and self._stop(self._named(info)):
                return EpochResult(vector, state, infos, stopped=True)
            vector, state = new_vector, new_state
        return EpochResult(vector, state, infos, stopped=False)

    def _named(self, info: Tensor) -> dict[str, float]:
        return dict(zip(self._step.names, info.tolist(), strict=True))

    def _means(self, infos: list[Tensor]) -> dict[str, float]:
        return self._named(torch.stack(infos).mean(0))


def _shuffled(data: Batch, minibatch_size: int, generator: torch.Generator) -> Batch:
    rows = batch_rows(data)
    if minibatch_size >= rows:
        return data  # a full batch needs no random order
    order = torch.randperm(rows, generator=generator)

    def reordered(x: Any) -> Any:
        # index_select takes a third of the time of indexing
        return x.index_select(0, order.to(x.device)) if x.dim() else x

    return map_leaves(reordered, data)


def _minibatches(data: Batch, size: int) -> list[Batch]:
    count = -(-batch_rows(data) // size)
    columns = [torch.split(x, size) if x.dim() else [x] * count for x in leaves(data)]
    return [rebuild(data, iter(parts)) for parts in zip(*columns, strict=True)]


class Learnable(Protocol):
    """The part of an algorithm that several learners share."""

    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers that several learners can share."""
        ...

    def warm_up(self) -> str:
        """Compiles the parts that repay it; returns one line: what was compiled, and why."""
        ...


def warm_up(algorithm: Learnable) -> str:
    """Compiles, then waits until all other learners have compiled; see `Learnable.warm_up`."""
    line = algorithm.warm_up()
    for optimizer in algorithm.optimizers():
        optimizer.meet()
    return line
