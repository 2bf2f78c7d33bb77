"""Anonymous shared memory between a process and its children."""

from __future__ import annotations

import mmap
import os
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt


class SharedMemory:
    """Shared memory that grows on demand; picklable to a child process.

    The memory belongs to no file system, so no mount such as /dev/shm bounds its size, and a killed
    process leaves no file behind: the kernel frees it when the last process that maps it ends.
    """

    def __init__(self, name: str = "walle", *, reserve: bool = False) -> None:
        """Starts empty; `name` is shown in /proc/PID/maps.

        `reserve` allocates the memory at once instead of at the first write: a lack of memory is
        then an error and does not kill the process.
        """
        self._reserve = reserve
        self._descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        self._memory: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_reserve": self._reserve, "_descriptor": DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reserve, self._memory = state["_reserve"], None
        self._descriptor = state["_descriptor"].detach()

    def bytes(self, length: int) -> npt.NDArray[np.uint8]:
        """The first `length` bytes, 0 before they are written; OSError if memory runs out."""
        if self._memory is None or len(self._memory) < length:
            if self._reserve:
                os.posix_fallocate(self._descriptor, 0, max(1, length))
            elif os.fstat(self._descriptor).st_size < max(1, length):
                os.ftruncate(self._descriptor, max(1, length))
            self._memory = mmap.mmap(self._descriptor, 0)  # arrays keep the earlier one
        return np.frombuffer(self._memory, np.uint8, length)

    def __del__(self) -> None:
        os.close(self._descriptor)  # the memory lives as long as an array of it
