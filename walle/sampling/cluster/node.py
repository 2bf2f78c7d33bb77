"""The part of `sampler=ray` on a node: an actor that owns the node's sampler processes.

Ray makes one such actor on each node. Inside, rollouts and policies travel through shared memory as
with `sampler=process`; Ray carries the filled slots of a round to the agent. Before anything else a
node collects a canary, a short rollout that shows whether it computes the same bits as the agent.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from walle.sampling.slots import RolloutShape, Slot, check_memory
from walle.system.forkserver import start_fork_server, without_collector
from walle.system.machine import cpu_model, usable_cores
from walle.system.process_tree import mark_processes
from walle.system.signals import Signals
from walle.types import STEP_FIELDS

if TYPE_CHECKING:
    from walle.sampling.process_sampling import ProcessSampling
    from walle.sampling.sampler_process import SamplerTask
    from walle.sampling.sampling import Event, Patience
    from walle.types import PolicySnapshot

_PACKAGES = ("walle", "torch", "numpy", "gymnasium", "mujoco", "ray")


class Start(NamedTuple):
    """The arguments with which a pool of samplers starts on a node."""

    # the samplers, with the states of their lanes; their cores are chosen on the node
    tasks: Sequence[SamplerTask]
    shapes: Sequence[RolloutShape]  # the shape of each sampler's rollouts
    vector_length: int  # length of a snapshot's vector
    slots: int  # places for rollouts of each sampler
    pin: bool  # whether sampler i of the node runs on the i-th usable core there
    patience: Patience  # when samplers are replaced on the node


class Call(NamedTuple):
    """A request for a round."""

    incarnation: int  # the number of the pool that collects
    round: int  # the number of the round
    start: Start | None  # what the pool starts from; None if it is already running
    ends: tuple[int, ...]  # the incarnations of pools to close first


class Facts(NamedTuple):
    """A node's answer to its canary."""

    digest: str  # the digest of the canary rollout
    cpu_model: str  # the name of the processor
    cores: int  # the cores on which samplers may run
    versions: dict[str, str]  # of Python and the packages on which the bits may depend

    @classmethod
    def here(cls, digest: str) -> Facts:
        """This node's answer with that digest."""
        return cls(digest, cpu_model(), len(usable_cores()), versions())


class NodeSampling:
    """The actor; its methods run one after the other, in the main thread of their process."""

    def __init__(self) -> None:
        """Starts the fork server, which imports torch while this process does the same."""
        # Samplers would import the script that Ray runs in this process.
        vars(sys.modules["__main__"]).pop("__file__", None)
        mark_processes()  # a mark of its own: the agent's mark is on all that a local Ray started
        start_fork_server()
        with without_collector():
            import walle.sampling.process_sampling  # noqa: F401 - slow, so now and not later
        self._pools: dict[int, Pool] = {}

    def canary(self, start: Start, snapshot: PolicySnapshot) -> Facts:
        """Collects a canary rollout, in a sampler process as in the run itself."""
        with closing(Pool(start).sampling) as sampling:
            sampling.publish(snapshot)
            return Facts.here(digest(sampling.wait_round()[0].slot))

    def collect(self, call: Call, snapshot: PolicySnapshot) -> tuple[list[Slot], list[Event]]:
        """Collects a round; returns the samplers' slots, and the events of samplers."""
        for incarnation in call.ends:
            self._pools.pop(incarnation).sampling.close()
        if call.start is not None:
            self._pools[call.incarnation] = Pool(call.start)
        return self._pools[call.incarnation].collect(call.round, snapshot)


class Pool:
    """Samplers of a node that were started together and collect together."""

    def __init__(self, start: Start) -> None:
        """Starts the samplers, which build their lanes meanwhile."""
        from walle.sampling.process_sampling import ProcessSampling

        cores = usable_cores()
        tasks = [
            replace(task, index=i, core=cores[i % len(cores)] if start.pin else None)
            for i, task in enumerate(start.tasks)
        ]
        self._version = -1
        self._news: list[Event] = []
        steps = sum(shape.steps * shape.lanes for shape in start.shapes)
        check_memory(start.shapes, start.slots, steps)
        self.sampling: ProcessSampling = ProcessSampling(
            tasks,
            start.shapes,
            lag=tasks[0].lag,
            vector_length=start.vector_length,
            slots=start.slots,
            enough=1,
            signals=Signals(),
            patience=start.patience,
        )
        self.sampling.events.listen(self._news.append)

    def collect(self, round_: int, snapshot: PolicySnapshot) -> tuple[list[Slot], list[Event]]:
        """Collects the next round, which must be `round_`; see `NodeSampling.collect`."""
        if snapshot.version > self._version:
            self._version = snapshot.version
            self.sampling.publish(snapshot)
        received = self.sampling.wait_round()
        if (collected := int(received[0].slot.round[0])) != round_:
            raise ValueError(f"round {round_} was requested, but round {collected} is next")
        slots = [copied(item.slot) for item in received]
        for item in received:
            self.sampling.release(item)
        news, self._news[:] = self._news[:], []
        return slots, news


def copied(slot: Slot) -> Slot:
    """A copy of the filled part of a slot, with `final_obs` only where an episode ended."""
    filled, width = slot.filled, int(slot.state_bytes[0])
    filled = filled._replace(final_obs=filled.final_obs[filled.ended])
    return deepcopy(slot._replace(rollout=filled, lane_states=slot.lane_states[:, :width]))


def restored(slot: Slot, began_ns: int, sent_ns: int) -> Slot:
    """A slot as `copied` sent it, with all last observations, and times on this process's clock."""
    rollout = slot.rollout
    final_obs = np.zeros_like(rollout.obs[:-1])
    final_obs[rollout.ended] = rollout.final_obs
    return slot._replace(
        rollout=rollout._replace(final_obs=final_obs),
        began_ns=np.array([began_ns]),
        sent_ns=np.array([sent_ns]),
    )


def collected_here(task: SamplerTask, shape: RolloutShape, snapshot: PolicySnapshot) -> str:
    """The digest of the canary as this process collects it."""
    from walle.sampling.sampler_process import SlotFiller

    slot = Slot.empty(shape)
    with closing(SlotFiller(task)) as filler:
        filler.fill(slot, snapshot, 0)
    return digest(slot)


def digest(slot: Slot) -> str:
    """A digest of all numbers of a rollout: 16 hexadecimal digits."""
    rollout, sha = slot.filled, hashlib.sha256()
    finals = np.where(rollout.ended[..., None], rollout.final_obs, 0)
    for name in STEP_FIELDS[:-1]:  # an info may hold times
        values = finals if name == "final_obs" else getattr(rollout, name)
        sha.update(np.ascontiguousarray(values).tobytes())
    return sha.hexdigest()[:16]


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that a node must share with the agent."""
    packages = {name: metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **packages}
