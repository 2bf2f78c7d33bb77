"""A team of learners that share memory: each computes its parts, and all get the parts of all.

All learners of a team run the same code on the same data. What they divide among themselves goes
through `Team.gather`: rows of numbers, each computed by one learner, for example the gradients of
the shards of a minibatch. Everybody gets all rows in their order, so the results do not depend on
how many learners there are.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from walle.errors import WorkerError
from walle.learning.sharing.barrier import Barrier
from walle.learning.sharing.memory import GrowingMemory

BLOCK = 1024  # rows


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

    def exchange(self, numbers: int) -> AbstractContextManager[Exchange | None]:
        """Lets a library exchange up to `numbers` float32 with the other learners by itself.

        Within the context it may do so again and again; every learner must do it as often. Gives
        None to a learner that is alone.
        """
        ...


Check = ctypes.CFUNCTYPE(None)


class Exchange(ctypes.Structure):
    """The struct `Team` of `learning/native/team.hpp`.

    Attributes:
        rank: the learner's number.
        size: number of learners.
        semaphores: address of the barrier's semaphores.
        distance: bytes from one to the next.
        rows: addresses of the two memories, of which a library uses one after the other.
        turn: the memory that was used last.
        is_whole: 0 if the team broke.
        check: called now and then while the library waits; must set `is_whole` to 1.
    """

    _fields_ = (
        *(("rank", ctypes.c_int), ("size", ctypes.c_int)),
        *(("semaphores", ctypes.c_void_p), ("distance", ctypes.c_long)),
        *(("rows", ctypes.c_void_p * 2), ("turn", ctypes.c_int)),
        *(("is_whole", ctypes.c_int), ("check", Check)),
    )
    turn: int
    is_whole: int


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

    def exchange(self, numbers: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """See `Team`."""
        return nullcontext()


ALONE = Alone()


def map_rows(function: Callable[[Tensor], Tensor], x: Tensor, team: Team = ALONE) -> Tensor:
    """`function` of every row: [N, ...] -> [N]; the learners of `team` divide the rows.

    On a CPU in blocks that stay in the cache, whose borders do not depend on the learners.
    """
    size = len(x) if x.is_cuda else BLOCK
    blocks = torch.split(x, size)

    def compute(row: int) -> Tensor:
        found = function(blocks[row])
        return found if len(found) == size else functional.pad(found, (0, size - len(found)))

    # Cloned, because the team uses its memory again.
    return team.gather(len(blocks), size, compute).flatten()[: len(x)].clone()


def require_alike(team: Team, value: float, message: str) -> None:
    """Every learner must call it; it also makes them wait for each other.

    Raises:
        WorkerError: the learners' values differ.
    """
    values = team.gather(team.size, 1, lambda _: torch.tensor([value]))
    if (values != values[0]).any():
        raise WorkerError(message)


def dealt(count: int, rank: int, size: int) -> range:
    """The rows that learner `rank` of `size` learners computes: a contiguous share."""
    return range(count * rank // size, count * (rank + 1) // size)


@contextmanager
def _caught(callback: Callable[[], None], raised: list[BaseException]) -> Iterator[None]:
    """Collects the exceptions that leave `callback` while a library calls it.

    ctypes cannot pass them on. A handler of a signal, which runs before the callback's first line,
    may raise one too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers do not run here, and the hook belongs to the whole process
        return
    others = sys.unraisablehook

    def collect(found: Any) -> None:
        if found.object is callback:
            raised.append(found.exc_value)
        else:
            others(found)

    with patch.object(sys, "unraisablehook", collect):
        yield


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

    @contextmanager
    def exchange(self, numbers: int) -> Iterator[Exchange]:
        """See `Team`; raises at the end what Python raised while the library waited."""
        raised: list[BaseException] = []

        def check() -> None:
            self._while_waiting()
            exchange.is_whole = 1

        barrier = self._memory.barrier
        rows = [self._rows(turn, 1, numbers).data_ptr() for turn in (0, 1)]
        exchange = Exchange(
            *(self.rank, self.size, barrier.address, barrier.distance),
            *((ctypes.c_void_p * 2)(*rows), self._turn, 1, Check(check)),
        )
        with _caught(check, raised):
            yield exchange
        self._turn = exchange.turn
        if not exchange.is_whole:
            raise raised[0] if raised else WorkerError("the team of learners broke")

    def _rows(self, turn: int, count: int, width: int) -> Tensor:
        """The memory of that turn as [count, width]."""
        shape = turn, count, width
        if shape not in self._views:
            memory = self._memory.rows[turn].bytes(4 * count * width)
            self._views[shape] = torch.from_numpy(memory.view(np.float32)).view(count, width)
        return self._views[shape]
