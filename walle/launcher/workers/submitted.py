"""The submissions of a sweep: their directories, and the scheduler's numbers of their workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from walle.agent.run_directory import write_atomically

WORKERS, SUBMITTED = ".workers", "submitted.json"


class Submission(NamedTuple):
    """The workers of one submission.

    Attributes:
        directory: what they share.
        arrays: the scheduler's numbers of their arrays of jobs.
        nums: the numbers of the sweep's jobs that they run.
    """

    directory: Path
    arrays: list[str]
    nums: list[int]


def record_submission(submission: Submission) -> None:
    """Writes the scheduler's numbers beside the plan."""
    content = {"arrays": submission.arrays, "jobs": submission.nums}
    write_atomically(submission.directory / SUBMITTED, json.dumps(content) + "\n")


def new_directory(sweep: Path) -> Path:
    """The directory for the sweep's next submission."""
    numbers = [int(path.name) for path in (sweep / WORKERS).glob("[0-9]*")]
    return (sweep / WORKERS / str(1 + max(numbers, default=0))).absolute()


def submissions(sweep: Path) -> list[Submission]:
    """The sweep's submissions, the first one first."""
    found = (sweep / WORKERS).glob(f"[0-9]*/{SUBMITTED}")
    return [read_submission(file.parent) for file in sorted(found, key=_number)]


def read_submission(directory: Path) -> Submission:
    """Reads the scheduler's numbers; empty ones before they are known."""
    file = directory / SUBMITTED
    content = json.loads(file.read_text()) if file.exists() else {"arrays": [], "jobs": []}
    return Submission(directory, content["arrays"], content["jobs"])


def _number(file: Path) -> int:
    return int(file.parent.name)
