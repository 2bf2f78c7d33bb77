"""Several learner processes, which split each minibatch and average their gradients.

The agent is the leader. Before every epoch it announces the epoch to the other learners over pipes,
and broadcasts parameters, Adam's state and data. Then all learners take the same steps, each on its
part of a minibatch; one all-reduce a step sums the gradients of the parts.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from walle.errors import WorkerDeathError, WorkerError
from walle.learning.gradient_steps import Batch, Team, leaves, map_leaves
from walle.learning.learner_process import (
    Announcement,
    Column,
    LearnerTask,
    join_group,
    run_learner,
)
from walle.learning.optimizer import Learnable, Optimizer
from walle.processes.worker import Worker, end_all

_GRACE_S, _POLL_S = 2.0, 0.01


class Leader(Team):
    """The team of the agent; its methods raise WorkerError when a learner has died."""

    rank = 0

    def __init__(self, learners: Learners) -> None:
        """Leads the processes `learners`."""
        self.size = len(learners) + 1
        self._learners = learners

    def sum(self, x: Tensor) -> None:
        """See `Team`."""
        with self._learners.reporting_deaths():
            dist.all_reduce(x)

    def meet(self) -> None:
        """See `Team`; polls, so that Python can handle signals."""
        with self._learners.reporting_deaths():
            meeting = dist.barrier(async_op=True)
            while not meeting.is_completed():
                time.sleep(_POLL_S)
            meeting.wait()

    def announce(
        self, optimizer: int, minibatch_size: int, data: Batch, state: Sequence[Tensor]
    ) -> None:
        """See `Team`."""
        columns = map_leaves(lambda x: Column(tuple(x.shape), x.dtype), data)
        with self._learners.reporting_deaths():
            self._learners.send(Announcement(optimizer, minibatch_size, len(state[0]), columns))
            for x in (*state, *leaves(data)):
                dist.broadcast(x.contiguous(), 0)


class Learners:
    """All learner processes except the agent."""

    def __init__(self, tasks: Sequence[LearnerTask]) -> None:
        """Starts the processes; they import and build while the caller continues."""
        self._tasks = tasks
        self._pipes: list[Connection] = []
        self._workers: list[Worker] = []
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        try:
            for task in tasks:
                ours, theirs = multiprocessing.Pipe()
                self._pipes.append(ours)
                args = (task, theirs, self._store.port)
                self._workers.append(Worker(task.name, run_learner, args))
                theirs.close()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._tasks)

    def join(self, optimizers: Sequence[Optimizer], device: str) -> None:
        """Waits until all learners are ready, and adds `optimizers` to the team.

        Raises:
            WorkerError: a learner ended.
        """
        for task, pipe, worker in zip(self._tasks, self._pipes, self._workers, strict=True):
            multiprocessing.connection.wait([pipe, worker.sentinel])
            message = _last_message(pipe)
            if message:
                raise WorkerError(f"{task.name} failed:\n{message}")
            if message is None:
                self.report()
        with self.reporting_deaths():
            join_group(self._store, 0, len(self) + 1, device)
        for index, optimizer in enumerate(optimizers):
            optimizer.join_team(Leader(self), index)

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

    def report(self) -> None:
        """Raises WorkerError for a learner that ended, WorkerDeathError without a traceback."""
        ended = multiprocessing.connection.wait(self.sentinels, _GRACE_S)
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
        if dist.is_initialized():
            dist.destroy_process_group()
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
        LearnerTask(rank, n, partial(make, problem._replace(device=own)), own, threads)
        for rank, own in devices.items()
    ]
