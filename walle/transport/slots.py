"""Where experience lies: the slots of rollouts in anonymous shared memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from walle.errors import ConfigError
from walle.machine import memory_bytes
from walle.timing import SAMPLER_SECTIONS
from walle.types import LANE_FIELDS, STEP_FIELDS, Rollout

_ALIGNMENT = 64
_SECTIONS = ((len(SAMPLER_SECTIONS),), "float64")


class RolloutShape(NamedTuple):
    """The arrays of one sampler's rollouts: T steps of L lanes.

    `packed` counts the lanes that share one column (L = 1), one after the other; else 0. `state` is
    the width of the policy's memory.
    """

    steps: int
    lanes: int
    obs: tuple[int, ...]
    obs_dtype: str
    action: tuple[int, ...]
    action_dtype: str
    packed: int = 0
    state: int = 0

    @classmethod
    def of(
        cls,
        steps: int,
        lanes: int,
        obs_dim: int,
        action_space: gym.spaces.Box | gym.spaces.Discrete,
        packed: int,
        state: int,
    ) -> RolloutShape:
        """From the spaces of an environment."""
        discrete = isinstance(action_space, gym.spaces.Discrete)
        return cls(
            steps=steps,
            lanes=lanes,
            obs=(obs_dim,),
            obs_dtype="float32",
            action=() if discrete else (action_space.shape or ()),
            action_dtype="int64" if discrete else "float32",
            packed=packed,
            state=state,
        )

    def fields(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of every array of a `Rollout` that travels, in its order."""
        T, L = self.steps, self.lanes
        return {
            "obs": ((T + 1, L, *self.obs), self.obs_dtype),
            "final_obs": ((T, L, *self.obs), self.obs_dtype),
            "action": ((T, L, *self.action), self.action_dtype),
            "reward": ((T, L), "float32"),
            "terminated": ((T, L), "bool"),
            "truncated": ((T, L), "bool"),
            "log_prob": ((T, L), "float32"),
            "lane": ((L,), "int64"),
            "policy_version": ((L,), "int64"),
            "state": ((L, self.state), "float32"),
        }

    @property
    def bytes(self) -> int:
        """The memory of one rollout."""
        return sum(math.prod(s) * np.dtype(dtype).itemsize for s, dtype in self.fields().values())


class Slot(NamedTuple):
    """One place of the experience queue, as views of shared memory.

    Attributes:
        rollout: the experience.
        began_ns: [1] when collecting it began, on the system's monotonic clock.
        sent_ns: [1] when it was handed over.
        sections_s: [S] seconds of the sampler's sections since its previous rollout.
        steps: [1] how many steps of the rollout are filled.
        lane_steps: the steps of each lane, where lanes are packed one after the other into one
            column; empty where they lie side by side.
    """

    rollout: Rollout
    began_ns: npt.NDArray[np.int64]
    sent_ns: npt.NDArray[np.int64]
    sections_s: npt.NDArray[np.float64]
    steps: npt.NDArray[np.int64]
    lane_steps: npt.NDArray[np.int64]

    @classmethod
    def of(cls, arrays: Sequence[npt.NDArray[Any]]) -> Slot:
        """From arrays in the order of `layout`."""
        n = len(STEP_FIELDS + LANE_FIELDS)
        return cls(Rollout(*arrays[:n]), *arrays[n:])

    @classmethod
    def empty(cls, shape: RolloutShape) -> Slot:
        """Zeros, in memory of its own; all steps count as filled."""
        slot = cls.of([np.zeros(size, dtype) for size, dtype in layout(shape)])
        slot.steps[0] = shape.steps
        return slot

    @property
    def filled(self) -> Rollout:
        """The filled part of the rollout."""
        return self.rollout.between(0, int(self.steps[0]))


def layout(shape: RolloutShape) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of every array of a slot, in its order."""
    number = ((1,), "int64")
    header = [number, number, _SECTIONS, number, ((shape.packed,), "int64")]
    return [*shape.fields().values(), *header]


class Arena:
    """Hands out aligned arrays of one anonymous shared block; picklable to a child process."""

    def __init__(self, context: BaseContext, layout: Sequence[tuple[tuple[int, ...], str]]) -> None:
        """`layout` has the shape and the dtype of every array."""
        self._layout = list(layout)
        sizes = [_padded(shape, dtype) for shape, dtype in self._layout]
        self._raw: Any = context.RawArray(ctypes.c_byte, sum(sizes) + _ALIGNMENT)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Views of the block, in the order of the layout."""
        block = np.frombuffer(self._raw, np.uint8)
        start = -block.ctypes.data % _ALIGNMENT
        views = []
        for shape, dtype in self._layout:
            length = int(np.prod(shape)) * np.dtype(dtype).itemsize
            views.append(block[start : start + length].view(dtype).reshape(shape))
            start += _padded(shape, dtype)
        return views


def _padded(shape: tuple[int, ...], dtype: str) -> int:
    length = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return -(-length // _ALIGNMENT) * _ALIGNMENT


class Ring:
    """The slots of one sampler, in shared memory."""

    def __init__(self, context: BaseContext, shape: RolloutShape, slots: int) -> None:
        """`slots` rollouts of that shape."""
        self.slots = slots
        self._per_slot = layout(shape)
        self._arena = Arena(context, self._per_slot * slots)

    def views(self) -> list[Slot]:
        """All of them; a process calls it once."""
        arrays = self._arena.arrays()
        width = len(self._per_slot)
        return [Slot.of(arrays[i * width : (i + 1) * width]) for i in range(self.slots)]


def check_memory(shapes: Sequence[RolloutShape], slots: int, batch_size: int) -> None:
    """Refuses rounds that this machine cannot hold; beyond its memory a process is just killed.

    Args:
        shapes: of each sampler's rollouts.
        slots: rollouts in flight per sampler.
        batch_size: environment steps a round, for the message.

    Raises:
        ConfigError: the slots of all samplers are larger than the machine's memory.
    """
    needed, there = slots * sum(shape.bytes for shape in shapes), memory_bytes()
    if needed > there:
        raise ConfigError(
            f"batch_size={batch_size} with sampler.slots={slots} needs {needed / 1e9:,.0f} GB of "
            f"shared memory, and this machine has {there / 1e9:,.0f}; use a smaller batch_size, or "
            "a smaller sampler.max_lag"
        )
