"""The learner processes other than the agent; all learn the same as it does.

Every learner has a copy of the algorithm. Before it learns, the agent puts the round's data into
shared memory and announces it over pipes. Then all learners run the same code on it, and divide the
work whose results a `Team` gathers.
"""

from __future__ import annotations

import io
import multiprocessing
import sys
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from walle.errors import CompileError, WorkerDeathError, WorkerError
from walle.learning.sharing.shared_team import SharedTeam, TeamMemory, get, put
from walle.learning.sharing.team import Team
from walle.system.workers import Worker, become_worker, end_all

_GRACE_S = 2.0
_READY = ""


class Learnable(Protocol):
    """An algorithm whose steps several learners can divide."""

    vector: Tensor  # parameters [P], by which learners check that they agree
    env_steps: int  # environment steps learned from

    def join(self, team: Team) -> None:
        """Takes all later steps with `team`."""
        ...

    def warm_up(self) -> str:
        """Compiles if the settings ask for it; all learners must call it: they compare outcomes."""
        ...

    def learn(self, *data: Any) -> Any:
        """Learns from the data that the agent announced; only the agent uses the result."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        ...


class Announcement(NamedTuple):
    """The agent's message before it learns."""

    state: bytes | None  # the algorithm's state as bytes; None if the learners have it
    checksum: int  # of the parameters
    env_steps: int  # environment steps learned from
    places: Any  # where the data is, see `shared_team.put`


@dataclass(frozen=True)
class LearnerTask:
    """The description from which a learner process starts. Picklable."""

    rank: int  # the learner's number; the agent is number 0
    make: Callable[[], Learnable]  # makes the learner's copy of the algorithm; picklable
    device: str  # the device on which this learner computes
    threads: int  # number of torch's threads

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"learner-{self.rank}"


def make_learner_tasks(
    n: int, make: Callable[[Any], Learnable], problem: Any, threads: int
) -> list[LearnerTask]:
    """The tasks of all learners except the agent; on GPUs, each learner has a separate GPU.

    Args:
        n: number of learners, including the agent.
        make: makes the algorithm for a problem; picklable.
        problem: the run's `Problem`, with the agent's `device`.
        threads: number of torch's threads in each learner.
    """
    on_gpu = torch.device(problem.device).type == "cuda"
    devices = {rank: f"cuda:{rank}" if on_gpu else problem.device for rank in range(1, n)}
    return [
        LearnerTask(rank, partial(make, problem._replace(device=device)), device, threads)
        for rank, device in devices.items()
    ]


def checksum(vector: Tensor) -> int:
    """A checksum of the bits of parameters [P]."""
    return zlib.crc32(vector.detach().cpu().numpy().data)


class Learners:
    """All learner processes except the agent."""

    def __init__(self, tasks: Sequence[LearnerTask]) -> None:
        """Starts the processes; they import and build while the caller continues."""
        self._tasks = tasks
        self._pipes: list[Connection] = []
        self._workers: list[Worker] = []
        self.memory = TeamMemory(len(tasks) + 1)
        try:
            for task in tasks:
                ours, theirs = multiprocessing.Pipe()
                self._pipes.append(ours)
                args = (task, theirs, self.memory)
                self._workers.append(Worker(task.name, run_learner, args))
                theirs.close()
        except BaseException:
            self.close()
            raise

    def join(self, algorithm: Learnable, device: str) -> None:
        """Waits for all learners, then lets `algorithm` lead them; WorkerError if one ended."""
        for task, pipe, worker in zip(self._tasks, self._pipes, self._workers, strict=True):
            wait([pipe, worker.sentinel])
            message = _last_message(pipe)
            if message:
                raise WorkerError(f"{task.name} failed:\n{message}")
            if message is None:
                self.report()
        algorithm.join(Leader(self, algorithm, device))

    def send(self, message: Announcement) -> None:
        """Sends the message to all learners; raises WorkerError if one has died."""
        try:
            for pipe in self._pipes:
                pipe.send(message)
        except (OSError, RuntimeError):
            self.report()
            raise

    @property
    def sentinels(self) -> list[int]:
        """A handle for each process; it becomes ready when the process ends."""
        return [worker.sentinel for worker in self._workers]

    def check(self) -> None:
        """Raises what `report` raises if a learner has ended."""
        if wait(self.sentinels, 0):
            self.report()

    def report(self) -> None:
        """Raises WorkerError for a learner that ended; WorkerDeathError if it left no traceback."""
        ended = wait(self.sentinels, _GRACE_S)
        for task, pipe, worker in zip(self._tasks, self._pipes, self._workers, strict=True):
            if worker.sentinel not in ended:
                continue
            message = _last_message(pipe)
            if message:
                raise WorkerError(f"{task.name} failed:\n{message}")
            raise WorkerDeathError(worker.how_it_ended())

    def close(self) -> None:
        """Asks the processes to end; kills each that still runs after two seconds."""
        for pipe in self._pipes:
            pipe.close()
        end_all(self._workers, _GRACE_S)
        self._workers = []


