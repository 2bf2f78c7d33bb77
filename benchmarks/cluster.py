"""What travelling through Ray costs, and what nodes gain for environments that wait.

    python benchmarks/cluster.py [--only exchange slow] [--nodes 1 3] [--batch-sizes 3072 32768]

It starts a Ray cluster on this machine: a head without cores, and simulated nodes.

`exchange`: nodes that step no environment answer every round with a rollout of HalfCheetah that
lies ready. So a round costs what walle adds to collecting: calls, packing, checksums, travelling,
and putting the round together. In turns with it, actors that do nothing else exchange as many bytes
through Ray. The promise: a round costs at most 1.3 times the bare exchange plus 2 ms.

`slow`: environments whose step waits 20 ms, on three nodes with 16 samplers each, against one
sampler on this machine. The promise: at least 43 times as fast.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from benchmarks.options import duration, parser_of, positive
from benchmarks.programs import read_csv
from benchmarks.provenance import provenance, write_json
from walle.config import compose
from walle.sampling.cluster import node
from walle.sampling.cluster.connection import Connection
from walle.sampling.cluster.members import ClusterSettings
from walle.sampling.cluster.sampling import Plan, RaySampling
from walle.sampling.sampling import Patience
from walle.sampling.slots import Slot
from walle.system.signals import Signals
from walle.training import make_algorithm, make_problem, make_tasks, rollout_shape, train

KINDS = ("exchange", "slow")
TIMES, PLUS_S, SPEEDUP = 1.3, 2e-3, 43.0
WARM_UP, ONE_EIGHTH = 5, 8


def main() -> int:
    """Measures what was asked for, and prints it beside the promises."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--nodes", nargs="+", type=positive, default=[1, 3])
    parser.add_argument("--batch-sizes", nargs="+", type=positive, default=[3072, 32768])
    parser.add_argument("--repetitions", type=positive, default=60)
    parser.add_argument("--step-ms", type=duration, default=20.0)
    parser.add_argument("--per-node", type=positive, default=16)
    parser.add_argument("--steps", type=positive, default=128, help="of each lane in a slow round")
    parser.add_argument("--rounds", type=positive, default=6)
    args = parser.parse_args()
    report: dict[str, Any] = {"provenance": provenance({})}
    report["provenance"]["ray"] = node.versions()["ray"]
    with simulated(max(args.nodes), args.per_node) as address:
        if "exchange" in args.only:
            report["exchange"] = [
                exchange(address, nodes, batch_size, args.repetitions)
                for nodes in args.nodes
                for batch_size in args.batch_sizes
            ]
        if "slow" in args.only:
            report["slow"] = slow(address, args)
    write_json(args.json, report)
    return 0


@contextmanager
def simulated(nodes: int, cpus: int) -> Iterator[str]:
    """A cluster on this machine; gives its address."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 150_000_000}
    cluster = Cluster(True, head_node_args={**small, "num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(nodes):
            cluster.add_node(**small, num_cpus=cpus)
        yield cluster.address
    finally:
        cluster.shutdown()


class StillNode(node.NodeSampling):
    """A node whose rollouts lie ready."""

    def __init__(self) -> None:
        """Starts nothing."""
        self._slots: dict[int, Slot] = {}

    def canary(self, start: node.Start, snapshot: Any) -> node.Facts:
        """Collects the canary in this process."""
        digest = node.collected_here(start.tasks[0], start.shapes[0], snapshot)
        return node.Facts.here(digest)

    def collect(self, call: node.Call, snapshot: Any) -> Any:
        """Copies the rollouts that lie ready, as a node copies those of its samplers."""
        if call.start is not None:
            pairs = zip(call.start.tasks, call.start.shapes, strict=True)
            self._slots = {task.index: ready(shape, task.lanes) for task, shape in pairs}
        for slot in self._slots.values():
            slot.round[0] = call.round
            slot.rollout.policy_version[:] = snapshot.version
        return [node.copied(slot) for slot in self._slots.values()], []


def ready(shape: Any, lanes: Sequence[int]) -> Slot:
    """A slot of random numbers with the states of all lanes; an episode ends in one lane."""
    slot, rng = Slot.empty(shape), np.random.default_rng(0)
    for name in ("obs", "action", "reward", "log_prob"):
        array: Any = getattr(slot.rollout, name)
        array[...] = rng.standard_normal(array.shape)
    slot.rollout.lane[:] = lanes
    slot.rollout.truncated[-1, 0] = True
    slot.state_bytes[0] = shape.lane_state
    return slot


class StillConnection(Connection):
    """A connection that starts nodes whose rollouts lie ready, and counts the bytes of answers."""

    bytes = 0

    def start(self, there: Any, cpus: int) -> Any:
        """See `Connection.start`."""
        return started(self._ray, StillNode, there.identity, cpus)

    def get(self, reference: Any) -> Any:
        """See `Connection.get`."""
        answer = super().get(reference)
        if isinstance(answer, tuple) and isinstance(answer[0], list):
            slots = [array for slot in answer[0] for array in (*slot.rollout, *slot[1:])]
            self.bytes = sum(array.nbytes for array in slots)
        return answer


def started(ray: Any, actor: Any, identity: str, cpus: int, *arguments: Any) -> Any:
    """An actor on a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(identity, soft=False)
    return ray.remote(actor).options(num_cpus=cpus, scheduling_strategy=there).remote(*arguments)


class Bare:
    """An actor that answers with so many bytes, and does nothing else."""

    def __init__(self, size: int) -> None:
        """Makes the bytes."""
        self._answer = np.ones(size, np.uint8)

    def exchange(self, vector: Any) -> Any:  # noqa: ARG002 - a policy travels too
        """Answers."""
        return self._answer


