"""The command's questions to Ray: which nodes there are, and which actors of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from walle.errors import ConfigError
from walle.launcher.workers.ray_cluster.placing import Node, Placement
from walle.launcher.workers.ray_cluster.supervisor import NAMESPACE, Supervisor, Task, obstacle
from walle.launcher.workers.submitted import BackendError
from walle.system.cluster.connecting import join, leave

SETTING = "hydra.launcher.ray.address"
ANSWER_S, END_S = 60.0, 10.0
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
        function = self._ray.remote(obstacle)
        asked: dict[Any, Node] = {}
        for node in nodes:
            options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": _on(node)}
            asked[function.options(**options).remote(task)] = node
        found = [asked[reference] for reference in self._answered(list(asked), ANSWER_S)]
        for reference, node in asked.items():
            if node in found and (refusal := self._refusal(reference)) is not None:
                if not refusal:
                    found.remove(node)
                    continue
                raise BackendError(f"hydra.launcher.backend=ray: node {node.name} {refusal}")
        return found

    def _refusal(self, reference: Any) -> str | None:
        """Why a node cannot run jobs: the answer of `obstacle`; empty if the node has died."""
        try:
            refusal: str | None = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            said = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"cannot run walle: {said[-1] if said else type(error).__name__}"
        except self._ray.exceptions.RayError:
            return ""
        return refusal

    def _answered(self, references: Sequence[Any], within_s: float) -> list[Any]:
        """The references whose answers come within `within_s` seconds."""
        if not references:
            return []
        several = {"num_returns": len(references), "timeout": within_s}
        ready, _ = self._ray.wait(references, **several)
        return list(ready)

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
        """The state of each worker in `names` that Ray still has; None if Ray does not answer."""
        try:
            known = self._ray.util.list_named_actors(all_namespaces=True)
        except self._ray.exceptions.RayError:
            return None
        alive = {each["name"] for each in known if each["namespace"] == NAMESPACE}
        return {name: "ALIVE" for name in names if name in alive}

    def end(self, names: Sequence[str]) -> None:
        """Asks workers to end, see `Supervisor.end`; kills those that wait or do not answer."""
        asked: dict[str, Any] = {}
        for name, actor in self._living(names):
            asked[name] = actor.end.remote()
        answered = self._answered(list(asked.values()), END_S)
        self.kill([name for name, reference in asked.items() if reference not in answered])

    def signal(self, names: Sequence[str], number: int) -> None:
        """Sends workers a signal."""
        for _, actor in self._living(names):
            actor.signal.remote(number)

    def kill(self, names: Sequence[str]) -> None:
        """Ends workers at once; the kernel ends their processes."""
        for _, actor in self._living(names):
            self._ray.kill(actor, no_restart=True)

    def _living(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """The workers that Ray still has, with their handles."""
        for name in names:
            try:
                actor = self._ray.get_actor(name, NAMESPACE)
            except ValueError:  # it has ended
                continue
            yield name, actor

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
