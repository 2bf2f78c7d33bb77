"""Arrays in anonymous shared memory, and the slots there that hold rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from walle.errors import ConfigError
from walle.system.machine import memory_bytes
from walle.system.shared_memory import SharedMemory
from walle.timing import SAMPLER_SECTIONS
from walle.types import LANE_FIELDS, STEP_FIELDS, Rollout

_ALIGNMENT = 64
_SECTIONS = ((len(SAMPLER_SECTIONS),), "float64")
Layout = Sequence[tuple[tuple[int, ...], str]]  # the shape and the dtype of every array


class Arena:
    """Aligned arrays in one piece of shared memory; picklable to a child process."""

    def __init__(self, layout: Layout) -> None:
        self.memory = SharedMemory()
        self.layout = layout  # of the arrays now; the content after a change is undefined

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Views of the shared memory, in the order of the layout."""
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self.layout]
        padded = (-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
        *starts, end = accumulate(padded, initial=0)
        memory = self.memory.bytes(end)
        return [
            memory[start : start + size].view(dtype).reshape(shape)
            for (shape, dtype), start, size in zip(self.layout, starts, sizes, strict=True)
        ]


class RolloutShape(NamedTuple):
    """The arrays of one sampler's rollouts: T steps of L lanes."""

    steps: int
    lanes: int
    obs: tuple[int, ...]
    obs_dtype: str
    action: tuple[int, ...]
    action_dtype: str
    # lanes that are packed into one column (L = 1), one after the other; 0 if each has a column
    packed_lanes: int = 0
    state: int = 0  # width of the policy's memory
    lane_state: int = 0  # the most bytes of a lane's state; 0 if lanes have none or need none
    info: int = 0  # how many numbers of the info a step has, see `Rollout.info`

    def fields(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of every array of a `Rollout` in a slot, in the order of its fields."""
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
            "begins": ((L,), "bool"),
            "info": ((T, L, self.info), "float64"),
        }

    @property
    def bytes(self) -> int:
        """The size of one rollout in bytes."""
        return sum(math.prod(s) * np.dtype(dtype).itemsize for s, dtype in self.fields().values())


class Slot(NamedTuple):
    """A slot of the experience queue, as views of shared memory."""

    rollout: Rollout
    # [1] time at which collection began, on the system's monotonic clock
    began_ns: npt.NDArray[np.int64]
    sent_ns: npt.NDArray[np.int64]  # [1] time at which the slot was sent
    # [S] seconds of the sampler's sections since its previous rollout
    sections_s: npt.NDArray[np.float64]
    steps: npt.NDArray[np.int64]  # [1] number of filled steps
    lane_steps: npt.NDArray[np.int64]  # see `Filled`
    round: npt.NDArray[np.int64]  # [1] number of the round
    faults: npt.NDArray[np.int64]  # [1] faults of the environment
    # [1] bytes of each lane's state that are filled; 0 if the states are left out
    state_bytes: npt.NDArray[np.int64]
    # [L, W] the lanes' states after the rollout, see `Lanes.state`
    lane_states: npt.NDArray[np.uint8]
    memory: npt.NDArray[np.float32]  # [L, S] the policy's memory after the rollout

    @classmethod
    def of(cls, arrays: Sequence[npt.NDArray[Any]]) -> Slot:
        """A slot of arrays in the order of `layout`."""
        n = len(STEP_FIELDS + LANE_FIELDS)
        return cls(Rollout(*arrays[:n]), *arrays[n:])

    @classmethod
    def empty(cls, shape: RolloutShape) -> Slot:
        """A slot of zeros in private memory; all steps count as filled."""
        slot = cls.of([np.zeros(size, dtype) for size, dtype in layout(shape)])
        slot.steps[0] = shape.steps
        return slot

    @property
    def filled(self) -> Rollout:
        """The filled part of the rollout."""
        return self.rollout.between(0, int(self.steps[0]))


def layout(shape: RolloutShape) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of every array of a slot, in the order of its fields."""
    number = ((1,), "int64")
    header = [number, number, _SECTIONS, number, ((shape.packed_lanes,), "int64"), *3 * [number]]
    states = [((shape.lanes, shape.lane_state), "uint8"), ((shape.lanes, shape.state), "float32")]
    return [*shape.fields().values(), *header, *states]


class Ring:
    """The slots of one sampler, in shared memory."""

    def __init__(self, shape: RolloutShape, slots: int) -> None:
        self.slots, self._shape = slots, shape
        self._arena = Arena(layout(shape) * slots)

    def views(self, lanes: int | None = None) -> list[Slot]:
        """All slots; if `lanes` is given, for rollouts of that many lanes from now on."""
        if lanes is not None:
            self._shape = self._shape._replace(lanes=lanes)
            self._arena.layout = layout(self._shape) * self.slots
        arrays = self._arena.arrays()
        width = len(arrays) // self.slots
        return [Slot.of(arrays[i * width : (i + 1) * width]) for i in range(self.slots)]


def check_memory(shapes: Sequence[RolloutShape], slots: int, batch_size: int) -> None:
    """Raises ConfigError if rounds need more memory than there is: the kernel would kill the run.

    The slots are in anonymous shared memory, bounded not by the size of /dev/shm but by the
    machine's memory and the limits of control groups (containers, Slurm).
    """
    needed, there = slots * sum(shape.bytes for shape in shapes), memory_bytes()
    if needed > there:
        raise ConfigError(
            f"batch_size={batch_size} with sampler.slots={slots} needs {needed / 1e9:,.0f} GB of "
            f"shared memory, and this machine or its container has {there / 1e9:,.0f}; use a "
            "smaller batch_size" + ", or a smaller sampler.max_lag" * (slots > 1)
        )
