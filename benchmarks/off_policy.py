"""Off-policy updates a second: walle eager, compiled, with learners; SB3; SBX; products; runs.

    python benchmarks/off_policy.py --peers PEERS/bin/python --json off_policy.json
    python benchmarks/off_policy.py --peers PEERS/bin/python --end-to-end 100000
    python benchmarks/off_policy.py --learners 2 --algorithms sac --only walle-compiled walle-2

Networks of 256x256, minibatches of 256 transitions of 17 observations and 6 actions, on as many
cores as threads. With `--learners k` one learner takes minibatches of k shards, and k learners do
so on k times as many cores. XQC's peer is SBX's CrossQ, and SB3 is left out. All contestants of a
case exist at the same time and take turns, so that a disturbance of the machine affects all;
compiling ends before the first turn; a ratio is that of a turn, of which the table has the median
and the range. `mkl` is the products of hidden layers alone. With `--end-to-end` SAC is trained
on HalfCheetah from start to end, start-up and compiling included, by walle and by SB3, which take
turns of some seconds. The peers need a separate environment (benchmarks/requirements.txt);
without `--peers` they are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.answers import PEERS, Contestant, answering, asked, contestants, limits
from benchmarks.options import add_peers, parser_of, positive
from benchmarks.programs import Program, read_csv, running, signal_all, walle_run
from benchmarks.provenance import ROOT, provenance, why_absent, write_json
from benchmarks.ratios import add_ratios, shown
from walle.config import compose
from walle.system.machine import usable_cores

WORKER = ROOT / "benchmarks" / "off_policy_worker.py"
BASELINE = "walle-compiled"
UNIT = "times_walle"
OWN = [Contestant(name, name) for name in ("mkl", "walle-eager", BASELINE)]
ENV, STARTS = "HalfCheetah-v5", 5_000
TURN_S = 10.0
ON_PATH = {"PYTHONPATH": str(ROOT)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints tables, writes JSON on request."""
    args = arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the contestants keep running
    report: dict[str, Any] = {"provenance": provenance({"peers": args.peers}), "cases": []}
    if args.end_to_end:
        report["end_to_end"] = whole_runs(args)
        print(race_table(report["end_to_end"]), flush=True)
        write_json(args.json, report)
        return 0
    taking_part = contestants(args, OWN, BASELINE)
    for threads in args.threads:
        for algorithm in args.algorithms:
            report["cases"].append(measure(args, taking_part, algorithm, threads))
            print(table(report["cases"][-1]), flush=True)
            write_json(args.json, report)
    return 0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = parser_of(__doc__)
    add_peers(parser, "SB3 and SBX")
    names = ["sac", "td3", "xqc"]
    parser.add_argument("--algorithms", nargs="+", default=names, choices=names)
    parser.add_argument("--threads", type=positive, nargs="+", default=[1])
    parser.add_argument("--learners", type=positive, nargs="*", default=[2])
    parser.add_argument("--minibatch", type=positive, default=256)
    parser.add_argument("--width", type=positive, default=256)
    parser.add_argument("--updates", type=positive, default=192, help="of a turn")
    parser.add_argument("--at-once", type=positive, default=64, help="of a call of the peers")
    parser.add_argument("--repeats", type=positive, default=5)
    parser.add_argument("--end-to-end", type=positive, metavar="STEPS", help="train instead")
    args = parser.parse_args(argv)
    delays = (getattr(compose([f"algo={a}"]).algo, "policy_delay", 1) for a in args.algorithms)
    unit = math.lcm(args.at_once, *delays)
    if args.updates % unit:
        parser.error(f"--updates {args.updates} must be a multiple of {unit}: whole calls only")
    return args


def measure(
    args: argparse.Namespace, taking_part: Sequence[Contestant], algorithm: str, threads: int
) -> dict[str, Any]:
    """The updates a second of every contestant in every turn."""
    wanted = ("minibatch", "width", "updates", "at_once")
    same = {"algorithm": algorithm, "threads": threads, **{k: getattr(args, k) for k in wanted}}
    turns: dict[str, list[dict[str, float]]] = {each.name: [] for each in taking_part}
    with ExitStack() as stack:
        processes, hello = {}, {}
        for each in taking_part:
            if (algorithm, each.system) == ("xqc", "sb3"):
                continue  # it has neither XQC nor CrossQ
            python = args.peers if each.system in PEERS else sys.executable
            cores = each.learners * threads
            process = stack.enter_context(answering(python, WORKER, cores, threads))
            hello[each.name] = asked(process, json.dumps({**same, **each._asdict()}))
            processes[each.name] = process
        for _ in range(args.repeats):
            for name, process in processes.items():
                turns[name].append(asked(process, "go"))
    results = {name: {**hello[name], **summary(turns[name], args.updates)} for name in processes}
    add_ratios(results, {BASELINE: UNIT})
    return {**same, "results": results}


