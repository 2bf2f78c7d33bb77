"""How far `walle plan` is from runs on simulated nodes of a Ray cluster, with delays between them.

    python benchmarks/plan_cluster.py [--nodes 3] [--per-node 16] [--delays-ms 0 50 200]

One short run with one sampler on this machine is measured first; the plan knows that run, the
number of nodes and the delay alone. Then a Ray cluster starts on this machine, a head without cores
and simulated nodes, and a run follows for each delay. A node waits for half of the delay when it is
called, and again before it answers, as a network with that latency would make it wait. Environments
wait 20 ms a step, so that simulated nodes can share this machine's cores. Printed are the seconds
of an iteration in lock-step, planned and measured, and errors above what the plan allows for.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.cluster import simulated, slow_run, started
from benchmarks.options import duration, parser_of, positive
from benchmarks.provenance import provenance, write_json
from walle.analysis.measuring.round_model import ERROR_SHARED, Costs, predict, read_costs
from walle.analysis.measuring.stats import Interval, mean_interval
from walle.analysis.runs import load
from walle.sampling.cluster import node
from walle.sampling.cluster.connection import Connection
from walle.system.machine import usable_cores
from walle.training import train

WARM_UP = 2


class DelayedNode(node.NodeSampling):
    """A node behind a slow network."""

    def __init__(self, latency_s: float) -> None:
        """Waits so long on each way."""
        super().__init__()
        self._latency_s = latency_s

    def collect(self, call: node.Call, snapshot: Any) -> Any:
        """See `NodeSampling.collect`."""
        time.sleep(self._latency_s)
        found = super().collect(call, snapshot)
        time.sleep(self._latency_s)
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the plan of each delay next to the run with that delay."""
    args = parsed(arguments)
    found: list[dict[str, Any]] = []
    report = {"provenance": provenance({}), "points": found}
    print(f"{'delay':>10}{'planned':>32}{'measured':>32}{'error':>8}")
    with tempfile.TemporaryDirectory() as name:
        short = run(Path(name) / "short", args, "sampler.n=1", "trace=true")
        costs = read_costs(load(short), WARM_UP)
        with simulated(args.nodes, args.per_node) as address:
            for delay_ms in args.delays_ms:
                planned_s = plan(costs, args, delay_ms)
                directory = Path(name) / f"{delay_ms:g}"
                with delayed(delay_ms / 2000):
                    run(directory, args, "sampler=ray", f"sampler.address={address}")
                rounds_s = load(directory).iterations["iteration_s"][WARM_UP:].to_numpy(float)
                took_s = mean_interval(rounds_s)
                error = planned_s.value / took_s.value - 1
                failed = "" if abs(error) <= ERROR_SHARED else "  more than allowed"
                print(
                    f"{f'{delay_ms:g} ms':>10}{text(planned_s):>32}{text(took_s):>32}"
                    f"{error:>+8.1%}{failed}",
                    flush=True,
                )
                found.append({"delay_ms": delay_ms, "planned_s": planned_s, "measured_s": took_s})
    within = sum(
        abs(f["planned_s"].value / f["measured_s"].value - 1) <= ERROR_SHARED for f in found
    )
    print(f"{within} of {len(found)} points within the errors that the plan allows for")
    write_json(args.json, report)
    return 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = parser_of(__doc__)
    parser.add_argument("--nodes", type=positive, default=3)
    parser.add_argument("--per-node", type=positive, default=16)
    parser.add_argument("--delays-ms", type=delay, nargs="+", default=[0.0, 50.0, 200.0])
    parser.add_argument("--step-ms", type=duration, default=20.0)
    parser.add_argument("--steps", type=positive, default=32, help="of each lane in a round")
    parser.add_argument("--rounds", type=positive, default=8, help="that count, of each run")
    return parser.parse_args(arguments)


def delay(text: str) -> float:
    """Milliseconds, 0 or more."""
    value = float(text)
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} must be from 0 to 1,000,000 ms")
    return value


def run(directory: Path, args: argparse.Namespace, *sampler: str) -> Path:
    """A run; the one with one sampler is short, since its rounds are long."""
    lanes = args.nodes * args.per_node
    size = lanes * args.steps
    alone = "sampler.n=1" in sampler
    rounds = WARM_UP + (2 if alone else args.rounds)
    nodes = () if alone else (f"sampler.per_node={args.per_node}",)
    train(slow_run(args.step_ms, lanes, size, rounds, *sampler, *nodes), directory)
    return directory


def plan(costs: Costs, args: argparse.Namespace, delay_ms: float) -> Interval:
    """The planned seconds of an iteration."""
    setup = replace(
        costs.measured,
        samplers=args.nodes * args.per_node,
        machines=args.nodes,
        cores=len(usable_cores()),
        latency_s=costs.measured.latency_s + delay_ms / 2000,
    )
    return predict(costs, setup).seconds()


@contextmanager
def delayed(latency_s: float) -> Iterator[None]:
    """Lets every node that begins in the body wait so long on each way."""
    start: Callable[..., Any] = lambda connection, there, cpus: started(  # noqa: E731
        connection._ray, DelayedNode, there.identity, cpus, latency_s
    )
    with patch.object(Connection, "start", start):
        yield


def text(interval: Interval) -> str:
    """`1.23 [1.2, 1.25] s`."""
    return f"{interval.value:.4g} [{interval.low:.4g}, {interval.high:.4g}] s"


if __name__ == "__main__":
    sys.exit(main())
