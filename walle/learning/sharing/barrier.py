"""A barrier of POSIX semaphores in shared memory."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from walle.learning.sharing.memory import GrowingMemory

_SPIN_S = 50e-6  # how long a learner that waits keeps its core busy
_SLEEP_S = 0.05  # how long it then sleeps before it asks whether the team is whole


class Barrier:
    """A point at which every learner waits until all have come; picklable to a child process.

    Each learner has a semaphore in shared memory, which the others raise when they come. POSIX
    semaphores order memory: what a learner wrote before, the others read after. Waiting spins
    briefly, because learners with equal shares come within microseconds, and then sleeps, so that
    more learners than cores do not hold each other up.

    Attributes:
        distance: bytes from one learner's semaphore to the next: a line of the processor's cache.
    """

    distance = 64

    def __init__(self, size: int) -> None:
        """For `size` learners."""
        self._size, self._memory = size, GrowingMemory()
        for rank in range(size):
            _check(_SEMAPHORES.sem_init(self._address(rank), 1, 0))

    def __getstate__(self) -> dict[str, Any]:
        return {"_size": self._size, "_memory": self._memory}  # each process has its addresses

    def wait(self, rank: int, while_waiting: Callable[[], None]) -> None:
        """Returns when all learners have come; calls `while_waiting` now and then in a long wait.

        Args:
            rank: the caller's number.
            while_waiting: raises if the team is no longer whole.
        """
        library = _SEMAPHORES
        for other in range(self._size):
            if other != rank:
                _check(library.sem_post(self._address(other)))
        mine, spin_until = self._address(rank), time.perf_counter() + _SPIN_S
        for _ in range(self._size - 1):
            while library.sem_trywait(mine):
                if time.perf_counter() > spin_until:
                    self._sleep(mine, while_waiting)
                    break

    def _sleep(self, semaphore: int, while_waiting: Callable[[], None]) -> None:
        """Takes the semaphore, asleep until it is raised."""
        library = _BLOCKING
        while True:
            seconds, fraction = divmod(time.time() + _SLEEP_S, 1)
            until = _TimeSpec(int(seconds), int(fraction * 1e9))
            if not library.sem_timedwait(semaphore, ctypes.byref(until)):
                return
            while_waiting()  # a signal ends the sleep too, and Python handles it here

    def _address(self, rank: int) -> int:
        return self.address + rank * self.distance

    @cached_property
    def address(self) -> int:
        """The address of the first semaphore in this process."""
        return int(self._memory.bytes(self._size * self.distance).ctypes.data)


class _TimeSpec(ctypes.Structure):
    """C's struct timespec."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _declared(library: Any) -> Any:
    address = ctypes.c_void_p
    library.sem_init.argtypes = (address, ctypes.c_int, ctypes.c_uint)
    for name in ("sem_post", "sem_trywait"):
        getattr(library, name).argtypes = (address,)
    library.sem_timedwait.argtypes = (address, address)
    return library


_SEMAPHORES = _declared(ctypes.PyDLL(None, use_errno=True))
_BLOCKING = _declared(ctypes.CDLL(None, use_errno=True))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
