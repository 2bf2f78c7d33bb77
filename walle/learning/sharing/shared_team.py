"""Teams of processes that exchange their parts through shared memory; see `team.py`."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from walle.errors import WorkerError
from walle.learning.sharing.team import Team, dealt
from walle.learning.trees import leaves, map_leaves
from walle.system.shared_memory import SharedMemory

_LINE = 64  # bytes of a line of the processor's cache
_SPIN_S = 50e-6  # how long a learner that waits keeps its core busy
_SLEEP_S = 0.05  # how long it then sleeps before it checks that no learner has died


@dataclass(frozen=True)
class StoredArray:
    """An array's place in shared memory, and whether it becomes a tensor."""

    begin: int
    shape: tuple[int, ...]
    dtype: str
    tensor: bool


def put(memory: SharedMemory, tree: Any) -> Any:
    """Copies the tensors and arrays of nested named tuples into `memory`.

    Returns:
        the same named tuples with a `StoredArray` for each tensor or array; other leaves stay.
    """
    end = 0

    def place(leaf: Any) -> Any:
        nonlocal end
        if not isinstance(leaf, Tensor | np.ndarray):
            return leaf
        array = _array(leaf)
        begin, end = end, end + -(-array.nbytes // _LINE) * _LINE
        return StoredArray(begin, array.shape, array.dtype.str, isinstance(leaf, Tensor))

    places = map_leaves(place, tree)
    memory.bytes(end)  # it grows at most once
    for stored, leaf in zip(leaves(places), leaves(tree), strict=True):
        if isinstance(stored, StoredArray):
            np.copyto(_view(memory, stored), _array(leaf))
    return places


def get(memory: SharedMemory, places: Any, device: str) -> Any:
    """Copies of the values that `put` stored, the tensors on `device`."""

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, StoredArray):
            return leaf
        array = _view(memory, leaf)
        if not leaf.tensor:
            return array.copy()
        return torch.from_numpy(array).clone().to(device)  # aligned like the agent's

    return map_leaves(copy, places)


def _array(leaf: Tensor | npt.NDArray[Any]) -> npt.NDArray[Any]:
    return leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf


def _view(memory: SharedMemory, stored: StoredArray) -> npt.NDArray[Any]:
    dtype = np.dtype(stored.dtype)
    end = stored.begin + math.prod(stored.shape) * dtype.itemsize
    return memory.bytes(end)[stored.begin :].view(dtype).reshape(stored.shape)


class Barrier:
    """A point at which every learner waits until all have arrived; picklable to a child process.

    Each learner has a POSIX semaphore in shared memory, which the others raise when they arrive.
    Semaphores order memory: after the wait, every learner sees what any wrote before. Waiting spins
    briefly, because learners with equal shares arrive within microseconds, and then sleeps, so that
    learners do not hold each other up on few cores. `native/shards.hpp` waits in the same way.

    Attributes:
        distance: bytes from one learner's semaphore to the next: a line of the processor's cache.
    """

    distance = _LINE

    def __init__(self, size: int) -> None:
        """For `size` learners."""
        self._size, self._memory = size, SharedMemory("walle-learners", reserve=True)
        for rank in range(size):
            _check_errno(_QUICK.sem_init(self._semaphore(rank), 1, 0))

    def __getstate__(self) -> dict[str, Any]:
        return {"_size": self._size, "_memory": self._memory}  # each process has its addresses

    def wait(self, rank: int, while_waiting: Callable[[], None]) -> None:
        """Returns when all learners have arrived; calls `while_waiting` repeatedly in a long wait.

        Args:
            rank: the caller's number.
            while_waiting: raises an error to end the wait.
        """
        for other in range(self._size):
            if other != rank:
                _check_errno(_QUICK.sem_post(self._semaphore(other)))
        own, spin_until = self._semaphore(rank), time.perf_counter() + _SPIN_S
        for _ in range(self._size - 1):
            while _QUICK.sem_trywait(own):
                if time.perf_counter() > spin_until:
                    self._sleep(own, while_waiting)
                    break

    def _sleep(self, semaphore: int, while_waiting: Callable[[], None]) -> None:
        while True:
            seconds, fraction = divmod(time.time() + _SLEEP_S, 1)
            until = (ctypes.c_long * 2)(int(seconds), int(fraction * 1e9))  # C's struct timespec
            if not _BLOCKING.sem_timedwait(semaphore, until):
                return
            while_waiting()  # a signal ends the sleep too, and Python handles it here

    def _semaphore(self, rank: int) -> int:
        return self.address + rank * self.distance

    @cached_property
    def address(self) -> int:
        """The address of the first semaphore in this process."""
        return int(self._memory.bytes(self._size * self.distance).ctypes.data)