def _last_message(pipe: Connection) -> str | None:
    """The learner's last message: `_READY` or a traceback; None without a message."""
    message = None
    with suppress(EOFError, OSError):  # the pipe is closed
        while pipe.poll():
            message = pipe.recv()
    return message


class Leader(SharedTeam):
    """The agent's side of the team; its methods raise WorkerError when a learner has died."""

    def __init__(self, learners: Learners, algorithm: Learnable, device: str) -> None:
        """Leads the processes `learners`."""
        super().__init__(0, learners.memory, device, learners.check)
        self._learners, self._algorithm = learners, algorithm
        self._learners_have_state = False

    def announce(self, data: tuple[Any, ...], env_steps: int) -> None:
        """See `Team`; sends the algorithm's state if the others do not have it.

        The previous round's data may be overwritten: every learner copies a round's data before
        that round's first `gather`, and the previous round's first `gather` is over.
        """
        state = None
        if not self._learners_have_state:
            buffer = io.BytesIO()
            torch.save(self._algorithm.state_dict(), buffer)
            state = buffer.getvalue()
        places = put(self._learners.memory.round, data)
        vector = checksum(self._algorithm.vector)
        self._learners.send(Announcement(state, vector, env_steps, places))
        self._learners_have_state = True

    def changed(self) -> None:
        """See `Team`."""
        self._learners_have_state = False


def run_learner(task: LearnerTask, pipe: Connection, memory: TeamMemory) -> None:
    """The body of a learner process."""
    become_worker(task.threads)
    try:
        with suppress(EOFError):  # the agent needs no more learners
            _learn(task, pipe, memory)
    except BaseException as error:  # noqa: BLE001 - the agent reports every error
        complete = isinstance(error, CompileError | WorkerError)  # its message says everything
        with suppress(OSError):  # the agent may have ended
            pipe.send(str(error) if complete else traceback.format_exc())
        sys.exit(1)


def _learn(task: LearnerTask, pipe: Connection, memory: TeamMemory) -> None:
    algorithm = task.make()
    pipe.send(_READY)
    early: deque[Announcement] = deque()

    def while_waiting() -> None:
        if pipe.poll():  # the agent has left, or has already started the next round
            early.append(pipe.recv())

    algorithm.join(SharedTeam(task.rank, memory, task.device, while_waiting))
    algorithm.warm_up()
    while True:
        announced = early.popleft() if early else pipe.recv()
        if announced.state is not None:
            state = io.BytesIO(announced.state)  # from the agent, so it may hold more than tensors
            algorithm.load_state_dict(torch.load(state, weights_only=False))
        if checksum(algorithm.vector) != announced.checksum:
            raise WorkerError(
                f"after {announced.env_steps:,} steps its parameters are not the agent's; are their"
                " processors of one kind? use learner.n=1"
            )
        algorithm.env_steps = announced.env_steps
        algorithm.learn(*get(memory.round, announced.places, task.device))