def summary(turns: list[dict[str, float]], updates: int) -> dict[str, Any]:
    """The updates a second of the median, the slowest and the fastest turn."""
    seconds = [turn["update_s"] for turn in turns]
    return {
        "seconds": seconds,
        "cpu_seconds": [turn["cpu_s"] for turn in turns],
        "per_s": updates / statistics.median(seconds),
        "slowest_per_s": updates / max(seconds),
        "fastest_per_s": updates / min(seconds),
    }


def table(case: dict[str, Any]) -> str:
    """The table of a case."""
    nets = f"nets {case['width']}x{case['width']}"
    lines = [
        f"{case['algorithm']}, minibatch {case['minibatch']}, {nets}, {case['threads']} thread(s): "
        "updates a second",
        "",
        f"{'':>19}  {'median':>7}  {'range':>13}  {'walle is (range)':>18}  set-up",
    ]
    for name, r in case["results"].items():
        span = f"{r['slowest_per_s']:.0f}-{r['fastest_per_s']:.0f}"
        lines.append(
            f"{name:>19}  {r['per_s']:7.1f}  {span:>13}  {shown(r, UNIT):>18}  {r['setup_s']:.1f} s"
        )
    return "\n".join([*lines, ""])


def whole_runs(args: argparse.Namespace) -> dict[str, Any]:
    """The seconds of walle's run and of SB3's run, which take turns."""
    threads = max(args.threads)
    cores = usable_cores()[:threads]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        scratch = Path(name)
        settings = {
            "algo": "sac",
            "env": "halfcheetah",
            "net.activation": "relu",
            "algo.normalize_rewards": "false",
            "algo.learning_starts": STARTS,
            "sampler.n": threads,
            "learner.threads": threads,
            "total_steps": args.end_to_end,
            "eval.episodes": "0",
        }
        programs = {"walle": Program(walle_run(settings, scratch), cores, threads)}
        reason = why_absent(args.peers, (PEERS["sb3"],), "--peers")
        if reason:
            print(f"sb3: left out, {reason}", flush=True)
        else:
            case = {"algorithm": "sac", "env": ENV, "steps": args.end_to_end, "threads": threads}
            words = json.dumps({**case, "learning_starts": STARTS})
            sb3 = [args.peers, "-W", "ignore", str(WORKER), words]
            programs["sb3"] = Program(sb3, cores, threads, {**limits(threads), **ON_PATH})
        seconds = take_turns(
            {
                name: stack.enter_context(paused(program, scratch / f"{name}.output"))
                for name, program in programs.items()
            }
        )
        last = read_csv(scratch / "run" / "iterations.csv")[-1]
        ours = last["return_mean"]
        returns: dict[str, float | None] = {"walle": float(ours) if ours else None}
        if "sb3" in programs:
            said = (scratch / "sb3.output" / "stdout").read_text().splitlines()[-1]
            returns["sb3"] = json.loads(said)["return_mean"]
    steps = int(last["env_steps"])
    return {"steps": steps, "threads": threads, "seconds": seconds, "return_mean": returns}


@contextmanager
def paused(program: Program, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A context with a program that is paused from its start, and ends after the body."""
    directory.mkdir()
    with running(program, directory) as process:
        signal_all(process, signal.SIGSTOP)
        yield process


def take_turns(processes: Mapping[str, subprocess.Popen[bytes]]) -> dict[str, float]:
    """Resumes each program in turn until all have ended; returns the seconds of each."""
    seconds = dict.fromkeys(processes, 0.0)
    running = dict(processes)
    while running:
        for name, process in list(running.items()):
            begin = time.monotonic()
            signal_all(process, signal.SIGCONT)
            try:
                code = process.wait(TURN_S)
            except subprocess.TimeoutExpired:
                signal_all(process, signal.SIGSTOP)
            else:
                del running[name]
                if code:
                    raise SystemExit(f"{name} ended with {code}")
            seconds[name] += time.monotonic() - begin
    return seconds


def race_table(found: dict[str, Any]) -> str:
    """The table of whole runs."""
    ours = found["seconds"]["walle"]
    lines = [f"SAC, {ENV}, {found['steps']:,} steps, {found['threads']} thread(s), start to end"]
    for name, seconds in found["seconds"].items():
        mean = found["return_mean"][name]
        returned = "no episode ended" if mean is None else f"mean return {mean:,.0f}"
        lines.append(f"{name:>16}  {seconds:7.1f} s  {seconds / ours:5.2f}x  {returned}")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
