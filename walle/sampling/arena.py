"""Anonymous shared memory: the kernel frees it when the last process that maps it ends."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt

Layout = Sequence[tuple[tuple[int, ...], str]]
_ALIGNMENT = 64


class Arena:
    """Aligned arrays in one piece of shared memory; picklable to a child process.

    The memory belongs to no file system, so no mount such as /dev/shm bounds its size, and no
    process that is killed leaves a file behind.
    """

    def __init__(self, layout: Layout) -> None:
        """`layout` has the shape and the dtype of every array; all numbers are 0."""
        self._layout = list(layout)
        self._descriptor = os.memfd_create("walle", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, max(1, sum(_padded(*each) for each in self._layout)))
        self._memory: mmap.mmap | None = None

    @property
    def descriptor(self) -> int:
        """The memory's file descriptor in this process."""
        return self._descriptor

    def __getstate__(self) -> dict[str, Any]:
        return {"_layout": self._layout, "_descriptor": DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._layout, self._memory = state["_layout"], None
        self._descriptor = state["_descriptor"].detach()

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Views of the shared memory, in the order of the layout."""
        if self._memory is None:
            self._memory = mmap.mmap(self._descriptor, 0)
        memory = np.frombuffer(self._memory, np.uint8)
        start, views = 0, []
        for shape, dtype in self._layout:
            length = int(np.prod(shape)) * np.dtype(dtype).itemsize
            views.append(memory[start : start + length].view(dtype).reshape(shape))
            start += _padded(shape, dtype)
        return views

    def __del__(self) -> None:
        """Closes the descriptor; the memory lives as long as an array of it."""
        os.close(self._descriptor)


def _padded(shape: tuple[int, ...], dtype: str) -> int:
    length = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return -(-length // _ALIGNMENT) * _ALIGNMENT
