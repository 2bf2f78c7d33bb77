"""The part of `sampler=ray` on a node: an actor that owns the node's sampler processes.

Ray makes one such actor on each node. Inside, rollouts and policies travel through shared memory as
with `sampler=process`; the actor sends the agent one array for each round.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from walle.system.forkserver import start_fork_server, without_collector
from walle.system.machine import cpu_model, usable_cores
from walle.system.process_tree import mark_processes

if TYPE_CHECKING:
    from walle.sampling.cluster.answer import Bytes
    from walle.sampling.process_sampling import ProcessSampling
    from walle.sampling.replacing import Told
    from walle.sampling.sampler_process import SamplerTask
    from walle.sampling.sampling import Patience
    from walle.sampling.slots import RolloutShape
    from walle.types import PolicySnapshot

_PACKAGES = ("walle", "torch", "numpy", "gymnasium", "mujoco", "ray")


class Start(NamedTuple):
    """The arguments with which a pool of samplers starts on a node.

    Attributes:
        tasks: the samplers, with the states of their lanes; their cores are chosen on the node.
        shapes: the rollouts' shape of each of them.
        vector_length: length of a snapshot's vector.
        slots: places for rollouts of each sampler.
        pin: whether sampler i of the node runs on the i-th usable core there.
        patience: when samplers are replaced on the node.
    """

    tasks: Sequence[SamplerTask]
    shapes: Sequence[RolloutShape]
    vector_length: int
    slots: int
    pin: bool
    patience: Patience


class Call(NamedTuple):
    """What the agent asks of a node for a round.

    Attributes:
        incarnation: the number of the pool that collects.
        round: the number of the round.
        version: the version of the policy that comes with the call.
        start: the pool's samplers if the lanes changed hands; None if they go on.
        ends: the incarnations of pools that end before.
    """

    incarnation: int
    round: int
    version: int
    start: Start | None
    ends: tuple[int, ...]


class Facts(NamedTuple):
    """What the agent wants to know of a node.

    Attributes:
        digest: the digest of the canary rollout.
        cpu_model: the name of the processor.
        cores: the cores on which samplers may run.
        versions: the versions of the packages that decide on bits.
    """

    digest: str
    cpu_model: str
    cores: int
    versions: dict[str, str]


class NodeSampling:
    """The actor; its methods run one after the other, in the main thread of their process."""

    def __init__(self) -> None:
        """Starts the fork server, which imports torch while this process does the same."""
        # Samplers would import the script that Ray runs in this process.
        vars(sys.modules["__main__"]).pop("__file__", None)
        mark_processes()  # a mark of its own: the agent's is on all that a local Ray started
        start_fork_server()
        with without_collector():
            import walle.sampling.process_sampling  # noqa: F401 - slow, so now and not later
        self._pools: dict[int, Pool] = {}

    def canary(self, start: Start, snapshot: PolicySnapshot) -> Facts:
        """Collects a canary rollout, in a sampler process as later the whole run."""
        from walle.sampling.cluster.canary import digest

        with closing(Pool(start).sampling) as sampling:
            sampling.publish(snapshot)
            found = digest(sampling.wait_round()[0].slot)
        return Facts(found, cpu_model(), len(usable_cores()), versions())

    def collect(self, call: Call, snapshot: PolicySnapshot) -> tuple[Bytes, list[Told]]:
        """Collects a round; returns the packed rollouts, and what happened to samplers.

        Raises:
            WorkerError: a sampler failed, or died too often.
            ValueError: the call does not fit what the node has.
        """
        for incarnation in call.ends:
            self._pools.pop(incarnation).sampling.close()
        if call.start is not None:
            self._pools[call.incarnation] = Pool(call.start)
        return self._pools[call.incarnation].collect(call, snapshot)


class Pool:
    """Samplers of a node that were started together, and that collect together."""

    def __init__(self, start: Start) -> None:
        """Starts the samplers, which build their lanes meanwhile."""
        # Slow imports, which run while the fork server does the same.
        from walle.sampling.process_sampling import ProcessSampling
        from walle.sampling.slots import check_memory
        from walle.system.signals import Signals

        cores = usable_cores()
        self._tasks = [
            replace(task, index=i, core=cores[i % len(cores)] if start.pin else None)
            for i, task in enumerate(start.tasks)
        ]
        self._numbers = [task.index for task in start.tasks]
        self._round, self._version = self._tasks[0].first_round, -1
        self._news: list[Told] = []
        self._packed: Bytes | None = None
        steps = sum(shape.steps * shape.lanes for shape in start.shapes)
        check_memory(start.shapes, start.slots, steps)
        self.sampling: ProcessSampling = ProcessSampling(
            self._tasks,
            start.shapes,
            vector_length=start.vector_length,
            slots=start.slots,
            enough=1,
            signals=Signals(),
            patience=start.patience,
        )
        self.sampling.news.listen(self._news.append)

    def collect(self, call: Call, snapshot: PolicySnapshot) -> tuple[Bytes, list[Told]]:
        """See `NodeSampling.collect`."""
        from walle.sampling.cluster.answer import Header, pack

        if (call.round, call.version) != (self._round, snapshot.version):
            raise ValueError(
                f"round {call.round} with policy {call.version} was asked for, where round "
                f"{self._round} is next and policy {snapshot.version} came"
            )
        if snapshot.version > self._version:
            self._version = snapshot.version
            self.sampling.publish(snapshot)
        received = self.sampling.wait_round()
        lanes = tuple(lane for task in self._tasks for lane in task.lanes)
        header = Header(call.round, call.version, call.incarnation, lanes)
        slots = zip(self._numbers, (item.slot for item in received), strict=True)
        # Ray has copied the former answer into its store by now.
        packed = self._packed = pack(header, dict(slots), self._packed)
        for item in received:
            self.sampling.release(item)
        self._round += 1
        news, self._news[:] = self._news[:], []
        return packed, news


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that a node must share with the agent."""
    found = {name: metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **found}
