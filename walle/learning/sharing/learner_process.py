"""The body of a learner process, and the messages from the agent."""

from __future__ import annotations

import gc
import io
import sys
import traceback
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from walle.errors import CompileError, WorkerError
from walle.learning.optimizer import Learnable, draw_ahead
from walle.learning.sharing.memory import get
from walle.learning.sharing.team import SharedMemory, SharedTeam
from walle.system.workers import become_worker

READY = ""


class Announcement(NamedTuple):
    """The agent's message before it learns.

    Attributes:
        state: the algorithm's state as `packed` packs it; None if the learners have it.
        checksum: of the parameters.
        env_steps: environment steps learned from.
        places: where the data is, see `memory.put`.
    """

    state: bytes | None
    checksum: int
    env_steps: int
    places: Any


@dataclass(frozen=True)
class LearnerTask:
    """The description from which a learner process starts. Picklable.

    Attributes:
        rank: the learner's number; the agent is number 0.
        make: makes the learner's copy of the algorithm; picklable.
        device: the device on which this learner computes.
        threads: number of torch's threads.
    """

    rank: int
    make: Callable[[], Learnable]
    device: str
    threads: int

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"learner-{self.rank}"


def packed(state: dict[str, Any]) -> bytes:
    """An algorithm's state as bytes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def checksum(vector: Tensor) -> int:
    """A checksum of the bits of parameters [P]."""
    return zlib.crc32(vector.detach().cpu().numpy().data)


def run_learner(task: LearnerTask, pipe: Connection, memory: SharedMemory) -> None:
    """The body of a learner process."""
    become_worker(task.threads)
    try:
        with suppress(EOFError):  # the agent needs no more learners
            _learn(task, pipe, memory)
        gc.collect()  # removes the temporary files of compiled programs, which an exit may leave
    except BaseException as error:  # noqa: BLE001 - the agent reports every error
        whole = isinstance(error, CompileError | WorkerError)  # its message says everything
        with suppress(OSError):  # the agent may have ended
            pipe.send(str(error) if whole else traceback.format_exc())
        sys.exit(1)


def _learn(task: LearnerTask, pipe: Connection, memory: SharedMemory) -> None:
    algorithm = task.make()
    pipe.send(READY)
    early: deque[Announcement] = deque()

    def while_waiting() -> None:
        if pipe.poll():  # the agent has left, or it was quicker and has begun the next round
            early.append(pipe.recv())

    algorithm.join(SharedTeam(task.rank, memory, task.device, while_waiting))
    algorithm.warm_up()
    while True:
        announced = early.popleft() if early else pipe.recv()
        _follow(algorithm, announced, get(memory.round, announced.places, task.device))


def _follow(algorithm: Learnable, announced: Announcement, data: tuple[Any, ...]) -> None:
    """Learns what the agent learns.

    Raises:
        WorkerError: this learner's parameters differ from the agent's.
    """
    if announced.state is not None:
        from_agent = io.BytesIO(announced.state)  # so it may hold more than tensors
        algorithm.load_state_dict(torch.load(from_agent, weights_only=False))
    if checksum(algorithm.vector) != announced.checksum:
        raise WorkerError(
            f"after {announced.env_steps:,} steps its parameters are not the agent's; are their"
            " processors of one kind? use learner.n=1"
        )
    algorithm.env_steps = announced.env_steps
    algorithm.learn(*data)
    draw_ahead(algorithm)
