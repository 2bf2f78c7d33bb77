"""One PPO update: walle eager, compiled and with several learners; SB3; SBX; the floor.

    python benchmarks/learn.py --peers PEERS/bin/python --out learn.json
    python benchmarks/learn.py --minibatches 64 --widths 64 --repeats 5

20,000 rows, 10 epochs, actor and critic of 17 inputs and 6 actions, one core (`--learners k` cores
for k learners). All contestants of a case live side by side and take their turns one at a time, so
that what disturbs one disturbs all; compiling is over before the first turn. The floor is the
matrix products of the same gradient steps alone. The peers need an environment of their own
(benchmarks/requirements.txt); without `--peers` they are left out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORKER = ROOT / "benchmarks" / "learn_worker.py"
PEERS = ("sb3", "sbx")
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}


def main() -> int:
    """Measures every case, prints a table, writes JSON on request."""
    args = arguments()
    report: dict[str, Any] = {"provenance": provenance(), "cases": []}
    for width in args.widths:
        for minibatch in args.minibatches:
            case = measure(args, minibatch, width)
            report["cases"].append(case)
            print(table(case), flush=True)
    report["provenance"]["load_after"] = os.getloadavg()
    if args.out:
        args.out.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers", help="the python of an environment with SB3 and SBX")
    parser.add_argument("--minibatches", type=int, nargs="+", default=[64, 256, 1000, 4096])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--learners", type=int, nargs="*", default=[2])
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def provenance() -> dict[str, Any]:
    """Command, date and machine."""
    from walle.rundir import usable_cores

    lines = (
        Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    )
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    git = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": git.stdout.strip() or None,
        "python": platform.python_version(),
        "cpu": models[0] if models else platform.machine(),
        "usable_cores": usable_cores(),
        "load_before": os.getloadavg(),
    }


def contestants(args: argparse.Namespace, minibatch: int, width: int) -> list[dict[str, Any]]:
    """What takes part in a case."""
    same = {"minibatch": minibatch, "width": width, "samples": args.samples, "epochs": args.epochs}
    names = ["floor", "walle-eager", "walle-compiled", *(PEERS if args.peers else ())]
    single = [{"name": name, "system": name, "learners": 1, **same} for name in names]
    shared = [
        {"name": f"walle-{k}-learners", "system": "walle-learners", "learners": k, **same}
        for k in args.learners
        if minibatch % k == 0
    ]
    return single + shared


@contextmanager
def worker(args: argparse.Namespace, case: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A contestant's process, pinned to as many cores as it has learners."""
    from walle.rundir import usable_cores

    python = args.peers if case["system"] in PEERS else sys.executable
    cores = usable_cores()[: case["learners"]]
    process = subprocess.Popen(
        [python, str(WORKER), json.dumps(case)],
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    try:
        yield process
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait(timeout=30)


def heard(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of JSON that a contestant says."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise RuntimeError(f"{shlex.join(map(str, process.args[:2]))} ended with {process.wait()}")


def measure(args: argparse.Namespace, minibatch: int, width: int) -> dict[str, Any]:
    """Seconds an update of every contestant, turn by turn."""
    cases = contestants(args, minibatch, width)
    with ExitStack() as stack:
        processes, hello = [], []
        for case in cases:
            processes.append(stack.enter_context(worker(args, case)))
            hello.append(heard(processes[-1]))
        turns: list[list[dict[str, float]]] = [[] for _ in cases]
        for _ in range(args.repeats):
            for process, mine in zip(processes, turns, strict=True):
                assert process.stdin
                process.stdin.write("go\n")
                process.stdin.flush()
                mine.append(heard(process))
    steps = args.epochs * -(-args.samples // minibatch)
    results = {
        case["name"]: {**greeting, **summary(mine, steps)}
        for case, greeting, mine in zip(cases, hello, turns, strict=True)
    }
    ours = results["walle-compiled"]["median_s"]
    for result in results.values():
        result["times_walle_compiled"] = result["median_s"] / ours
    return {"minibatch": minibatch, "width": width, "steps": steps, "results": results}


def summary(turns: list[dict[str, float]], steps: int) -> dict[str, Any]:
    """Median, range, microseconds a step; and seconds of CPU, which others disturb less."""
    seconds = [turn["update_s"] for turn in turns]
    median = statistics.median(seconds)
    return {
        "seconds": seconds,
        "cpu_seconds": [turn["cpu_s"] for turn in turns],
        "cpu_median_s": statistics.median(turn["cpu_s"] for turn in turns),
        "median_s": median,
        "min_s": min(seconds),
        "max_s": max(seconds),
        "us_a_step": 1e6 * median / steps,
    }


def table(case: dict[str, Any]) -> str:
    """A case for people."""
    title = f"minibatch {case['minibatch']}, nets {case['width']}x{case['width']}"
    lines = [f"{title}: {case['steps']:,} steps", ""]
    lines.append(
        f"{'':>18}  {'update':>8}  {'range':>15}  {'a step':>9}  {'/ walle':>7}  {'CPU':>7}  set-up"
    )
    for name, r in case["results"].items():
        spread = f"{r['min_s']:.3f}-{r['max_s']:.3f} s"
        lines.append(
            f"{name:>18}  {r['median_s']:6.3f} s  {spread:>15}  {r['us_a_step']:6.0f} us  "
            f"{r['times_walle_compiled']:6.2f}x  {r['cpu_median_s']:5.3f} s  {r['setup_s']:.1f} s"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
