"""The state of a sweep: `python -m walle.sweep status [DIR]`, and `index [DIR]`."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from walle.launcher.records import (
    INDEX,
    MANIFEST,
    has_launcher,
    job_label,
    read_manifest,
    read_progress,
    resume_text,
    write_index,
)
from walle.launcher.screen import Row, job_table
from walle.launcher.workers.submission import WorkerStatus, worker_status
from walle.system.format import ranges_text
from walle.system.run_files import read_status
from walle.system.signals import standard_output


def job_rows(sweep: Path, workers: WorkerStatus | None = None) -> list[Row]:
    """Reads the state and the progress of every job of the sweep.

    A job in state `running` is shown as `lost` when the launcher or worker that ran it is gone.
    Raises `ValueError` if the directory holds no sweep.
    """
    manifest, launcher = read_manifest(sweep), has_launcher(sweep)
    held = (worker_status(sweep) if workers is None else workers).alive
    rows = []
    for job in manifest.jobs:
        status = read_status(sweep / job.directory)
        progress = read_progress(sweep / job.directory)
        state, alive = status.get("state", "pending"), held.get(job.identity.num, launcher)
        remaining_s = None
        if state == "running" and alive is False:
            state = "lost"
        elif state == "running":
            remaining_s = progress.remaining_s(job.identity.config.get("total_steps"))
        label = job_label(job.identity.overrides, manifest.swept)
        cores = ranges_text(status.get("cores") or [])
        rows.append(Row(job.identity.num, label, cores, state, progress, remaining_s))
    return rows


def show_status(sweep: Path) -> None:
    """Prints the table of the sweep's jobs, the workers, and how to resume the sweep."""
    from rich.console import Console

    manifest, workers = read_manifest(sweep), worker_status(sweep)
    jobs = job_rows(sweep, workers)
    Console().print(job_table(jobs))
    states = Counter(job.state for job in jobs).most_common()
    print(f"{sweep}: {', '.join(f'{count} {state}' for state, count in states)}")
    if workers.text:
        print(workers.text)
    if not (workers.left or has_launcher(sweep)) and any(job.state != "completed" for job in jobs):
        here = os.getcwd()
        where = manifest.launches[-1].get("directory") if manifest.launches else here
        advice = resume_text(manifest)
        print(advice if where == here else f"{advice} (in {where})")


def newest_sweep(root: Path) -> Path:
    """The sweep below `root` that was started or resumed last; `ValueError` if there is none."""
    sweeps = [path.parent for path in root.rglob(MANIFEST)]
    if not sweeps:
        raise ValueError(f"there is no sweep below {root}/; give the directory of one")
    return max(sweeps, key=lambda sweep: (sweep / MANIFEST).stat().st_mtime)


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="walle sweep", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("status", "print the table of a running or ended sweep"),
        ("index", "rebuild index.csv from the jobs' files"),
    ):
        command = commands.add_parser(name, help=what)
        about = "of the sweep, such as multirun/NAME (default: the newest below multirun/)"
        command.add_argument("directory", type=Path, nargs="?", help=about)
    parsed = parser.parse_args(arguments)
    try:
        with standard_output():
            sweep = parsed.directory or newest_sweep(Path("multirun"))
            if parsed.command == "status":
                show_status(sweep)
            else:
                print(f"{sweep / INDEX}: {len(write_index(sweep).jobs)} jobs")
    except (ValueError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError) and parsed.command == "index":
            text = f"cannot write {sweep / INDEX}: {error.strerror}"
        print(f"walle sweep: {text}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
