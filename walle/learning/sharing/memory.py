"""Shared memory that grows, and trees of arrays that are passed in it."""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from walle.learning.gradient_steps import leaves, map_leaves

_LINE = 64  # bytes of a line of the processor's cache


class GrowingMemory:
    """Shared memory that grows on demand; picklable to a child process.

    It belongs to no file system, so the kernel frees it with the last process that maps it.
    """

    def __init__(self) -> None:
        """Begins empty."""
        self._descriptor = os.memfd_create("walle-learners", os.MFD_CLOEXEC)
        self._memory: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_descriptor": DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._memory, self._descriptor = None, state["_descriptor"].detach()

    def bytes(self, length: int) -> npt.NDArray[np.uint8]:
        """The first `length` bytes.

        Raises:
            OSError: there is no memory.
        """
        if self._memory is None or len(self._memory) < length:
            os.posix_fallocate(self._descriptor, 0, max(1, length))  # never shrinks, in any order
            self._memory = mmap.mmap(self._descriptor, 0)
        return np.frombuffer(self._memory, np.uint8, length)

    def __del__(self) -> None:
        """Closes the descriptor; the memory lives as long as an array of it."""
        os.close(self._descriptor)


@dataclass(frozen=True)
class Place:
    """Where an array lies in shared memory, and whether it becomes a tensor."""

    begin: int
    shape: tuple[int, ...]
    dtype: str
    tensor: bool


def put(memory: GrowingMemory, tree: Any) -> Any:
    """Copies the tensors and arrays of nested named tuples into `memory`.

    Returns:
        the same named tuples with a `Place` for each of them; other leaves stay as they are.
    """
    end = 0

    def placed(leaf: Any) -> Any:
        nonlocal end
        if not isinstance(leaf, Tensor | np.ndarray):
            return leaf
        array = _array(leaf)
        begin, end = end, end + -(-array.nbytes // _LINE) * _LINE
        return Place(begin, array.shape, array.dtype.str, isinstance(leaf, Tensor))

    places = map_leaves(placed, tree)
    memory.bytes(end)  # it grows at most once
    for place, leaf in zip(leaves(places), leaves(tree), strict=True):
        if isinstance(place, Place):
            np.copyto(_view(memory, place), _array(leaf))
    return places


def get(memory: GrowingMemory, places: Any, device: str) -> Any:
    """What `put` has put there, copied, the tensors to `device`."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Place):
            return leaf
        array = _view(memory, leaf)
        if not leaf.tensor:
            return array.copy()
        return torch.from_numpy(array).clone().to(device)  # aligned like the agent's

    return map_leaves(copied, places)


def _array(leaf: Tensor | npt.NDArray[Any]) -> npt.NDArray[Any]:
    return leaf.detach().cpu().numpy() if isinstance(leaf, Tensor) else leaf


def _view(memory: GrowingMemory, place: Place) -> npt.NDArray[Any]:
    dtype = np.dtype(place.dtype)
    end = place.begin + math.prod(place.shape) * dtype.itemsize
    return memory.bytes(end)[place.begin :].view(dtype).reshape(place.shape)