def _declared(library: Any) -> Any:
    address = ctypes.c_void_p
    library.sem_init.argtypes = (address, ctypes.c_int, ctypes.c_uint)
    for name in ("sem_post", "sem_trywait"):
        getattr(library, name).argtypes = (address,)
    library.sem_timedwait.argtypes = (address, address)
    return library


_QUICK = _declared(ctypes.PyDLL(None, use_errno=True))
_BLOCKING = _declared(ctypes.CDLL(None, use_errno=True))  # releases Python's lock


def _check_errno(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


Check = ctypes.CFUNCTYPE(None)


class Exchange(ctypes.Structure):
    """The struct `Team` of `learning/native/shards.hpp`.

    Attributes:
        rank: the learner's number.
        size: number of learners.
        semaphores: address of the barrier's semaphores.
        distance: bytes from one semaphore to the next.
        rows: addresses of the two memories, which a library uses alternately.
        turn: the index in `rows` of the memory that was used last.
        is_whole: 0 if the team broke.
        check: called repeatedly while the library waits. The library clears `is_whole` before each
            call, and `check` sets it to 1 unless it raises.
    """

    _fields_ = (
        *(("rank", ctypes.c_int), ("size", ctypes.c_int)),
        *(("semaphores", ctypes.c_void_p), ("distance", ctypes.c_long)),
        *(("rows", ctypes.c_void_p * 2), ("turn", ctypes.c_int)),
        *(("is_whole", ctypes.c_int), ("check", Check)),
    )
    turn: int
    is_whole: int


class TeamMemory:
    """The memory that the learners of a team share; picklable to a child process."""

    def __init__(self, size: int) -> None:
        """For `size` learners."""
        self.size = size
        self.barrier = Barrier(size)
        self.rows = (
            SharedMemory("walle-learners", reserve=True),
            SharedMemory("walle-learners", reserve=True),
        )
        self.round = SharedMemory("walle-learners", reserve=True)


class SharedTeam(Team):
    """One learner's side of a team in shared memory; see `Team`. Only the agent announces.

    Rows go into two memories alternately. A learner that arrives at a barrier has read the rows of
    the previous barrier, so the memory with those rows is free after the barrier.
    """

    def __init__(
        self, rank: int, memory: TeamMemory, device: str, while_waiting: Callable[[], None]
    ) -> None:
        """Makes learner number `rank` on `device`; for `while_waiting` see `Barrier.wait`."""
        self.rank, self.size = rank, memory.size
        self._memory, self._device, self._while_waiting = memory, device, while_waiting
        self._turn = 0
        self._views: dict[tuple[int, int, int], Tensor] = {}

    def gather(self, count: int, width: int, compute: Callable[[int], Tensor]) -> Tensor:
        """See `Team`."""
        self._turn = 1 - self._turn
        rows = self._rows(self._turn, count, width)
        for row in dealt(count, self.rank, self.size):
            rows[row].copy_(compute(row))
        self._memory.barrier.wait(self.rank, self._while_waiting)
        return rows.to(self._device)

    @contextmanager
    def exchange(self, numbers: int) -> Iterator[Exchange]:
        """See `Team`; at the end re-raises any exception from the library's wait."""
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
        with _exceptions_of(check, raised):
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


@contextmanager
def _exceptions_of(callback: Callable[[], None], raised: list[BaseException]) -> Iterator[None]:
    """Collects the exceptions that leave `callback` while a library calls it.

    ctypes cannot propagate them. A signal handler that runs before the callback's first line may
    raise one too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers do not run here, and the hook belongs to the whole process
        return
    previous = sys.unraisablehook

    def collect(unraisable: Any) -> None:
        if unraisable.object is callback:
            raised.append(unraisable.exc_value)
        else:
            previous(unraisable)

    with patch.object(sys, "unraisablehook", collect):
        yield
