"""The state of a sweep: `python -m walle.sweep status [DIR]`, and `index [DIR]`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from walle.launcher.lock import has_launcher
from walle.launcher.records import (
    INDEX,
    MANIFEST,
    JobRecord,
    read_manifest,
    read_progress,
    resume_command,
    write_index,
)
from walle.launcher.screen import Row, job_table
from walle.launcher.texts import job_label, resume_text, states_text
from walle.launcher.workers.overview import Overview, overview
from walle.system.format import ranges_text
from walle.system.run_files import read_status
from walle.system.signals import reader_may_leave

BAD_INPUT = 2


def job_rows(sweep: Path, workers: Overview | None = None) -> list[Row]:
    """Reads the state and the progress of every job of the sweep.

    A job in state `running` is shown as `lost` when neither a launcher nor a worker runs it: the
    job died with it.

    Args:
        sweep: the directory.
        workers: of the sweep, if they were looked at already.

    Raises:
        ValueError: the directory holds no sweep.
    """
    manifest, launcher = read_manifest(sweep), has_launcher(sweep)
    held = (overview(sweep) if workers is None else workers).alive
    return [
        _row(sweep, job, manifest.swept, alive=held.get(job.identity.num, launcher) is not False)
        for job in manifest.jobs
    ]


def _row(sweep: Path, job: JobRecord, swept: Sequence[str], *, alive: bool) -> Row:
    status = read_status(sweep / job.directory)
    progress = read_progress(sweep / job.directory)
    state = status.get("state", "pending")
    left_s = progress.remaining_s(job.identity.config.get("total_steps"))
    return Row(
        num=job.identity.num,
        label=job_label(job.identity.overrides, swept),
        cores=ranges_text(status.get("cores") or []),
        state="lost" if state == "running" and not alive else state,
        progress=progress,
        remaining_s=left_s if state == "running" and alive else None,
    )


def show_status(sweep: Path) -> None:
    """Prints the table of the sweep's jobs.

    Raises:
        ValueError: the directory holds no sweep.
    """
    from rich.console import Console

    workers = overview(sweep)
    jobs = job_rows(sweep, workers)
    Console().print(job_table(jobs))
    print(f"{sweep}: {states_text(job.state for job in jobs)}")
    if workers.text:
        print(workers.text)
    if not (workers.left or has_launcher(sweep)) and any(job.state != "completed" for job in jobs):
        print(_how_to_resume(sweep))


def _how_to_resume(sweep: Path) -> str:
    """The command that goes on with the sweep, and where to type it."""
    manifest = read_manifest(sweep)
    where = manifest.launches[-1].get("directory") if manifest.launches else os.getcwd()
    advice = resume_text(resume_command(manifest))
    return advice if where == os.getcwd() else f"{advice} (in {where})"


def rebuild_index(sweep: Path) -> None:
    """Rebuilds index.csv from the jobs' files.

    Raises:
        ValueError: the directory holds no sweep.
    """
    print(f"{sweep / INDEX}: {len(write_index(sweep).jobs)} jobs")


def newest_sweep(root: Path) -> Path:
    """The sweep below `root` that was started or resumed last.

    Raises:
        ValueError: there is none.
    """
    found = [path.parent for path in root.rglob(MANIFEST)]
    if not found:
        raise ValueError(f"there is no sweep below {root}/; give the directory of one")
    return max(found, key=lambda sweep: (sweep / MANIFEST).stat().st_mtime)


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m walle.sweep", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what, function in (
        ("status", "print the table of a running or ended sweep", show_status),
        ("index", "rebuild index.csv from the jobs' files", rebuild_index),
    ):
        command = commands.add_parser(name, help=what)
        about = "of the sweep, such as multirun/NAME (default: the newest below multirun/)"
        command.add_argument("directory", type=Path, nargs="?", help=about)
        command.set_defaults(function=function)
    asked = parser.parse_args(arguments)
    try:
        with reader_may_leave():
            asked.function(asked.directory or newest_sweep(Path("multirun")))
    except ValueError as error:
        print(f"walle.sweep: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
