"""Several learners: processes that take each minibatch together and average their gradients.

The agent leads. Before every epoch it tells the others, over a pipe, what comes, and broadcasts
parameters, optimiser and data; then all take the same steps, each on its share of every minibatch,
and one all-reduce a step makes their gradients the whole minibatch's.
"""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from walle.errors import WorkerError
from walle.learning.adam import AdamState
from walle.learning.gradient_steps import Batch, Team, leaves, map_leaves
from walle.learning.optimizer import Learnable, Optimizer, warm_up
from walle.processes.workers import become_worker, forkserver_context, how_it_ended

_GRACE_S, _POLL_S = 2.0, 0.01
_READY = ""
_COLLECTIVE_LIMIT = timedelta(minutes=10)  # a learner may still be compiling


@dataclass(frozen=True)
class Column:
    """Shape and type of a tensor that the leader broadcasts."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Announcement(NamedTuple):
    """What the leader says before an epoch.

    Attributes:
        optimizer: the number of the one that takes the steps.
        minibatch_size: rows a step, of all learners together.
        parameters: P.
        columns: the data's named tuples, with a `Column` for every tensor.
    """

    optimizer: int
    minibatch_size: int
    parameters: int
    columns: Any


class Follower(Team):
    """The team as a learner sees it that does not lead."""

    def __init__(self, rank: int, size: int) -> None:
        """`rank` of `size`."""
        self.rank, self.size = rank, size

    def sum(self, x: Tensor) -> None:
        """Replaces `x` by its sum over the learners."""
        dist.all_reduce(x)

    def meet(self) -> None:
        """Waits until every learner has come here."""
        dist.barrier()

    def announce(
        self, optimizer: int, minibatch_size: int, data: Batch, state: Sequence[Tensor]
    ) -> None:
        """Only the leader announces."""


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


@dataclass(frozen=True)
class LearnerTask:
    """What a learner process needs to begin. Picklable.

    Attributes:
        rank: its number; the agent is 0.
        size: how many learners there are, the agent included.
        make: makes the learner's own copy of the algorithm; picklable.
        device: where this learner computes.
        threads: of torch.
    """

    rank: int
    size: int
    make: Callable[[], Learnable]
    device: str
    threads: int

    @property
    def name(self) -> str:
        """As it appears in messages."""
        return f"learner-{self.rank}"


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
            _join_group(self._store, 0, len(self) + 1, device)
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
    """The last a learner sent: `_READY`, or the traceback before it ended; None if nothing."""
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


def _join_group(store: TCPStore, rank: int, size: int, device: str) -> None:
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    if "lo" in [name for _, name in socket.if_nameindex()]:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's name may not resolve
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=_COLLECTIVE_LIMIT
    )


def run_learner(task: LearnerTask, pipe: Connection, port: int) -> None:
    """The body of a learner process."""
    become_worker(task.threads)
    try:
        _learn(task, pipe, port)
        gc.collect()  # compiled programs remove what they unpacked; a process may end without that
    except BaseException:  # noqa: BLE001 - whatever it was, the agent hears of it
        _tell(pipe, traceback.format_exc())
        sys.exit(1)


def _learn(task: LearnerTask, pipe: Connection, port: int) -> None:
    algorithm = task.make()
    pipe.send(_READY)
    store = TCPStore("127.0.0.1", port, is_master=False)
    _join_group(store, task.rank, task.size, task.device)
    team = Follower(task.rank, task.size)
    for index, optimizer in enumerate(algorithm.optimizers()):
        optimizer.join_team(team, index)
    warm_up(algorithm)
    _follow(algorithm, pipe, task.device)


def _tell(pipe: Connection, report: str) -> None:
    try:
        pipe.send(report)
    except OSError:
        sys.exit(1)  # the agent is gone: there is nobody to hear it


def _follow(algorithm: Learnable, pipe: Connection, device: str) -> None:
    """Takes part in every epoch that the leader announces, until it closes the pipe."""
    optimizers = algorithm.optimizers()
    while True:
        try:
            announced: Announcement = pipe.recv()
        except EOFError:
            return
        optimizer = optimizers[announced.optimizer]
        flat = (announced.parameters,)
        shapes: list[tuple[int, ...]] = [flat, flat, flat, (), ()]
        vector, *adam, rate = [_received(shape, torch.float32, device) for shape in shapes]
        data = map_leaves(lambda c: _received(c.shape, c.dtype, device), announced.columns)
        optimizer.run_epoch(vector, AdamState(*adam), rate, data, announced.minibatch_size)


def _received(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    x = torch.empty(shape, dtype=dtype, device=device)
    dist.broadcast(x, 0)
    return x
