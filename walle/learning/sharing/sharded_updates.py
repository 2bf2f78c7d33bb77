"""Blocks of off-policy updates in shards: fixed parts of every minibatch.

Each stage of a block is one exchange: the learners of a team compute the gradients of the shards,
and every learner adds all of them in their order and takes the step. The shards depend on the
configuration alone, so the parameters are the same bits for any number of learners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from walle.learning.compiled import Function, compile_function
from walle.learning.gradient_steps import leaves, rebuild
from walle.learning.off_policy_updates import Stage, Values
from walle.learning.sharing.team import ALONE, Team

Summary = Callable[[Sequence[Values]], Sequence[Tensor]]
"""The mean values of each stage of a block -> its metrics."""
Gradient = Callable[[Any, Tensor, Tensor], Tensor]
"""(state, shard's rows, its noise) -> gradient [P], then the means of its values [I]."""
Step = Callable[[Any, Tensor], tuple[Any, Values]]
"""(state, what all shards gave [S, P + I]) -> (the state after the step, the mean values)."""


class ShardedUpdates:
    """A function that takes blocks of updates in shards, eagerly until `compile`.

    It has the interface of `Updates`. The size of minibatches must be a multiple of the shards.
    """

    def __init__(self, stages: Sequence[Stage], summary: Summary, shards: int) -> None:
        """Takes all blocks alone until `join_team`.

        Args:
            stages: the gradient steps of a block, in their order.
            summary: computes a block's metrics.
            shards: into how many parts a minibatch is divided.
        """
        self._summary, self._shards = summary, shards
        self._team: Team = ALONE
        kinds = {(s.gradient, s.step): ShardedStage(s, shards) for s in stages}
        self._stages = [(kinds[s.gradient, s.step], s.minibatch) for s in stages]
        self._kinds = list(kinds.values())

    def join_team(self, team: Team) -> None:
        """Takes all later blocks with `team`."""
        self._team = team

    def compile(
        self, state: Any, minibatches: Tensor, noise: Tensor, description: str | None = None
    ) -> None:
        """See `Updates.compile`; compiles two functions for each kind of stage."""
        shard, found = self._shard(0, minibatches[0], noise[0]), []
        for number, stage in enumerate(self._kinds):
            of = None if description is None else f"stage {number} of {description}"
            found.append(stage.compiled(state, *shard, of))
        for stage, functions in zip(self._kinds, found, strict=True):  # all of them, or none
            stage.gradient, stage.step = functions

    @torch.no_grad()
    def run(self, state: Any, minibatches: Tensor, noise: Tensor) -> tuple[Any, list[Tensor]]:
        """See `Updates.run`; every learner of the team must call it with the same arguments."""
        metrics = []
        for rows, draws in zip(minibatches, noise, strict=True):
            found = []
            for stage, number in self._stages:
                state, values = self._take(stage, state, rows[number], draws[number])
                found.append(values)
            metrics.append(torch.stack(tuple(self._summary(found))))
        return state, metrics

    def _take(
        self, stage: ShardedStage, state: Any, minibatch: Tensor, noise: Tensor
    ) -> tuple[Any, Values]:
        """One stage on a minibatch [B, W] with noise [M, B, A]."""
        gradients = self._team.gather(
            self._shards,
            stage.width(state, minibatch, noise),
            lambda shard: stage.gradient(state, *self._shard(shard, minibatch, noise)),
        )
        return stage.step(state, gradients)

    def _shard(self, shard: int, minibatch: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of a shard's rows and noise: the bits of a product may depend on their places."""
        size = len(minibatch) // self._shards
        mine = slice(shard * size, (shard + 1) * size)
        exact = torch.contiguous_format
        return minibatch[mine].clone(memory_format=exact), noise[:, mine].clone(memory_format=exact)


class ShardedStage:
    """A `Stage` whose minibatch is divided into shards.

    Attributes:
        gradient: computes a shard's part.
        step: takes the step with the parts of all shards.
    """

    def __init__(self, stage: Stage, shards: int) -> None:
        """Computes eagerly."""
        self._stage, self._shards = stage, shards
        self._width = 0
        self._values = 0
        self.gradient: Gradient = self._gradient
        self.step: Step = self._step

    def width(self, state: Any, minibatch: Tensor, noise: Tensor) -> int:
        """The numbers that a shard gives: P of the gradient, and its values."""
        if not self._width:  # a single row tells
            grad, values = self._stage.gradient(state, minibatch[:1], noise[:, :1])
            self._width, self._values = len(grad) + len(values), len(values)
        return self._width

    def _gradient(self, state: Any, minibatch: Tensor, noise: Tensor) -> Tensor:
        grad, values = self._stage.gradient(state, minibatch, noise)
        return torch.cat((grad, torch.stack([value.mean() for value in values])))

    def _step(self, state: Any, gradients: Tensor) -> tuple[Any, Values]:
        size = gradients.shape[1] - self._values
        values = self._mean(gradients[:, size:]).unbind()
        return self._stage.step(state, self._mean(gradients[:, :size]), values), values

    def _mean(self, shards: Tensor) -> Tensor:
        """The mean [N] of [S, N], added in the order of the shards."""
        total = shards[0]
        for shard in shards[1:]:
            total = total + shard
        return total / self._shards

    @torch.no_grad()
    def compiled(
        self, state: Any, minibatch: Tensor, noise: Tensor, description: str | None
    ) -> tuple[Gradient, Step]:
        """Compiled functions for `gradient` and `step`.

        Args:
            state: an example of a block's state.
            minibatch: [B / S, W] an example of a shard.
            noise: [M, B / S, A].
            description: describes the stage, see `compile_function`.
        """
        gradients = torch.zeros(
            self._shards, self.width(state, minibatch, noise), device=noise.device
        )
        after, _ = self._step(state, gradients)
        new = [
            i
            for i, (x, y) in enumerate(zip(leaves(after), leaves(state), strict=True))
            if x is not y
        ]

        def gradient(*inputs: Tensor) -> tuple[Tensor]:
            *parts, minibatch, noise = inputs
            return (self._gradient(rebuild(state, iter(parts)), minibatch, noise),)

        def step(*inputs: Tensor) -> tuple[Tensor, ...]:
            *parts, gradients = inputs
            after, values = self._step(rebuild(state, iter(parts)), gradients)
            found = leaves(after)
            return *(found[i] for i in new), torch.stack(tuple(values))

        of_gradient = None if description is None else f"gradient of {description}"
        of_step = None if description is None else f"step of {description}"
        before = leaves(state)
        compute = compile_function(gradient, (*before, minibatch, noise), of_gradient)
        move = compile_function(step, (*before, gradients), of_step)
        return _gradient(compute), _step(move, new)


def _gradient(program: Function) -> Gradient:
    def gradient(state: Any, minibatch: Tensor, noise: Tensor) -> Tensor:
        return program(*leaves(state), minibatch, noise)[0]

    return gradient


def _step(program: Function, new: Sequence[int]) -> Step:
    """The step whose program gives the leaves `new` of the state, and the values."""

    def step(state: Any, gradients: Tensor) -> tuple[Any, Values]:
        parts = leaves(state)
        *found, values = program(*parts, gradients)
        for i, leaf in zip(new, found, strict=True):
            parts[i] = leaf
        return rebuild(state, iter(parts)), values.unbind()

    return step
