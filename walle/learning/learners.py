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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from walle import algos
from walle.algos.base import Algorithm, NetSettings, Problem, warm_up
from walle.errors import WorkerError
from walle.learning.gradient_steps import Team
from walle.learning.sgd import AdamState, Batch, Sgd
from walle.processes.workers import become_worker, forkserver_context, how_it_ended

_GRACE_S, _POLL_S = 2.0, 0.01
_READY = ""
_COLLECTIVE_LIMIT = timedelta(minutes=10)  # a learner may still be compiling


class Epoch(NamedTuple):
    """What the leader announces: which optimizer, and the data's names, shapes and types."""

    optimizer: int
    minibatch_size: int
    parameters: int
    columns: list[tuple[str, tuple[int, ...], torch.dtype]]


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
        columns = [(name, tuple(x.shape), x.dtype) for name, x in data.items()]
        with self._learners.explained():
            self._learners.send(Epoch(optimizer, minibatch_size, len(state[0]), columns))
            for x in (*state, *data.values()):
                dist.broadcast(x.contiguous(), 0)


@dataclass(frozen=True)
class LearnerTask:
    """What a learner process needs to begin. Picklable.

    Attributes:
        rank: its number; the agent is 0.
        size: how many learners there are, the agent included.
        algorithm: the algorithm's name.
        settings: the algorithm's.
        net: the networks'.
        problem: the run's, on this learner's device.
        threads: of torch.
    """

    rank: int
    size: int
    algorithm: str
    settings: Any
    net: NetSettings
    problem: Problem
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

    def join(self, optimizers: Sequence[Sgd], device: str) -> None:
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
            optimizer.share(Leader(self), index)

    def send(self, message: Epoch) -> None:
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
    n: int, algorithm: str, settings: Any, net: NetSettings, problem: Problem, threads: int
) -> list[LearnerTask]:
    """The learners besides the agent; on GPUs, each on its own."""
    on_gpu = torch.device(problem.device).type == "cuda"
    return [
        LearnerTask(
            rank=rank,
            size=n,
            algorithm=algorithm,
            settings=settings,
            net=net,
            problem=problem._replace(device=f"cuda:{rank}") if on_gpu else problem,
            threads=threads,
        )
        for rank in range(1, n)
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
    algorithm: Algorithm = algos.load(task.algorithm)(task.settings, task.net, task.problem)
    pipe.send(_READY)
    store = TCPStore("127.0.0.1", port, is_master=False)
    _join_group(store, task.rank, task.size, task.problem.device)
    team = Follower(task.rank, task.size)
    for index, optimizer in enumerate(algorithm.optimizers()):
        optimizer.share(team, index)
    warm_up(algorithm)
    _follow(algorithm, pipe, task.problem.device)


def _tell(pipe: Connection, report: str) -> None:
    try:
        pipe.send(report)
    except OSError:
        sys.exit(1)  # the agent is gone: there is nobody to hear it


def _follow(algorithm: Algorithm, pipe: Connection, device: str) -> None:
    """Takes part in every epoch that the leader announces, until it closes the pipe."""
    optimizers = algorithm.optimizers()
    while True:
        try:
            epoch: Epoch = pipe.recv()
        except EOFError:
            return
        optimizer = optimizers[epoch.optimizer]
        flat = (epoch.parameters,)
        shapes: list[tuple[int, ...]] = [flat, flat, flat, (), ()]
        vector, *adam, rate = [_received(shape, torch.float32, device) for shape in shapes]
        data = {name: _received(shape, dtype, device) for name, shape, dtype in epoch.columns}
        optimizer.run(vector, AdamState(*adam), rate, data, epoch.minibatch_size)


def _received(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    x = torch.empty(shape, dtype=dtype, device=device)
    dist.broadcast(x, 0)
    return x