def exchange(address: str, nodes: int, batch_size: int, repetitions: int) -> dict[str, Any]:
    """Rounds of walle and bare exchanges of as many bytes, in turns."""
    import ray

    settings = ["env=halfcheetah", "sampler=ray", "sampler.lanes=64", f"batch_size={batch_size}"]
    config = compose([*settings, f"algo.minibatch_size={batch_size}", "total_steps=1e9"])
    problem, probed = make_problem(config)
    algorithm = make_algorithm(config, problem)
    snapshot = algorithm.snapshot()
    (task,) = make_tasks(config, problem, probed, algorithm)
    shape = partial(rollout_shape, config, problem, probed)
    patience = Patience(balance=False, restarts=0, timeout_s=None)
    plan = Plan(task, shape, len(snapshot.vector), config.slots, patience)
    cluster = ClusterSettings(address, nodes, 1, "error")
    made: list[StillConnection] = []

    def connect(*arguments: Any) -> Connection:
        made.append(StillConnection(*arguments))
        return made[0]

    with patch("walle.sampling.cluster.sampling.Connection", connect):
        sampling = RaySampling(plan, snapshot, cluster, lag=config.sampler.lag, signals=Signals())
    with closing(sampling):
        version = iter(range(10**9))

        def round_() -> None:
            sampling.publish(snapshot._replace(version=next(version)))
            sampling.receive()

        round_()
        (connection,) = made
        there = connection.nodes()[:nodes]
        actors = [started(ray, Bare, n.identity, 1, connection.bytes) for n in there]

        def bare() -> None:
            ray.get([actor.exchange.remote(snapshot.vector) for actor in actors])

        walle_s, bare_s = in_turns(round_, bare, repetitions)
    return described(nodes, connection.bytes * nodes, walle_s, bare_s)


def in_turns(
    first: Callable[[], None], second: Callable[[], None], repetitions: int
) -> tuple[list[float], list[float]]:
    """The seconds of two functions, called in turns."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(WARM_UP + repetitions):
        for function, seconds in zip((first, second), found, strict=True):
            begin = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - begin)
    return found[0][WARM_UP:], found[1][WARM_UP:]


def described(nodes: int, size: int, walle_s: list[float], bare_s: list[float]) -> dict[str, Any]:
    """The result of `exchange`, which is printed too."""
    ours, bare = statistics.median(walle_s), statistics.median(bare_s)
    allowed = TIMES * bare + PLUS_S
    print(
        f"{nodes} nodes, {size / 1e3:,.0f} kB: a round {ours * 1e3:.1f} ms, bare "
        f"{bare * 1e3:.1f} ms: {ours / bare:.2f} times; {allowed * 1e3:.1f} ms are promised: "
        f"{'kept' if ours <= allowed else 'not kept'}",
        flush=True,
    )
    medians = {"median_s": ours, "median_bare_s": bare, "allowed_s": allowed}
    return {"nodes": nodes, "bytes": size, **medians, "walle_s": walle_s, "bare_s": bare_s}


def slow(address: str, args: argparse.Namespace) -> dict[str, Any]:
    """The time of a step of slow environments on the nodes, and with one sampler."""
    nodes = max(args.nodes)
    lanes = nodes * args.per_node
    cluster = ("sampler=ray", f"sampler.address={address}", f"sampler.per_node={args.per_node}")
    many_s = step_s(args, lanes, args.steps, args.rounds, cluster)
    few = max(1, args.steps // ONE_EIGHTH)  # one sampler needs so long that a part is enough
    one_s = step_s(args, lanes, few, 2, ("sampler.n=1",))
    many, one = statistics.median(many_s), statistics.median(one_s)
    print(
        f"{nodes} nodes with {args.per_node} samplers each, steps of {args.step_ms:g} ms: "
        f"{many * 1e3:.3f} ms a step of all, {one * 1e3:.3f} ms with one sampler: "
        f"{one / many:.1f} times",
        flush=True,
    )
    if (nodes, args.per_node) == (3, 16):
        kept = "kept" if one / many >= SPEEDUP else "not kept"
        print(f"{SPEEDUP:.0f} times are promised: {kept}")
    found = {"nodes": nodes, "samplers": lanes, "speedup": one / many}
    return {**found, "many_step_s": many_s, "one_step_s": one_s}


def step_s(
    args: argparse.Namespace, lanes: int, steps: int, rounds: int, sampler: Sequence[str]
) -> list[float]:
    """The seconds of collecting, for each environment step, in each round but the first."""
    size = lanes * steps
    with tempfile.TemporaryDirectory() as name:
        train(slow_run(args.step_ms, lanes, size, 1 + rounds, *sampler), Path(name) / "run")
        rows = read_csv(Path(name) / "run" / "iterations.csv")
    return [float(row["collect_s"]) / size for row in rows[1:]]


def slow_run(step_ms: float, lanes: int, size: int, rounds: int, *sampler: str) -> Any:
    """The configuration of a run of `rounds` rounds of `size` steps that wait `step_ms` each."""
    settings = [f"env.step_ms={step_ms}", f"sampler.lanes={lanes}", f"batch_size={size}", *sampler]
    settings += [f"total_steps={size * rounds}", f"algo.minibatch_size={size}", "algo.epochs=1"]
    quiet = ("eval.episodes=0", "checkpoint.every=null", "logger.progress=quiet")
    return compose(["env=slow", *settings, "algo.compile=false", *quiet])


if __name__ == "__main__":
    sys.exit(main())
