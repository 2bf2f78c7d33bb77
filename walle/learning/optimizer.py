"""An optimizer that minimises a pure loss in epochs of minibatches, by Adam."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from walle.learning.adam import AdamSettings, AdamState
from walle.learning.gradient_steps import (
    Batch,
    CompiledStep,
    EagerStep,
    GradientStep,
    Loss,
    batch_rows,
    minibatches,
)
from walle.learning.shards import ShardedStep
from walle.learning.sharing.team import Team

Stop = Callable[[Mapping[str, float]], bool]


class EpochResult(NamedTuple):
    """The result of one pass over the data.

    Attributes:
        vector: [P] the new parameters.
        state: Adam's new state.
        infos: [M, I] the numbers of each minibatch; `GradientStep.names` names them.
        stopped: whether the stop criterion ended the pass at the last of these minibatches.
    """

    vector: Tensor
    state: AdamState
    infos: Tensor
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


class Divisible(Protocol):
    """Gradient steps that several learners can divide."""

    def join_team(self, team: Team) -> None:
        """Takes all later steps with `team`."""
        ...


class Optimizer:
    """Minimises a pure `loss(vector, batch) -> (loss, info)` by minibatch Adam.

    A batch is a named tuple of tensors, which may contain further named tuples.
    """

    def __init__(
        self,
        loss: Loss,
        settings: AdamSettings,
        stop: Stop | None = None,
        shards: int = 1,
    ) -> None:
        """Takes eager steps until `compile`.

        Args:
            loss: the loss of a minibatch.
            settings: settings of Adam, and the bound of the gradient's norm.
            stop: gets the info of a minibatch, computed before its step; if it returns True, the
                step is discarded and the epochs end.
            shards: into how many parts a minibatch is divided; with more than one, the loss and its
                info must be means over the rows.
        """
        self._loss = loss
        self._settings = settings
        self._stop = stop
        self._divided = ShardedStep(loss, settings, shards) if shards > 1 else None
        self._step: GradientStep = cast(Any, self._divided) or EagerStep(loss, settings)

    def join_team(self, team: Team) -> None:
        """Takes all later steps with `team`.

        Raises:
            TypeError: this optimizer's minibatches have no shards.
        """
        if self._divided is None:
            raise TypeError("without shards there is nothing to divide")
        self._divided.team = team

    def compile(
        self, vector: Tensor, data: Batch, minibatch_size: int, description: str | None = None
    ) -> None:
        """Compiles the later steps; `data` is an example, of which they take full minibatches.

        `description` describes the loss, see `compile_function`.
        """
        batch = minibatches(data, None, minibatch_size)[0]
        if self._divided is not None:
            self._divided.compile(vector, batch, description)
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
        infos: list[Tensor] = []
        for epoch in range(epochs):
            if epoch and recompute is not None:
                data = recompute(vector)
            rows = batch_rows(data)  # all rows in one minibatch need no random order
            order = torch.randperm(rows, generator=generator) if minibatch_size < rows else None
            found = self._run_epoch(vector, state, learning_rate, data, order, minibatch_size)
            vector, state = found.vector, found.state
            infos.append(found.infos)
            if found.stopped:
                break
        return self._result(found, torch.cat(infos))

    def step(self, vector: Tensor, state: AdamState, data: Batch, learning_rate: float) -> Result:
        """Takes one gradient step on all rows of `data` ([N, ...])."""
        found = self._run_epoch(vector, state, learning_rate, data, None, batch_rows(data))
        return self._result(found, found.infos)

    def _run_epoch(
        self,
        vector: Tensor,
        state: AdamState,
        learning_rate: float,
        data: Batch,
        order: Tensor | None,
        size: int,
    ) -> EpochResult:
        """Takes a step on each minibatch of `size` rows, in `order`."""
        rate = torch.tensor(learning_rate, device=vector.device)
        batches = self._step.deal(data, order, size)
        infos: list[Tensor] = []
        stopped = False
        for batch in batches:
            new_vector, new_state, info = self._step(vector, state, rate, batch)
            infos.append(info)
            if self._stop is not None and self._stop(self._named(info)):
                stopped = True
                break
            vector, state = new_vector, new_state
        return EpochResult(vector, state, torch.stack(infos), stopped)

    def _named(self, info: Tensor) -> dict[str, float]:
        return dict(zip(self._step.names, info.tolist(), strict=True))

    def _result(self, last: EpochResult, infos: Tensor) -> Result:
        """The result after the `last` epoch, with the numbers [M, I] of all minibatches."""
        taken = len(infos) - last.stopped
        return Result(last.vector, last.state, self._named(infos.mean(0)), taken, last.stopped)


class Learnable(Protocol):
    """An algorithm whose steps several learners can divide.

    Attributes:
        vector: parameters [P], by which learners find out whether they agree.
        env_steps: environment steps learned from.
    """

    vector: Tensor
    env_steps: int

    def join(self, team: Team) -> None:
        """Takes all later steps with `team`."""
        ...

    def warm_up(self) -> str:
        """Compiles the parts that repay it, then meets the team; returns what it compiled."""
        ...

    def learn(self, *data: Any) -> Any:
        """Learns from what the agent announced; only the agent uses what it returns."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        ...


@runtime_checkable
class DrawsAhead(Protocol):
    """An algorithm that can draw random numbers of its next update while samplers collect."""

    def draw_ahead(self) -> None:
        """Draws them; changes neither results nor what `state_dict` gives."""
        ...


def draw_ahead(algorithm: object) -> None:
    """Lets an algorithm draw ahead, if it can."""
    if isinstance(algorithm, DrawsAhead):
        algorithm.draw_ahead()
