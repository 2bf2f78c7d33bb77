"""A sweep from the outside: `python -m walle.sweep status DIR`, and `index DIR`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hydra_plugins.walle_launcher._screen import Row

BAD_INPUT = 2


def index(sweep: Path) -> str:
    """Rebuilds index.csv from what the jobs wrote; returns what to tell the user.

    Raises:
        ValueError: the directory holds no sweep.
    """
    from hydra_plugins.walle_launcher._records import INDEX, read_manifest, write_index

    write_index(sweep)
    return f"{sweep / INDEX}: {len(read_manifest(sweep).jobs)} jobs"


def rows(sweep: Path) -> list[Row]:
    """How far every job of the sweep has come, from its files.

    A job that says `running` in a sweep that no launcher runs is `lost`: it died with its launcher.

    Raises:
        ValueError: the directory holds no sweep.
    """
    from hydra_plugins.walle_launcher._lock import has_launcher
    from hydra_plugins.walle_launcher._records import progress, read_manifest, read_status
    from hydra_plugins.walle_launcher._screen import Row, cores_text, job_remaining_s, label

    alive, manifest = has_launcher(sweep), read_manifest(sweep)
    found = []
    for job in manifest.jobs:
        status = read_status(sweep / job.directory)
        reached = progress(sweep / job.directory)
        state = status.get("state", "pending")
        left_s = job_remaining_s(reached, job.known.config.get("total_steps"))
        found.append(
            Row(
                num=job.known.num,
                label=label(job.known.overrides, manifest.swept),
                cores=cores_text(status.get("cores") or []),
                state="lost" if state == "running" and not alive else state,
                reached=reached,
                remaining_s=left_s if state == "running" and alive else None,
            )
        )
    return found


def summary(states: Sequence[str]) -> str:
    """`5 completed, 1 failed`, most frequent first."""
    return ", ".join(f"{count} {state}" for state, count in Counter(states).most_common())


def show_status(sweep: Path) -> None:
    """Prints the table of the sweep's jobs.

    Raises:
        ValueError: the directory holds no sweep.
    """
    from rich.console import Console

    from hydra_plugins.walle_launcher._screen import job_table

    jobs = rows(sweep)
    Console().print(job_table(jobs))
    print(f"{sweep}: {summary([job.state for job in jobs])}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m walle.sweep", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("status", "print the table of a running or ended sweep"),
        ("index", "rebuild index.csv from what the jobs wrote"),
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("directory", type=Path, help="of the sweep, such as multirun/NAME")
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "status":
            show_status(asked.directory)
        else:
            print(index(asked.directory))
    except ValueError as error:
        print(f"walle.sweep: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
