"""Epochs over minibatches of a pure loss: the optimizer every algorithm's update runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from walle.learning.adam import AdamSettings, AdamState
from walle.learning.gradient_steps import (
    Batch,
    CompiledStep,
    EagerStep,
    Info,
    Loss,
    SharedStep,
    Step,
    Team,
)

__all__ = ["AdamSettings", "AdamState", "Batch", "Info", "Loss", "Result", "Sgd"]


Epoch = tuple[Tensor, AdamState, list[Tensor], bool]
Stop = Callable[[Mapping[str, float]], bool]


class Result(NamedTuple):
    """What a call of `minimise` left behind.

    Attributes:
        vector: [P] the new parameters.
        state: the optimiser's new state.
        info: every entry of the loss's info, and `loss` and `grad_norm`, averaged over the
            minibatches, the one that stopped it included.
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

    def __init__(self, loss: Loss, settings: AdamSettings, stop: Stop | None = None) -> None:
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
        self._team: Team | None = None
        self._index = 0

    def share(self, team: Team, index: int) -> None:
        """From now on steps are taken with `team`, to whom this is optimizer number `index`.

        The loss and its info must be means over the rows.
        """
        self._team, self._index = team, index
        self._step = SharedStep(self._loss, self._settings, team)

    def meet(self) -> None:
        """Waits for the other learners, if there are any."""
        if self._team is not None:
            self._team.meet()

    def compile(self, vector: Tensor, data: Batch, minibatch_size: int) -> None:
        """From now on steps are compiled, for full minibatches of data like `data`."""
        batch = _minibatches(data, minibatch_size)[0]
        if isinstance(self._step, SharedStep):
            self._step.compile(vector, batch)
        else:
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
        stopped = False
        for epoch in range(epochs):
            if epoch and remake is not None:
                data = remake(vector)
            shuffled = _shuffled(data, minibatch_size, generator)
            vector, state, found, stopped = self._together(
                vector, state, rate, shuffled, minibatch_size
            )
            rows += found
            if stopped:
                break
        return Result(vector, state, self._means(rows), len(rows) - stopped, stopped)

    def step(self, vector: Tensor, state: AdamState, data: Batch, learning_rate: float) -> Result:
        """One gradient step on all rows of `data` ([N, ...])."""
        rate = torch.tensor(learning_rate, device=vector.device)
        vector, state, rows, stopped = self._together(vector, state, rate, data, _rows(data))
        return Result(vector, state, self._means(rows), len(rows) - stopped, stopped)

    def _together(
        self, vector: Tensor, state: AdamState, rate: Tensor, data: Batch, minibatch_size: int
    ) -> Epoch:
        """One epoch in the order `data` lies in, with the other learners, if there are any."""
        if self._team is not None:
            wire = (vector, *state, rate)
            self._team.announce(self._index, minibatch_size, data, wire)
        return self.run(vector, state, rate, data, minibatch_size)

    def run(
        self, vector: Tensor, state: AdamState, rate: Tensor, data: Batch, minibatch_size: int
    ) -> Epoch:
        """One epoch over `data` in the order it lies in.

        Returns:
            The parameters and the optimiser's state, a row of information a minibatch, and whether
            the stop criterion ended it, at the last of them.
        """
        rows: list[Tensor] = []
        for minibatch in _minibatches(data, minibatch_size):
            new_vector, new_state, row = self._step(vector, state, rate, minibatch)
            if self._stop is not None and self._stop(self._named(row)):
                return vector, state, [*rows, row], True
            vector, state = new_vector, new_state
            rows.append(row)
        return vector, state, rows, False

    def _named(self, row: Tensor) -> dict[str, float]:
        return dict(zip(self._step.names, row.tolist(), strict=True))

    def _means(self, rows: list[Tensor]) -> dict[str, float]:
        return self._named(torch.stack(rows).mean(0))


def _rows(data: Batch) -> int:
    return next(len(x) for x in data.values() if x.dim())


def _shuffled(data: Batch, minibatch_size: int, generator: torch.Generator) -> Batch:
    length = _rows(data)
    if minibatch_size >= length:
        return data  # a full batch needs no order
    order = torch.randperm(length, generator=generator)
    # index_select takes a third of the time of indexing
    return {
        name: x.index_select(0, order.to(x.device)) if x.dim() else x for name, x in data.items()
    }


def _minibatches(data: Batch, size: int) -> list[Batch]:
    count = -(-_rows(data) // size)
    parts = [torch.split(x, size) if x.dim() else [x] * count for x in data.values()]
    return [dict(zip(data, columns, strict=True)) for columns in zip(*parts, strict=True)]
