"""The submissions of a sweep: their directories, and the scheduler's names of their workers."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from walle.launcher.workers.claims import Claims
from walle.system.files import write_atomically
from walle.system.format import count_text

log = logging.getLogger(__name__)

WORKERS, SUBMITTED, LOGS = ".workers", "submitted.json", "logs"


class BackendError(ValueError):
    """A sweep cannot run where it was asked to; the message is one line."""


class Submission(NamedTuple):
    """The workers of one submission.

    Attributes:
        directory: what they share.
        arrays: Slurm's numbers of their arrays of jobs; the names of their actors in Ray.
        nums: the numbers of the sweep's jobs that they run.
        backend: which of the launcher's backends has submitted them.
        stale_s: seconds without a heartbeat after which one of them has vanished.
    """

    directory: Path
    arrays: list[str]
    nums: list[int]
    backend: str = "slurm"
    stale_s: float = 90.0


def record_submission(submission: Submission) -> None:
    """Writes the scheduler's names beside the plan."""
    content = {
        "arrays": submission.arrays,
        "jobs": submission.nums,
        "backend": submission.backend,
        "stale_s": submission.stale_s,
    }
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
    """Reads the scheduler's names; none before they are known."""
    file = directory / SUBMITTED
    content = json.loads(file.read_text()) if file.exists() else {"arrays": [], "jobs": []}
    nums = content.pop("jobs")
    return Submission(directory, nums=nums, **content)


def unfinished(sweep: Path) -> Submission | None:
    """The newest submission, if it has jobs that have not ended."""
    newest = next(reversed(submissions(sweep)), None)
    if newest is None or Claims(newest.directory).all_over(newest.nums):
        return None
    return newest


def check_joined(earlier: Submission, nums: Collection[int], end: str) -> None:
    """Checks that an earlier submission, which still has workers, runs all jobs of a command.

    Args:
        earlier: the submission.
        nums: the numbers of the command's jobs.
        end: how to end its workers.

    Raises:
        BackendError: it does not.
    """
    workers = ", ".join(earlier.arrays)
    if more := set(nums).difference(earlier.nums):
        raise BackendError(
            f"workers of an earlier command ({workers}) still run jobs of this sweep, and "
            f"{count_text(len(more), 'job')} of this command are not theirs: wait for them, or "
            f"{end}"
        )
    log.info(f"the workers of an earlier command ({workers}) run these jobs")


def _number(file: Path) -> int:
    return int(file.parent.name)
