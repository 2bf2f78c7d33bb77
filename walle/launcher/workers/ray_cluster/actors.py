"""What the command asks of Ray: the nodes, and the actors of a sweep by their names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from walle.errors import ConfigError
from walle.launcher.workers.ray_cluster.placing import Node, Placement
from walle.launcher.workers.ray_cluster.supervisor import NAMESPACE, Supervisor, Task, obstacle
from walle.launcher.workers.submitted import BackendError
from walle.processes.cluster.connecting import join, leave

SETTING = "hydra.launcher.ray.address"
ANSWER_S = 60.0
_OWN = {"object_store_memory": 80_000_000}


class Actors:
    """A connection to Ray."""

    def __init__(self, address: str | None) -> None:
        """Connects.

        Args:
            address: of a running cluster; None for a Ray that lives as long as the connection.

        Raises:
            BackendError: there is no cluster at the address.
        """
        without, more = "hydra.launcher.backend=ray", {"namespace": NAMESPACE}
        try:
            self._ray, self._joined = join(
                address, setting=SETTING, without=without, own=_OWN, log_to_driver=False, **more
            )
        except ConfigError as error:
            raise BackendError(str(error)) from None

    def nodes(self) -> list[Node]:
        """The nodes that live and have cores to give away, in the order of their names."""
        from ray._private.state import available_resources_per_node

        free = available_resources_per_node()
        found = [_node(node, free.get(node["NodeID"], {})) for node in self._ray.nodes()]
        return sorted((node for node in found if node and node.cores), key=lambda node: node.name)

    def check(self, task: Task, nodes: Iterable[Node]) -> list[Node]:
        """Asks nodes whether workers can run there; returns those that answer in time.

        Raises:
            BackendError: a node says why not.
        """
        asked = self._ray.remote(obstacle)
        references = {
            asked.options(num_cpus=0, max_retries=0, scheduling_strategy=_on(node)).remote(
                task
            ): node
            for node in nodes
        }
        refs = list(references)
        ready, _ = (
            self._ray.wait(refs, num_returns=len(refs), timeout=ANSWER_S) if refs else ([], 0)
        )
        for reference in ready:
            node = references[reference]
            try:
                refusal = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                said = [line for line in str(error).splitlines() if line.strip()]
                refusal = f"cannot run walle: {said[-1].strip() if said else type(error).__name__}"
            if refusal:
                raise BackendError(f"hydra.launcher.backend=ray: node {node.name} {refusal}")
        return [references[reference] for reference in ready]

    def start(self, name: str, task: Task, placement: Placement, gpus: int) -> None:
        """Starts a worker, which goes on without this process."""
        options: dict[str, Any] = {"num_cpus": placement.cores, "num_gpus": gpus}
        if placement.node is not None:
            options["scheduling_strategy"] = _on(placement.node, soft=True)
        actor = self._ray.remote(Supervisor)
        actor.options(
            name=name, namespace=NAMESPACE, lifetime="detached", max_restarts=-1, **options
        ).remote(task)

    def states(self, names: Sequence[str]) -> dict[str, str] | None:
        """Those of the workers that Ray still has, running or waiting; None without an answer."""
        try:
            known = self._ray.util.list_named_actors(all_namespaces=True)
        except self._ray.exceptions.RayError:
            return None
        alive = {each["name"] for each in known if each["namespace"] == NAMESPACE}
        return {name: "ALIVE" for name in names if name in alive}

    def end(self, names: Sequence[str], save_s: float) -> None:
        """Asks workers to end; see `Supervisor.end`."""
        self._each(names, lambda actor: actor.end.remote(save_s))

    def signal(self, names: Sequence[str], number: int) -> None:
        """Sends workers a signal."""
        self._each(names, lambda actor: actor.signal.remote(number))

    def kill(self, names: Sequence[str]) -> None:
        """Ends workers at once; the kernel ends their processes."""
        self._each(names, lambda actor: self._ray.kill(actor, no_restart=True))

    def _each(self, names: Sequence[str], action: Callable[[Any], object]) -> None:
        for name in names:
            with contextlib.suppress(ValueError):  # it has ended
                action(self._ray.get_actor(name, NAMESPACE))

    def close(self) -> None:
        """Disconnects; a Ray of its own ends."""
        if self._joined:
            leave(self._ray)


def _node(found: Any, free: Any) -> Node | None:
    """A node as Ray describes it; None if it is dead."""
    if not found["Alive"]:
        return None
    identity = found["NodeID"]
    name = f"{found['NodeManagerHostname']}:{identity[:6]}"
    cores = int(found["Resources"].get("CPU", 0))
    return Node(identity, name, cores, int(free.get("CPU", 0)), int(free.get("GPU", 0)))


def _on(node: Node, *, soft: bool = False) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.identity, soft=soft)
