"""The time until N samplers deliver their first round, and the memory that each adds.

    python benchmarks/startup.py [--samplers 16] [--cores 2] [--env HalfCheetah-v5]

The benchmark starts `python -m walle.run` with one sampler and with many. The run's files hold the
time at which the first round had arrived. /proc holds the private memory of the samplers and of the
whole run (PSS: a page shared by k processes counts 1/k in each). The memory of a sampler is the
difference of both runs divided by the difference of their samplers.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.options import core_count, positive
from benchmarks.programs import Program, read_csv, walle_run
from benchmarks.provenance import provenance, write_json

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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samplers", type=positive, default=16)
    parser.add_argument("--cores", type=core_count, default=2)
    parser.add_argument("--env", default="HalfCheetah-v5", help="any id that env=gym takes")
    parser.add_argument("--repetitions", type=positive, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: args.cores]
    report: dict[str, Any] = {"provenance": provenance({}), "cores": cores}
    few = measure(1, args.env, cores)
    many = [measure(args.samplers, args.env, cores) for _ in range(args.repetitions)]
    for found in (few, *many):
        print(describe(found))
    added = [(m.pss_of_all_mib - few.pss_of_all_mib) / (args.samplers - 1) for m in many]
    print(f"one more sampler adds {min(added):.0f} to {max(added):.0f} MiB (PSS of the whole run)")
    report["runs"] = [found._asdict() for found in (few, *many)]
    report["added_mib"] = added
    write_json(args.json, report)
    return 0


def describe(found: Found) -> str:
    """A line about a run."""
    return (
        f"{found.samplers:>3} samplers: first round after {found.first_round_s:.2f} s; a sampler "
        f"has {found.pss_per_sampler_mib:.0f} MiB PSS, {found.unshared_per_sampler_mib:.0f} MiB "
        f"unshared; the whole run {found.pss_of_all_mib:.0f} MiB PSS"
    )


def measure(samplers: int, env_id: str, cores: list[int]) -> Found:
    """Starts a run, measures it after its first round, and ends it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        command = walle_run(settings(samplers, env_id), directory)
        program = Program(command, cores, threads=None)
        begin = time.monotonic()
        run = program.start(directory / "stdout", directory / "stderr")
        try:
            row = first_round(run, directory)
            # The row is written after learning from the round, so learning is subtracted.
            first_round_s = time.monotonic() - begin - float(row["learn_s"])
            os.killpg(run.pid, signal.SIGSTOP)
            return looked_at(run.pid, samplers, first_round_s)
        finally:
            with contextlib.suppress(ProcessLookupError):  # the run may have ended by itself
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def settings(samplers: int, env_id: str) -> dict[str, object]:
    """The settings of a run with rounds of 2,048 steps that never ends by itself."""
    return {
        "env": "gym",
        "env.id": env_id,
        "sampler.n": samplers,
        "total_steps": 10**12,
        "eval.every": "null",
        "checkpoint.every": "null",
    }


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
    family = descendants(pid)
    memory = {member: smaps(member) for member in family}
    # The samplers are children of the fork server; the agent's children only help.
    grown = [member for member in family if parent(member) not in (pid, os.getpid())]
    assert len(grown) == samplers, f"{len(grown)} samplers found instead of {samplers}"
    return Found(
        first_round_s,
        samplers,
        sum(memory[member]["Pss"] for member in grown) / samplers,
        sum(memory[member]["Private_Dirty"] + memory[member]["Private_Clean"] for member in grown)
        / samplers,
        sum(found["Pss"] for found in memory.values()),
    )


def descendants(pid: int) -> list[int]:
    """The process itself and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(member for child in children for member in descendants(int(child)))]


def parent(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def smaps(pid: int) -> dict[str, float]:
    """The kinds of a process's memory in mebibytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}


if __name__ == "__main__":
    sys.exit(main())
