"""The cost of the launcher: seconds between two jobs, and a sweep of a thousand empty jobs.

    python benchmarks/launcher.py overhead [--jobs 6]
    python benchmarks/launcher.py many [--jobs 1000]

`overhead` sweeps short runs of walle one at a time, and measures from the end of one job's
function to the first environment step of the next. `many` compares the first tenth of the jobs with
the last: seconds a job, and the memory of the launcher and of the process that forks the jobs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

HERE = Path(__file__).resolve().parent
SHORT_RUN = (
    "env=gym",
    "env.id=launcher_app:Stamped-v0",
    "batch_size=256",
    "total_steps=512",
    "eval.episodes=0",
    "sampler=process",
    "logger.progress=quiet",
)


class Sample(NamedTuple):
    """Jobs ended so far, and resident megabytes of the launcher and of the forking process."""

    ended: int
    launcher_mb: float
    warm_mb: float


@contextmanager
def sweep(task: str, directory: Path, *overrides: str) -> Iterator[subprocess.Popen[bytes]]:
    """A context with a sweep in the background; it waits for the end of the sweep.

    Raises:
        RuntimeError: the sweep failed; the message holds its output.
    """
    path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    environ = os.environ | {
        "PYTHONPATH": path,
        "WALLE_BENCHMARK_STAMPS": str(directory / "stamps"),
    }
    command = [sys.executable, str(HERE / "launcher_app.py"), task, "-m", *overrides]
    command += [f"hydra.sweep.dir={directory / 'sweep'}"]
    with (directory / "output").open("w") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
    try:
        yield process
        if process.wait():
            raise RuntimeError((directory / "output").read_text())
    finally:
        process.terminate()
        process.wait()


def read_stamps(directory: Path) -> list[tuple[str, float]]:
    """The events and their times, in the order in which they were written."""
    file = directory / "stamps"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(event, float(seconds)) for event, _, seconds in (ln.partition(" ") for ln in lines)]


def gaps(stamps: list[tuple[str, float]]) -> list[float]:
    """The seconds from each end of a job to the next first step."""
    found, ended = [], None
    for event, seconds in sorted(stamps, key=lambda stamp: stamp[1]):
        if event == "end":
            ended = seconds
        elif ended is not None:
            found.append(seconds - ended)
            ended = None
    return found


def overhead(jobs: int, samplers: int) -> None:
    """Prints the seconds between the jobs of a sweep of short runs."""
    seeds = ",".join(map(str, range(jobs)))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        runs = (*SHORT_RUN, f"sampler.n={samplers}", f"seed={seeds}")
        with sweep("run", directory, *runs, "hydra.launcher.exclusive=true"):
            pass
        between = gaps(read_stamps(directory))
    print(f"{len(between)} gaps, n={samplers}: from the end of a job to the next one's first step")
    print(f"median {statistics.median(between):.2f} s, largest {max(between):.2f} s")


def many(jobs: int) -> None:
    """Prints time and memory over a sweep of jobs that do nothing."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        seeds = f"seed=range({jobs})"
        began = time.monotonic()
        core = f"hydra.launcher.cores=[{min(os.sched_getaffinity(0))}]"
        with sweep("nothing", directory, seeds, core) as process:
            samples = watch(process.pid, directory)
        whole_s = time.monotonic() - began
        ends = [seconds for _, seconds in read_stamps(directory)]
    report(samples, ends, whole_s)


def watch(pid: int, directory: Path) -> list[Sample]:
    """Samples of jobs and memory until the process ends."""
    samples = []
    while (launcher_mb := resident_mb(pid)) is not None:
        children = psutil.Process(pid).children()
        warm_mb = resident_mb(children[0].pid) if children else None
        if warm_mb is not None:
            samples.append(Sample(len(read_stamps(directory)), launcher_mb, warm_mb))
        time.sleep(0.5)
    return samples


def resident_mb(pid: int) -> float | None:
    """Resident memory of a process in MB; None once it has ended."""
    try:
        return psutil.Process(pid).memory_info().rss / 2**20 or None
    except psutil.NoSuchProcess:
        return None


def report(samples: list[Sample], ends: list[float], whole_s: float) -> None:
    """Prints the first tenth of the jobs beside the last."""
    tenth = max(1, len(ends) // 10)
    first_s = (ends[tenth] - ends[0]) / tenth
    last_s = (ends[-1] - ends[-1 - tenth]) / tenth
    early = next(sample for sample in samples if sample.ended >= tenth)
    late = samples[-1]
    print(f"{len(ends)} jobs in {whole_s:.1f} s")
    print(f"{'':24}{'first tenth':>12}{'last tenth':>12}")
    print(f"{'seconds a job':24}{first_s:12.4f}{last_s:12.4f}")
    print(f"{'launcher, MB':24}{early.launcher_mb:12.1f}{late.launcher_mb:12.1f}")
    print(f"{'forking process, MB':24}{early.warm_mb:12.1f}{late.warm_mb:12.1f}")


def main() -> None:
    """Reads the command line and runs the chosen benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for what, jobs in (("overhead", 6), ("many", 1000)):
        command = commands.add_parser(what)
        command.add_argument("--jobs", type=int, default=jobs)
        if what == "overhead":
            command.add_argument("--samplers", type=int, default=2)
    asked = parser.parse_args()
    if asked.what == "overhead":
        overhead(asked.jobs, asked.samplers)
    else:
        many(asked.jobs)


if __name__ == "__main__":
    main()
