"""The time until N samplers deliver their first round, and the memory that each adds.

    python benchmarks/startup.py [--samplers 16] [--cores 2] [--env HalfCheetah-v5]

The benchmark starts `python -m walle.run` with one sampler and with many. The run's files hold the
time at which the first round had arrived. /proc holds the private memory of the samplers and of the
whole run (PSS: a page shared by k processes counts 1/k in each). The memory of a sampler is the
difference of both runs divided by the difference of their samplers.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.lineup import default_walle
from benchmarks.options import core_count, parser_of, positive
from benchmarks.programs import Program, read_csv, running, signal_all, walle_run
from benchmarks.provenance import provenance, write_json
from walle.system.machine import usable_cores

LIMIT_S = 120


class Found(NamedTuple):
    """The measurements of a run in seconds and mebibytes."""

    first_round_s: float
    samplers: int
    pss_per_sampler_mib: float
    unshared_per_sampler_mib: float
    pss_of_all_mib: float


def main() -> int:
    """Starts one run with one sampler, and one with many."""
    parser = parser_of(__doc__)
    parser.add_argument("--samplers", type=several, default=16)
    parser.add_argument("--cores", type=core_count, default=2)
    parser.add_argument("--env", default="HalfCheetah-v5", help="any id that env=gym takes")
    parser.add_argument("--repetitions", type=positive, default=3)
    args = parser.parse_args()
    cores = usable_cores()[: args.cores]
    report: dict[str, Any] = {"provenance": provenance({}), "cores": cores}
    few = measure(1, args.env, cores)
    many = [measure(args.samplers, args.env, cores) for _ in range(args.repetitions)]
    for found in (few, *many):
        print(
            f"{found.samplers:>3} samplers: first round after {found.first_round_s:.2f} s; a "
            f"sampler has {found.pss_per_sampler_mib:.0f} MiB PSS, "
            f"{found.unshared_per_sampler_mib:.0f} MiB unshared; the whole run "
            f"{found.pss_of_all_mib:.0f} MiB PSS"
        )
    added = [(m.pss_of_all_mib - few.pss_of_all_mib) / (args.samplers - 1) for m in many]
    print(f"one more sampler adds {min(added):.0f} to {max(added):.0f} MiB (PSS of the whole run)")
    report["runs"] = [found._asdict() for found in (few, *many)]
    report["added_mib"] = added
    write_json(args.json, report)
    return 0


def several(text: str) -> int:
    """Parses a number of samplers that can be compared with one."""
    number = int(text)
    if number < 2:
        raise argparse.ArgumentTypeError(f"{number} must be 2 at least")
    return number


def measure(samplers: int, env_id: str, cores: list[int]) -> Found:
    """Starts a run, measures it after its first round, and ends it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        # A run that never ends by itself.
        settings = default_walle(env_id, 10**12, samplers, max_lag=0, seed=0)
        settings |= {"eval.episodes": "0", "checkpoint.every": "null"}
        program = Program(walle_run(settings, directory), cores, threads=None)
        begin = time.monotonic()
        with running(program, directory) as run:
            row = first_round(run, directory)
            # The row is written after learning from the round, so learning is subtracted.
            first_round_s = time.monotonic() - begin - float(row["learn_s"])
            signal_all(run, signal.SIGSTOP)
            return looked_at(run.pid, samplers, first_round_s)


def first_round(run: subprocess.Popen[bytes], directory: Path) -> dict[str, str]:
    """Waits for the first row of the run's files."""
    deadline = time.monotonic() + LIMIT_S
    while not (rows := read_csv(directory / "run" / "iterations.csv")):
        if run.poll() is not None or time.monotonic() > deadline:
            words = (directory / "stderr").read_text()[-2000:]
            raise SystemExit(f"no round within {LIMIT_S} s; exit code {run.poll()}\n{words}")
        time.sleep(0.005)
    return rows[0]


def looked_at(pid: int, samplers: int, first_round_s: float) -> Found:
    """The memory of the process `pid` and its descendants."""
    run = psutil.Process(pid)
    memory = {member: member.memory_full_info() for member in run.children(recursive=True)}
    # The samplers are children of the fork server; the agent's children only help.
    grown = [found for member, found in memory.items() if member.ppid() != pid]
    assert len(grown) == samplers, f"{len(grown)} samplers found instead of {samplers}"
    all_pss = run.memory_full_info().pss + sum(found.pss for found in memory.values())
    each_pss, each_uss = (
        sum(getattr(m, kind) for m in grown) / samplers for kind in ("pss", "uss")
    )
    return Found(first_round_s, samplers, *(size / 2**20 for size in (each_pss, each_uss, all_pss)))


if __name__ == "__main__":
    sys.exit(main())
