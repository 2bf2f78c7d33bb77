"""The connection of `sampler=ray` to Ray: the only module here that knows its API and errors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from walle.errors import WalleError, WorkerError
from walle.sampling.cluster.node import Call, NodeSampling, Start
from walle.system.ray_cluster import first_line, join, leave
from walle.types import PolicySnapshot

INLINE_BYTES = 100_000  # Ray copies larger arguments into its store, for every call anew
_LEAST_STORE_BYTES = 100_000_000
_FETCH_S = 60.0


class NodeLostError(WalleError):
    """A node no longer answers: its actor, its machine or the network to it is down."""


class RayNode(NamedTuple):
    """A node of the cluster on which samplers can run."""

    identity: str  # Ray's id of the node
    name: str  # host and the first digits of the id; for messages and files
    address: str  # the node's address in the network
    cpus: int  # the cores that Ray may use there


class Connection:
    """This process's connection to a Ray cluster, or to a local one on this machine."""

    def __init__(self, address: str | None, store_bytes: int, nodes: int | None = None) -> None:
        """Connects to a cluster; without `address`, to a local one that ends with this connection.

        The rollouts need `store_bytes` in the object store of a local cluster, which listens only
        to this machine unless more `nodes` are wanted. Raises ConfigError if there is no cluster at
        the address, or its versions differ.
        """
        store = {"object_store_memory": max(_LEAST_STORE_BYTES, store_bytes)}
        self._ray, self._owned = join(
            address, setting="sampler.address", without="sampler=ray", own=store, nodes=nodes or 1
        )

    def nodes(self) -> list[RayNode]:
        """The live nodes with cores for Ray, sorted by name."""
        nodes = [
            RayNode(
                node["NodeID"],
                f"{node['NodeManagerHostname']}:{node['NodeID'][:6]}",
                node["NodeManagerAddress"],
                int(node["Resources"].get("CPU", 0)),
            )
            for node in self._ray.nodes()
            if node["Alive"]
        ]
        return sorted((node for node in nodes if node.cpus), key=lambda node: node.name)

    def start(self, node: RayNode, cpus: int) -> Any:
        """Starts the actor on a node, with `cpus` cores reserved by Ray; returns its handle."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node.identity, soft=False)
        actor = self._ray.remote(NodeSampling)
        options = {"num_cpus": cpus, "max_restarts": 0, "max_task_retries": 0}
        return actor.options(scheduling_strategy=there, **options).remote()

    def canary(self, actor: Any, start: Start, snapshot: PolicySnapshot) -> Any:
        """Asks a node for its canary; returns a reference to the answer."""
        return actor.canary.remote(start, snapshot)

    def collect(self, actor: Any, call: Call, snapshot: Any) -> Any:
        """Asks a node for a round, with a `sendable` policy; returns a reference to the answer."""
        return actor.collect.remote(call, snapshot)

    def sendable(self, snapshot: PolicySnapshot) -> Any:
        """The policy itself if it is small, else a reference to one copy in the object store."""
        return snapshot if snapshot.vector.nbytes <= INLINE_BYTES else self._ray.put(snapshot)

    def wait(self, references: Sequence[Any], timeout_s: float, enough: int = 1) -> list[Any]:
        """Waits until `enough` answers have arrived or the time is over; returns those answers.

        If more than `enough` are ready, returns the first ones in list order.
        """
        if not references:
            time.sleep(timeout_s)
            return []
        ready, _ = self._ray.wait(list(references), num_returns=enough, timeout=timeout_s)
        return list(ready)

    def get(self, reference: Any) -> Any:
        """An answer that has arrived; its arrays are read-only views of the object store.

        Raises NodeLostError if the node died instead of answering, and WorkerError if code failed
        on the node; the message holds its error or its traceback.
        """
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=_FETCH_S)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, WalleError) else error
            raise WorkerError(str(cause)) from None
        except errors.ActorDiedError as error:
            if "creation task" in str(error):
                raise WorkerError(str(error)) from None
            raise NodeLostError(first_line(error)) from None
        except errors.RayError as error:
            raise NodeLostError(first_line(error)) from None

    def kill(self, actor: Any) -> None:
        """Ends an actor and its samplers, even if it does not answer."""
        self._ray.kill(actor, no_restart=True)

    def close(self) -> None:
        """Disconnects; shuts down a local cluster."""
        if self._owned:
            leave(self._ray)
