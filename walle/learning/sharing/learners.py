"""The learner processes beside the agent, which all learn what the agent learns.

Every learner has a copy of the algorithm. Before it learns, the agent puts the round's data into
shared memory and announces it over pipes. Then all learners run the same code on it, and divide
what a `Team` gathers.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from walle.errors import WorkerDeathError, WorkerError
from walle.learning.optimizer import Learnable
from walle.learning.sharing.learner_process import (
    Announcement,
    LearnerTask,
    checksum,
    packed,
    run_learner,
)
from walle.learning.sharing.memory import put
from walle.learning.sharing.team import SharedMemory, SharedTeam
from walle.system.workers import Worker, end_all

_GRACE_S = 2.0


class Leader(SharedTeam):
    """The agent's side of the team; its methods raise WorkerError when a learner has died."""

    def __init__(self, learners: Learners, algorithm: Learnable, device: str) -> None:
        """Leads the processes `learners`."""
        super().__init__(0, learners.memory, device, learners.check)
        self._learners, self._algorithm = learners, algorithm
        self._synchronous = False

    def announce(self, data: tuple[Any, ...], env_steps: int) -> None:
        """See `Team`; sends the algorithm's state where the others do not have it.

        Nobody reads the data of the round before any more: every learner copied it before its first
        `gather`, and the agent has come through that.
        """
        state = None if self._synchronous else packed(self._algorithm.state_dict())
        places = put(self._learners.memory.round, data)
        with self._learners.reporting_deaths():
            self._learners.send(
                Announcement(state, checksum(self._algorithm.vector), env_steps, places)
            )
        self._synchronous = True

    def changed(self) -> None:
        """See `Team`."""
        self._synchronous = False


class Learners:
    """All learner processes except the agent."""

    def __init__(self, tasks: Sequence[LearnerTask]) -> None:
        """Starts the processes; they import and build while the caller continues."""
        self._tasks = tasks
        self._pipes: list[Connection] = []
        self._workers: list[Worker] = []
        self.memory = SharedMemory(len(tasks) + 1)
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

    def __len__(self) -> int:
        return len(self._tasks)

    def join(self, algorithm: Learnable, device: str) -> None:
        """Waits until all learners are ready, and makes `algorithm` the agent's of the team.

        Raises:
            WorkerError: a learner ended.
        """
        for task, pipe, worker in zip(self._tasks, self._pipes, self._workers, strict=True):
            wait([pipe, worker.sentinel])
            message = _last_message(pipe)
            if message:
                raise WorkerError(f"{task.name} failed:\n{message}")
            if message is None:
                self.report()
        algorithm.join(Leader(self, algorithm, device))

    def send(self, message: Announcement) -> None:
        """Sends the message to all learners."""
        for pipe in self._pipes:
            pipe.send(message)

    @contextmanager
    def reporting_deaths(self) -> Iterator[None]:
        """Raises WorkerError if a learner's death broke a connection in the body."""
        try:
            yield
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
        """Raises WorkerError for a learner that ended, WorkerDeathError without a traceback."""
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
    """The learner's last message: `READY` or a traceback; None without a message."""
    message = None
    with suppress(EOFError, OSError):  # the pipe is closed
        while pipe.poll():
            message = pipe.recv()
    return message


def make_learner_tasks(
    n: int, make: Callable[[Any], Learnable], problem: Any, threads: int
) -> list[LearnerTask]:
    """The tasks of all learners except the agent; each learner has a separate GPU on GPUs.

    Args:
        n: number of learners, including the agent.
        make: makes the algorithm for a problem; picklable.
        problem: the run's `Problem`, with the agent's `device`.
        threads: number of torch's threads in each learner.
    """
    on_gpu = torch.device(problem.device).type == "cuda"
    devices = {rank: f"cuda:{rank}" if on_gpu else problem.device for rank in range(1, n)}
    return [
        LearnerTask(rank, partial(make, problem._replace(device=own)), own, threads)
        for rank, own in devices.items()
    ]
