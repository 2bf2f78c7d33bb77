"""The backend of Ray: starts workers on the nodes of a cluster, and ends them after Ctrl-C."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from walle.errors import ConfigError
from walle.launcher.planning import Plan
from walle.launcher.records import jobs_locked
from walle.launcher.settings import STALE_BEATS, RayConf, WalleLauncherConf
from walle.launcher.workers.backend import LOCK_WAIT_S, Follower, WorkersBackend
from walle.launcher.workers.ray_supervisor import NAMESPACE, Supervisor, WorkerTask, obstacle
from walle.launcher.workers.submission import Submission, digest
from walle.system.format import count_text
from walle.system.ray_cluster import join, leave

log = logging.getLogger(__name__)

SETTING = "hydra.launcher.ray.address"
GONE_S, POLL_S = 10.0, 0.2
ANSWER_S, END_S = 60.0, 10.0
_OWN = {"object_store_memory": 80_000_000}


class Node(NamedTuple):
    """A node of the cluster on which workers can run."""

    identity: str  # Ray's number of the node
    name: str  # host and the first digits of the number, for messages
    cores: int  # the cores that Ray may use there
    free_cores: int  # the number of these that nobody has
    free_gpus: int = 0  # the GPUs that nobody has


class RayBackend(WorkersBackend):
    """Runs jobs in workers on the nodes of a Ray cluster."""

    def __init__(self, settings: WalleLauncherConf) -> None:
        super().__init__(settings, settings.ray)
        self._ray = settings.ray
        self._environ = dict(os.environ)  # before Ray changes it
        if find_spec("ray") is None:
            raise ConfigError(
                "hydra.launcher.backend=ray needs a package that is missing: "
                "pip install 'walle[ray]'"
            )
        address = self._ray.address
        if address and address.startswith("ray://"):
            raise ConfigError(
                f"{SETTING}={address} is that of Ray Client: run this on a node of the cluster "
                f"with {SETTING}=auto"
            )
        if address is None and not settings.wait:
            raise ConfigError(
                f"hydra.launcher.wait=false with {SETTING}=null, whose workers end with this "
                "command: leave it out, or start a cluster with `ray start --head` and use "
                f"{SETTING}=auto"
            )

    def where(self, plan: Plan) -> str:  # noqa: ARG002  see `WorkersBackend`
        """See `WorkersBackend`."""
        address = self._ray.address
        return f"in workers on the Ray cluster at {address}" if address else "in a Ray of their own"

    @contextmanager
    def _connected(self) -> Iterator[None]:
        self._cluster, joined = join(
            self._ray.address,
            setting=SETTING,
            without="hydra.launcher.backend=ray",
            own=_OWN,
            log_to_driver=False,
            namespace=NAMESPACE,
        )
        try:
            yield
        finally:
            if joined:
                leave(self._cluster)

    def _how_to_end(self, submission: Submission) -> tuple[str, str]:  # noqa: ARG002
        again = "the same command" if self._settings.wait else "the same command without wait=false"
        return (
            "start the earlier command again and end them with Ctrl-C",
            f"; {again}, and then Ctrl-C, ends them",
        )

    def _submit(self, plan: Plan, sweep: Path, directory: Path) -> Submission:
        python, cwd = sys.executable, os.getcwd()
        task = WorkerTask(directory, digest(directory), "", 0, python, cwd, self._environ)
        try:
            workers = self._placements(plan, task)
        except ConfigError:
            shutil.rmtree(directory)
            raise
        mark = uuid.uuid4().hex[:8]  # names outlive directories
        names = [f"walle-{sweep.name}-{mark}-{number}" for number in range(len(workers))]
        stale_s = STALE_BEATS * self._ray.heartbeat_s
        submission = Submission(directory, names, plan.nums, "ray", stale_s)
        submission.record()
        actor = self._cluster.remote(Supervisor)
        for number, (name, (cores, node)) in enumerate(zip(names, workers, strict=True)):
            options = {"num_cpus": cores, "num_gpus": self._ray.gpus, **_on(node, soft=True)}
            actor.options(
                name=name, namespace=NAMESPACE, lifetime="detached", max_restarts=-1, **options
            ).remote(task._replace(name=str(number), cores=cores))
        listed = ", ".join(
            f"{count_text(cores, 'core')} of {node.name if node else 'any node'}"
            for cores, node in workers
        )
        log.info(f"started {count_text(len(workers), 'worker')} on Ray: {listed}")
        return submission

    def _placements(self, plan: Plan, task: WorkerTask) -> list[tuple[int, Node | None]]:
        """The workers to start; each of their nodes has confirmed that it can run them."""
        needs = [plan.jobs[index].need.cores for index in plan.order]
        nodes = self._nodes()
        for _ in range(2):
            workers = placements(needs, nodes, self._ray, compared=self._compares_times(plan))
            wanted = {node for _, node in workers if node is not None}
            silent = wanted.difference(self._able(task, wanted))
            if not silent:
                break
            named = ", ".join(node.name for node in silent)
            log.warning(f"node {named} does not answer, and is left out")
            nodes = [node for node in nodes if node not in silent]
        if waiting := [cores for cores, node in workers if node is None]:
            log.warning(
                f"{count_text(len(waiting), 'worker')} will start when a node of the cluster has "
                f"{count_text(max(waiting), 'free core')}; `ray status` shows its nodes"
            )
        return workers

    def _nodes(self) -> list[Node]:
        """The nodes that live and have free cores, in the order of their names."""
        from ray._private.state import available_resources_per_node

        free, nodes = available_resources_per_node(), []
        for node in self._cluster.nodes():
            identity, cores = node["NodeID"], int(node["Resources"].get("CPU", 0))
            name = f"{node['NodeManagerHostname']}:{identity[:6]}"
            left = [int(free.get(identity, {}).get(key, 0)) for key in ("CPU", "GPU")]
            if node["Alive"] and cores:
                nodes.append(Node(identity, name, cores, *left))
        return sorted(nodes, key=lambda node: node.name)

    def _able(self, task: WorkerTask, nodes: Iterable[Node]) -> list[Node]:
        """The nodes that answer in time; raises `ConfigError` if a worker cannot run on one."""
        function = self._cluster.remote(num_cpus=0, max_retries=0)(obstacle)
        questions = {function.options(**_on(node)).remote(task): node for node in nodes}
        able = []
        ready, _ = self._cluster.wait(list(questions), num_returns=len(questions), timeout=ANSWER_S)
        for reference in ready:
            node = questions[reference]
            try:
                refusal: str | None = self._cluster.get(reference)
            except self._cluster.exceptions.RayTaskError as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                refusal = f"cannot run walle: {lines[-1] if lines else type(error).__name__}"
            except self._cluster.exceptions.RayError:  # the node has died
                continue
            if refusal is not None:
                raise ConfigError(f"hydra.launcher.backend=ray: node {node.name} {refusal}")
            able.append(node)
        return able

    def _states(self, names: Sequence[str]) -> Mapping[str, object] | None:
        try:
            known = self._cluster.util.list_named_actors(all_namespaces=True)
        except self._cluster.exceptions.RayError:
            return None
        alive = {actor["name"] for actor in known if actor["namespace"] == NAMESPACE}
        return {name: "ALIVE" for name in names if name in alive}

    def _request_checkpoints(self, submission: Submission, saving: list[int]) -> None:
        while saving:
            saving.pop(0)
            self._signal(submission.arrays, signal.SIGUSR2)  # SIGUSR1 would end workers

    def _wait_for_workers(self, follower: Follower, sweep: Path, ending: Sequence[int]) -> bool:
        """Ends all workers and waits until they are gone, after Ctrl-C or in the command's own Ray.

        After a second signal, or `save_s`, they kill their jobs; after a third signal they are
        killed. Without a signal it waits a moment for the last worker, which writes the sweep's
        index.
        """
        names, start_s, done = follower.submission.arrays, time.monotonic(), 0
        if not ending:
            while self._states(names) and time.monotonic() < start_s + GONE_S:
                time.sleep(POLL_S)
            return True
        if ending[0] != signal.SIGINT and self._ray.address is not None:
            return False
        follower.screen.stop("stopping: the workers end their jobs; a second Ctrl-C kills these")
        requests = self._signal(names, signal.SIGTERM)
        answers = list(requests.values())
        answered, _ = self._cluster.wait(answers, num_returns=len(answers), timeout=END_S)
        self._kill([name for name, reference in requests.items() if reference not in answered])
        while self._states(names):
            follower.look()
            late_s = time.monotonic() - start_s - self._ray.save_s
            urged = sum(number != signal.SIGHUP for number in ending[1:])
            wanted = max(urged, (late_s > 0) + (late_s > GONE_S))
            if done == 0 < wanted:
                self._signal(names, signal.SIGINT)
            if done < 2 <= wanted:
                self._kill(names)
            done = max(done, wanted)
            time.sleep(POLL_S)
        with suppress(ConfigError), jobs_locked(sweep, LOCK_WAIT_S):
            pass  # jobs that were killed with their workers end a moment later
        return True

    def _signal(self, names: Sequence[str], number: int) -> dict[str, Any]:
        """Sends workers a signal, see `Supervisor`; returns Ray's references to their answers."""
        return {name: actor.signal.remote(number) for name, actor in self._living(names)}

    def _kill(self, names: Sequence[str]) -> None:
        """Ends workers at once; the kernel ends their processes."""
        for _, actor in self._living(names):
            self._cluster.kill(actor, no_restart=True)

    def _living(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """The workers that Ray still has, with their handles."""
        for name in names:
            with suppress(ValueError):  # it has ended
                yield name, self._cluster.get_actor(name, NAMESPACE)


def _on(node: Node | None, *, soft: bool = False) -> dict[str, Any]:
    """The options of Ray that name a node; none for any node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if node is None:
        return {}
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node.identity, soft=soft)}


def placements(
    needs: Sequence[int | None], nodes: Sequence[Node], settings: RayConf, *, compared: bool
) -> list[tuple[int, Node | None]]:
    """The cores and nodes of a sweep's workers: at least one worker, and no more workers than jobs.

    A need of None means all cores of a node. A node of None means any node with enough free cores.
    Jobs whose times are `compared` run one at a time on one node.
    """
    fitting = [node for node in nodes if node.cores and node.free_gpus >= settings.gpus]
    placed: list[tuple[int, Node | None]] = []
    if compared or None in needs:
        most = settings.workers or (1 if compared else len(needs))
        largest = sorted(fitting, key=lambda node: (node.free_cores < node.cores, -node.cores))
        placed = [(node.cores, node) for node in largest]
        pick = min if settings.gpus else max  # any node may be the one with GPUs
        least = pick((node.cores for node in nodes), default=1)  # of workers that wait for a node
    else:
        least = settings.cores or max((need or 1 for need in needs), default=1)
        most = settings.workers or len(needs)
        wanted = sum(min(need or 1, least) for need in needs)
        # On free cores, the emptiest node first, until all jobs can run at once.
        for node in sorted(fitting, key=lambda node: -node.free_cores):
            if wanted <= 0:
                break
            many = node.free_cores // least
            if settings.gpus:
                many = min(many, node.free_gpus // settings.gpus)
            sizes = [least] * min(many, -(-wanted // least))
            if many and settings.cores is None:
                sizes = [max(least, min(node.free_cores, wanted))]
            placed += [(cores, node) for cores in sizes]
            wanted -= sum(sizes)
    placed = placed[: min(most, len(needs))]
    missing = min(settings.workers or 1, len(needs)) - len(placed)
    return placed + [(least, None)] * missing
