"""The body of a learner process, and the messages from the leader."""

from __future__ import annotations

import gc
import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from walle.errors import CompileError
from walle.learning.adam import AdamState
from walle.learning.gradient_steps import Team, map_leaves
from walle.learning.optimizer import Learnable, warm_up
from walle.processes.workers import become_worker

READY = ""
_COLLECTIVE_LIMIT = timedelta(minutes=10)  # another learner may still be compiling


@dataclass(frozen=True)
class Column:
    """Shape and type of a tensor that the leader broadcasts."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Announcement(NamedTuple):
    """The leader's message before an epoch.

    Attributes:
        optimizer: the number of the optimizer that takes the steps.
        minibatch_size: rows in a minibatch, over all learners.
        parameters: P, the number of parameters.
        columns: the data's named tuples, with a `Column` for every tensor.
    """

    optimizer: int
    minibatch_size: int
    parameters: int
    columns: Any


@dataclass(frozen=True)
class LearnerTask:
    """The description from which a learner process starts. Picklable.

    Attributes:
        rank: the learner's number; the agent is number 0.
        size: number of learners, including the agent.
        make: makes the learner's copy of the algorithm; picklable.
        device: the device on which this learner computes.
        threads: number of torch's threads.
    """

    rank: int
    size: int
    make: Callable[[], Learnable]
    device: str
    threads: int

    @property
    def name(self) -> str:
        """The name for messages."""
        return f"learner-{self.rank}"


class Follower(Team):
    """The team of a learner that is not the leader."""

    def __init__(self, rank: int, size: int) -> None:
        """Learner number `rank` of `size` learners."""
        self.rank, self.size = rank, size

    def sum(self, x: Tensor) -> None:
        """See `Team`."""
        dist.all_reduce(x)

    def meet(self) -> None:
        """See `Team`."""
        dist.barrier()

    def announce(self, *_: Any) -> None:
        """Does nothing; only the leader announces."""


def join_group(store: TCPStore, rank: int, size: int, device: str) -> None:
    """Joins the group of `size` processes that exchange tensors, as number `rank`."""
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    if "lo" in [name for _, name in socket.if_nameindex()]:
        os.environ.setdefault(
            "GLOO_SOCKET_IFNAME", "lo"
        )  # gloo needs it if the host's name does not resolve
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=_COLLECTIVE_LIMIT
    )


def run_learner(task: LearnerTask, pipe: Connection, port: int) -> None:
    """The body of a learner process."""
    become_worker(task.threads)
    try:
        _learn(task, pipe, port)
        gc.collect()  # removes the temporary files of compiled programs, which an exit may leave
    except BaseException as error:  # noqa: BLE001 - the agent reports every error
        whole = isinstance(error, CompileError)  # its message says everything
        with suppress(OSError):  # the agent may have ended
            pipe.send(str(error) if whole else traceback.format_exc())
        sys.exit(1)


def _learn(task: LearnerTask, pipe: Connection, port: int) -> None:
    algorithm = task.make()
    pipe.send(READY)
    store = TCPStore("127.0.0.1", port, is_master=False)
    join_group(store, task.rank, task.size, task.device)
    team = Follower(task.rank, task.size)
    for index, optimizer in enumerate(algorithm.optimizers()):
        optimizer.join_team(team, index)
    warm_up(algorithm)
    _follow(algorithm, pipe, task.device)


def _follow(algorithm: Learnable, pipe: Connection, device: str) -> None:
    """Takes part in every epoch that the leader announces, until the leader closes the pipe."""
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
