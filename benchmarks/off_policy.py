"""Off-policy updates a second: walle eager and compiled, SB3, SBX, the floor; and whole runs.

    python benchmarks/off_policy.py --peers PEERS/bin/python --out off_policy.json
    python benchmarks/off_policy.py --peers PEERS/bin/python --end-to-end 100000

Networks of 256x256, minibatches of 256 transitions of 17 observations and 6 actions, on as many
cores as threads. All contestants of a case live side by side and take their turns one at a time, so
that what disturbs one disturbs all; compiling is over before the first turn. The floor is the
products of hidden layers alone. With `--end-to-end` SAC is trained on HalfCheetah from start to
end, start-up and compiling included, by walle and by SB3, who take turns of some seconds. The peers
need an environment of their own (benchmarks/requirements.txt); without `--peers` they are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.learn import ONE_THREAD, PEERS, ROOT, heard, provenance
from walle.rundir import usable_cores

WORKER = ROOT / "benchmarks" / "off_policy_worker.py"
OWN = ("floor", "walle-eager", "walle-compiled")
ENV, STARTS = "HalfCheetah-v5", 5_000
TURN_S = 10.0


def main() -> int:
    """Measures, prints tables, writes JSON on request."""
    args = arguments()
    report: dict[str, Any] = {"provenance": provenance(), "cases": []}
    if args.end_to_end:
        report["end_to_end"] = whole_runs(args)
        print(race_table(report["end_to_end"]), flush=True)
    else:
        for threads in args.threads:
            for algorithm in args.algorithms:
                report["cases"].append(measure(args, algorithm, threads))
                print(table(report["cases"][-1]), flush=True)
    report["provenance"]["load_after"] = os.getloadavg()
    if args.out:
        args.out.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--peers", help="the python of an environment with SB3 and SBX")
    parser.add_argument("--algorithms", nargs="+", default=["sac", "td3"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--minibatch", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--updates", type=int, default=256, help="of a turn")
    parser.add_argument("--at-once", type=int, default=64, help="updates a call of the peers takes")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--end-to-end", type=int, metavar="STEPS", help="train instead, so far")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def environ(threads: int) -> dict[str, str]:
    """Limits for every library that has one."""
    limits = {name: str(threads) for name in ONE_THREAD if name.endswith("_THREADS")}
    if threads == 1:
        limits["XLA_FLAGS"] = ONE_THREAD["XLA_FLAGS"]
    return {**os.environ, **limits, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


@contextmanager
def worker(python: str, case: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A contestant's process, on as many cores as it has threads."""
    cores = usable_cores()[: case["threads"]]
    process = subprocess.Popen(
        [python, "-W", "ignore", str(WORKER), json.dumps(case)],
        env=environ(case["threads"]),
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


def measure(args: argparse.Namespace, algorithm: str, threads: int) -> dict[str, Any]:
    """Updates a second of every contestant, turn by turn."""
    wanted = ("minibatch", "width", "updates", "at_once")
    same = {"algorithm": algorithm, "threads": threads, **{k: getattr(args, k) for k in wanted}}
    names = [*OWN, *(PEERS if args.peers else ())]
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with ExitStack() as stack:
        processes, hello = {}, {}
        for name in names:
            python = args.peers if name in PEERS else sys.executable
            process = stack.enter_context(worker(python, {**same, "system": name}))
            processes[name], hello[name] = process, heard(process)
        for _ in range(args.repeats):
            for name, process in processes.items():
                assert process.stdin
                process.stdin.write("go\n")
                process.stdin.flush()
                turns[name].append(heard(process))
    results = {name: {**hello[name], **summary(turns[name], args.updates)} for name in names}
    for result in results.values():
        result["walle_times"] = results["walle-compiled"]["per_s"] / result["per_s"]
    return {**same, "results": results}


def summary(turns: list[dict[str, float]], updates: int) -> dict[str, Any]:
    """Updates a second: of the median turn, the slowest and the fastest."""
    seconds = [turn["update_s"] for turn in turns]
    return {
        "seconds": seconds,
        "cpu_seconds": [turn["cpu_s"] for turn in turns],
        "per_s": updates / statistics.median(seconds),
        "slowest_per_s": updates / max(seconds),
        "fastest_per_s": updates / min(seconds),
    }


def table(case: dict[str, Any]) -> str:
    """A case for people."""
    nets = f"nets {case['width']}x{case['width']}"
    lines = [
        f"{case['algorithm']}, minibatch {case['minibatch']}, {nets}, {case['threads']} thread(s): "
        "updates a second",
        "",
        f"{'':>16}  {'median':>7}  {'range':>13}  walle is  set-up",
    ]
    for name, r in case["results"].items():
        spread = f"{r['slowest_per_s']:.0f}-{r['fastest_per_s']:.0f}"
        lines.append(
            f"{name:>16}  {r['per_s']:7.1f}  {spread:>13}  {r['walle_times']:7.2f}x  "
            f"{r['setup_s']:.1f} s"
        )
    return "\n".join([*lines, ""])


def whole_runs(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds from start to end of walle's run and of SB3's, in turns."""
    threads = max(args.threads)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        commands = {"walle": walle_command(args.end_to_end, threads, Path(scratch) / "run")}
        if args.peers:
            commands["sb3"] = sb3_command(args, threads)
        processes = {}
        for name, command in commands.items():
            processes[name] = stack.enter_context(paused(command, threads, Path(scratch) / name))
        seconds = take_turns(processes)
        rows = (Path(scratch) / "run" / "iterations.csv").read_text().splitlines()
        steps, return_mean = (
            rows[-1].split(",")[rows[0].split(",").index(c)] for c in ("env_steps", "return_mean")
        )
        found: dict[str, Any] = {"steps": int(steps), "threads": threads, "seconds": seconds}
        found["return_mean"] = {"walle": float(return_mean)}
        if args.peers:
            told = json.loads((Path(scratch) / "sb3").read_text().splitlines()[-1])
            found["return_mean"]["sb3"] = told["return_mean"]
    return found


def walle_command(steps: int, threads: int, directory: Path) -> list[str]:
    """A run as a user would start it."""
    settings = {
        "algo": "sac",
        "env": "halfcheetah",
        "algo.learning_starts": STARTS,
        "total_steps": steps,
        "learner.threads": threads,
        "eval.every": "null",
        "logger.progress": "quiet",
        "hydra.run.dir": directory,
    }
    return [sys.executable, "-m", "walle.run", *(f"{k}={v}" for k, v in settings.items())]


def sb3_command(args: argparse.Namespace, threads: int) -> list[str]:
    """The same task and steps."""
    case = {
        "system": "sb3-run",
        "algorithm": "sac",
        "env": ENV,
        "steps": args.end_to_end,
        "learning_starts": STARTS,
        "threads": threads,
    }
    return [args.peers, "-W", "ignore", str(WORKER), json.dumps(case)]


@contextmanager
def paused(command: list[str], threads: int, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own, stopped as soon as it began; ended after the body."""
    with out.open("wb") as file:
        process = subprocess.Popen(
            command, env=environ(threads), cwd=ROOT, stdout=file, start_new_session=True
        )
    try:
        os.killpg(process.pid, signal.SIGSTOP)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def take_turns(processes: dict[str, subprocess.Popen[bytes]]) -> dict[str, float]:
    """Lets each go on for a while in turn until all have ended; the seconds that each had."""
    seconds = dict.fromkeys(processes, 0.0)
    running = dict(processes)
    while running:
        for name, process in list(running.items()):
            begin = time.monotonic()
            os.killpg(process.pid, signal.SIGCONT)
            try:
                code = process.wait(TURN_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGSTOP)
            else:
                del running[name]
                if code:
                    raise SystemExit(f"{name} ended with {code}")
            seconds[name] += time.monotonic() - begin
    return seconds


def race_table(found: dict[str, Any]) -> str:
    """Whole runs for people."""
    ours = found["seconds"]["walle"]
    lines = [f"SAC, {ENV}, {found['steps']:,} steps, {found['threads']} thread(s), start to end"]
    for name, seconds in found["seconds"].items():
        returned = found["return_mean"][name]
        lines.append(
            f"{name:>16}  {seconds:7.1f} s  {seconds / ours:5.2f}x  mean return {returned:,.0f}"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
