"""Several learners: processes that take each minibatch together and average their gradients.

The agent leads. Before every epoch it tells the others, over a pipe, what comes, and broadcasts
parameters, Adam's state and data. Then all take the same steps, each on its part of a minibatch,
and one all-reduce a step makes their gradients the whole minibatch's.
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

from walle.errors import WorkerError
from walle.learning.gradient_steps import Batch, Team, leaves, map_leaves
from walle.learning.learner_process import (
    Announcement,
    Column,
    LearnerTask,
    join_group,
    run_learner,
)
from walle.learning.optimizer import Learnable, Optimizer
from walle.processes.workers import forkserver_context, how_it_ended

_GRACE_S, _POLL_S = 2.0, 0.01


class Leader(Team):
    """The team as the agent sees it; a dead learner raises WorkerError, with its name."""

    rank = 0

    def __init__(self, learners: Learners) -> None:
        """Leads `learners`."""
        self.size = len(learners) + 1
        self._learners = learners

    def sum(self, x: Tensor) -> None:
        """Replaces `x` by its sum over the learners."""
        with self._learners.explained():
            dist.all_reduce(x)

    def meet(self) -> None:
        """Waits until every learner has come here; Python stays awake, and hears signals."""
        with self._learners.explained():
            meeting = dist.barrier(async_op=True)
            while not meeting.is_completed():
                time.sleep(_POLL_S)
            meeting.wait()

    def announce(
        self, optimizer: int, minibatch_size: int, data: Batch, state: Sequence[Tensor]
    ) -> None:
        """Gives the others all they need for an epoch."""
        columns = map_leaves(lambda x: Column(tuple(x.shape), x.dtype), data)
        with self._learners.explained():
            self._learners.send(Announcement(optimizer, minibatch_size, len(state[0]), columns))
            for x in (*state, *leaves(data)):
                dist.broadcast(x.contiguous(), 0)


class Learners:
    """The learner processes besides the agent."""

    def __init__(self, tasks: Sequence[LearnerTask]) -> None:
        """Starts them; they import and build meanwhile."""
        self._tasks = tasks
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        context = forkserver_context()
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        try:
            for task in tasks:
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=run_learner,
                    args=(task, theirs, self._store.port),
                    name=task.name,
                    daemon=True,
                )
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._tasks)

    def join(self, optimizers: Sequence[Optimizer], device: str) -> None:
        """Waits until all are there, and has the optimizers learn with them.

        Raises:
            WorkerError: one of them ended.
        """
        for task, pipe, process in zip(self._tasks, self._pipes, self._processes, strict=True):
            multiprocessing.connection.wait([pipe, process.sentinel])
            told = _last_words(pipe)
            if told:
                raise WorkerError(f"{task.name} failed:\n{told}")
            if told is None:
                self.report()
        with self.explained():
            join_group(self._store, 0, len(self) + 1, device)
        for index, optimizer in enumerate(optimizers):
            optimizer.join_team(Leader(self), index)

    def send(self, message: Announcement) -> None:
        """Tells all of them."""
        for pipe in self._pipes:
            pipe.send(message)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns a broken connection in the body into the story of the learner that died."""
        try:
            yield
        except (OSError, RuntimeError):
            self.report()
            raise

    @property
    def sentinels(self) -> list[int]:
        """One a process, ready when it has ended."""
        return [process.sentinel for process in self._processes]

    def report(self) -> None:
        """Raises WorkerError for the first learner that has ended."""
        ended = multiprocessing.connection.wait(self.sentinels, _GRACE_S)
        for task, pipe, process in zip(self._tasks, self._pipes, self._processes, strict=True):
            if process.sentinel not in ended:
                continue
            told = _last_words(pipe)
            raise WorkerError(f"{task.name} failed:\n{told}" if told else how_it_ended(process))

    def close(self) -> None:
        """Asks them to end, and ends those that do not within two seconds."""
        for pipe in self._pipes:
            pipe.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        deadline = time.monotonic() + _GRACE_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        self._processes = []


def _last_words(pipe: Connection) -> str | None:
    """The last a learner sent: `READY`, or the traceback before it ended; None if nothing."""
    told = None
    with suppress(EOFError, OSError):  # a closed pipe has no more to say; how it ended, others tell
        while pipe.poll():
            told = pipe.recv()
    return told


def make_learner_tasks(
    n: int, make: Callable[[Any], Learnable], problem: Any, threads: int
) -> list[LearnerTask]:
    """The tasks of the learners besides the agent; on GPUs each learner has its own.

    Args:
        n: learners, the agent included.
        make: makes the algorithm for a problem; picklable.
        problem: the run's, a named tuple with the agent's `device`.
        threads: of torch, in each.
    """
    on_gpu = torch.device(problem.device).type == "cuda"
    devices = {rank: f"cuda:{rank}" if on_gpu else problem.device for rank in range(1, n)}
    return [
        LearnerTask(rank, n, partial(make, problem._replace(device=own)), own, threads)
        for rank, own in devices.items()
    ]
