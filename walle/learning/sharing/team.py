"""A team of learners that share memory: each computes its parts, and all get the parts of all.

All learners of a team run the same code on the same data. What they divide among themselves goes
through `Team.gather`: rows of numbers, each computed by one learner, for example the gradients of
the shards of a minibatch. Everybody gets all rows in their order, so the results do not depend on
how many learners there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from walle.learning.sharing.barrier import Barrier
from walle.learning.sharing.memory import GrowingMemory


class Team(Protocol):
    """The interface of one learner to all learners that take steps together.

    Attributes:
        rank: the learner's number; the agent is number 0.
        size: number of learners.
    """

    rank: int
    size: int

    def announce(self, data: tuple[Any, ...], env_steps: int) -> None:
        """Sends the other learners what `Learnable.learn` is about to get."""
        ...

    def changed(self) -> None:
        """Tells that the agent's algorithm changed otherwise than by learning."""
        ...

    def meet(self) -> None:
        """Waits until every learner has called this method."""
        ...

    def gather(self, count: int, width: int, compute: Callable[[int], Tensor]) -> Tensor:
        """Computes `count` rows together; every learner must call it, with equal sizes.

        Args:
            count: number of rows.
            width: numbers in a row, which are float32.
            compute: computes the row of that number, [width]; must give the same bits everywhere.

        Returns:
            [count, width]; its memory is used again by the next but one call.
        """
        ...


class Alone:
    """The team of a single learner."""

    rank, size = 0, 1

    def announce(self, data: tuple[Any, ...], env_steps: int) -> None:
        """There is nobody to send the data to."""

    def changed(self) -> None:
        """There is nobody to tell."""

    def meet(self) -> None:
        """There is nobody to wait for."""

    def gather(self, count: int, width: int, compute: Callable[[int], Tensor]) -> Tensor:  # noqa: ARG002
        """See `Team`."""
        return torch.stack([compute(row) for row in range(count)])


ALONE = Alone()


def dealt(count: int, rank: int, size: int) -> range:
    """The rows that learner `rank` of `size` learners computes: a contiguous share."""
    return range(count * rank // size, count * (rank + 1) // size)


class SharedMemory:
    """What the learners of a team share; picklable to a child process."""

    def __init__(self, size: int) -> None:
        """For `size` learners."""
        self.size = size
        self.barrier = Barrier(size)
        self.rows = (GrowingMemory(), GrowingMemory())
        self.round = GrowingMemory()


class SharedTeam:
    """One learner's side of a team in shared memory; see `Team`.

    Rows go into two memories by turns. A learner that comes to a barrier has read the rows of the
    barrier before, so the memory of the barrier before that is free.
    """

    def __init__(
        self, rank: int, memory: SharedMemory, device: str, while_waiting: Callable[[], None]
    ) -> None:
        """Learner number `rank`, which computes on `device`; see `Barrier.wait`."""
        self.rank, self.size = rank, memory.size
        self._memory, self._device, self._while_waiting = memory, device, while_waiting
        self._turn = 0
        self._views: dict[tuple[int, int, int], Tensor] = {}

    def announce(self, data: tuple[Any, ...], env_steps: int) -> None:
        """Only the agent announces."""

    def changed(self) -> None:
        """Only the agent's algorithm changes so."""

    def meet(self) -> None:
        """See `Team`."""
        self._memory.barrier.wait(self.rank, self._while_waiting)

    def gather(self, count: int, width: int, compute: Callable[[int], Tensor]) -> Tensor:
        """See `Team`."""
        self._turn = 1 - self._turn
        rows = self._rows(self._turn, count, width)
        for row in dealt(count, self.rank, self.size):
            rows[row].copy_(compute(row))
        self.meet()
        return rows.to(self._device)

    def _rows(self, turn: int, count: int, width: int) -> Tensor:
        """The memory of that turn as [count, width]."""
        shape = turn, count, width
        if shape not in self._views:
            memory = self._memory.rows[turn].bytes(4 * count * width)
            self._views[shape] = torch.from_numpy(memory.view(np.float32)).view(count, width)
        return self._views[shape]
