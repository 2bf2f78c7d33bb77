"""The time and the memory to load a sweep of 1,000 runs of 500 iterations.

    python benchmarks/load.py [--runs 1000] [--iterations 500] [--tables iterations timing ...]

The files are written first, with the columns of real runs; then each table is loaded in a fresh
process pinned to one core, so that its peak memory can be measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = {
    "iterations": (
        "iteration env_steps episodes wall_s iteration_s collect_s collect_max_s learn_s other_s "
        "compile_s collect_share learn_share env_steps_per_s policy_version lag_mean lag_max "
        "faults return_mean return_round_mean return_round_min return_round_max return_round_std "
        "length_mean loss grad_norm kl clip_fraction policy_loss value_loss entropy "
        "explained_variance learning_rate gradient_steps"
    ),
    "episodes": ("env_steps wall_s sampler lane policy_version return length end"),
    "timing": (
        "process iteration act_s env_step_s send_s wait_policy_s wait_slot_s wait_experience_s "
        "update_s publish_s evaluate_s checkpoint_s callbacks_s log_s compile_s other_s total_s"
    ),
}
SAMPLERS = (1, 2, 4, 8, 16)
CHILD = """
import resource, sys, time
start = time.monotonic()
from walle.analysis.runs import load
imported = time.monotonic()
rows = len(load(sys.argv[1]).table(sys.argv[2]))
loaded = time.monotonic()
print(rows, imported - start, loaded - imported, time.process_time(),
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def main() -> int:
    """Writes the sweep, loads it, prints time and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--tables", nargs="+", default=["iterations", "episodes", "timing"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sweep = Path(directory) / "sweep"
        started = time.monotonic()
        size = write_sweep(sweep, args.runs, args.iterations, args.tables)
        print(f"{args.runs} runs of {args.iterations} iterations, {size / 2**20:.0f} MiB, ", end="")
        print(f"written in {time.monotonic() - started:.0f} s")
        for table in args.tables:
            print(f"{table:>12}: {measure(sweep, table)}")
    return 0


def measure(sweep: Path, table: str) -> str:
    """Loads one table in a separate process on one core."""
    core = min(os.sched_getaffinity(0))
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(sweep), table],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    rows, import_s, load_s, cpu_s, peak_mib = (float(word) for word in run.stdout.split())
    return (
        f"{rows:,.0f} rows in {load_s:.1f} s (and {import_s:.1f} s of imports; "
        f"{cpu_s:.1f} s of CPU in all), peak {peak_mib:.0f} MiB"
    )


def write_sweep(sweep: Path, runs: int, iterations: int, tables: list[str]) -> int:
    """Writes the runs; returns the bytes of their tables."""
    rng = np.random.default_rng(0)
    total = 0
    for number in range(runs):
        run, n = sweep / str(number), SAMPLERS[number % len(SAMPLERS)]
        run.mkdir(parents=True)
        config = {"seed": number // len(SAMPLERS), "sampler": {"n": n, "max_lag": 0}}
        (run / "run.json").write_text(json.dumps({"config": config, "physical_cores": 16}))
        (run / "status.json").write_text(json.dumps({"state": "completed"}))
        total += write_csv(run / "iterations.csv", iteration_rows(iterations, rng))
        if "episodes" in tables:
            total += write_csv(run / "episodes.csv", episode_rows(2 * iterations, rng))
        if "timing" in tables:
            total += write_csv(run / "timing.csv", timing_rows(iterations, n, rng))
    return total


def iteration_rows(iterations: int, rng: np.random.Generator) -> list[list[Any]]:
    """The header and one row an iteration, numbers as long as real ones."""
    values = rng.random((iterations, len(COLUMNS["iterations"].split()) - 1)).tolist()
    return [COLUMNS["iterations"].split(), *([i + 1, *row] for i, row in enumerate(values))]


def episode_rows(episodes: int, rng: np.random.Generator) -> list[list[Any]]:
    """The header and one row an episode."""
    values = rng.random((episodes, len(COLUMNS["episodes"].split()) - 1)).tolist()
    return [COLUMNS["episodes"].split(), *([*row, "truncated"] for row in values)]


def timing_rows(iterations: int, n: int, rng: np.random.Generator) -> list[list[Any]]:
    """The header and a row for the agent and every sampler in each iteration."""
    processes = ["agent", *(f"sampler-{k}" for k in range(n))]
    values = rng.random((len(processes), len(COLUMNS["timing"].split()) - 2)).tolist()
    return [
        COLUMNS["timing"].split(),
        *(
            [process, i + 1, *row]
            for i in range(iterations)
            for process, row in zip(processes, values, strict=True)
        ),
    ]


def write_csv(path: Path, rows: list[list[Any]]) -> int:
    """Writes the rows; returns the bytes."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path.stat().st_size


if __name__ == "__main__":
    sys.exit(main())
