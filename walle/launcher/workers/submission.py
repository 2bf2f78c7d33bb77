"""The submissions of a sweep: their directories, the names and states of their workers."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from walle.launcher.workers import slurm
from walle.launcher.workers.claims import Claims
from walle.system.files import write_atomically

WORKERS, SUBMITTED, COMMON, LOGS = ".workers", "submitted.json", "common.pkl", "logs"
LIVING = ("RUNNING", "COMPLETING", "SUSPENDED")  # a worker in such a state still has its cores


class Submission(NamedTuple):
    """The workers of one submission."""

    directory: Path  # what they share
    arrays: list[str]  # Slurm's numbers of their arrays of jobs; in Ray, the names of their actors
    jobs: list[int]  # the numbers of the sweep's jobs that they run
    backend: str = "slurm"  # which of the launcher's backends has submitted them
    stale_s: float = 90.0  # seconds without a heartbeat after which one of them has vanished

    def record(self) -> None:
        """Writes submitted.json, with the scheduler's names of the workers, next to the plan."""
        content = {key: value for key, value in self._asdict().items() if key != "directory"}
        write_atomically(self.directory / SUBMITTED, json.dumps(content) + "\n")


def new_directory(sweep: Path) -> Path:
    """The directory for the sweep's next submission."""
    numbers = [int(path.name) for path in (sweep / WORKERS).glob("[0-9]*")]
    return (sweep / WORKERS / str(1 + max(numbers, default=0))).absolute()


def submissions(sweep: Path) -> list[Submission]:
    """The sweep's submissions, oldest first."""
    files = (sweep / WORKERS).glob(f"[0-9]*/{SUBMITTED}")
    directories = sorted((file.parent for file in files), key=lambda path: int(path.name))
    return [read_submission(directory) for directory in directories]


def read_submission(directory: Path) -> Submission:
    """Reads a submission; its lists are empty before the scheduler's names are recorded."""
    file = directory / SUBMITTED
    content = json.loads(file.read_text()) if file.exists() else {"arrays": [], "jobs": []}
    return Submission(directory, **content)


def digest(directory: Path) -> str:
    """The SHA-256 of the plan in a submission's directory."""
    return hashlib.sha256((directory / COMMON).read_bytes()).hexdigest()


def unfinished(sweep: Path) -> Submission | None:
    """The newest submission, if it has jobs that have not ended."""
    newest = next(reversed(submissions(sweep)), None)
    if newest is None or Claims(newest.directory).all_over(newest.jobs):
        return None
    return newest


class WorkerStatus(NamedTuple):
    """The state of the workers of a sweep's newest submission."""

    # by the number of each job that a worker holds: whether this worker is alive; None if unknown
    alive: dict[int, bool | None]
    text: str | None  # one line about the workers; None when none is left
    left: bool  # whether workers run or wait, as far as is known


def worker_status(sweep: Path) -> WorkerStatus:
    """Reads the claims, and the state of the workers unless all their jobs have ended.

    Slurm is asked at most once. Ray is not asked: heartbeats show which workers live.
    """
    newest = unfinished(sweep)
    if newest is None:
        return WorkerStatus({}, None, left=False)
    claims = Claims(newest.directory)
    held = {n: claims.owner(claim) for n, claim in claims.newest().items() if claim.state is None}
    if newest.backend == "slurm":
        states = slurm.states(newest.arrays)
        if states is None:
            text = "workers: Slurm cannot be asked from here, so it is unknown which of them live"
            return WorkerStatus(dict.fromkeys(held), text, left=True)
        living = {name for name, (state, _) in states.items() if state in LIVING}
        waits = Counter(  # `running`, or `pending: Resources` with what it waits for
            state.lower() + (f": {reason}" if state == "PENDING" else "")
            for state, reason in states.values()
        )
        words = ", ".join(f"{count} {how}" for how, count in waits.most_common())
        shown = f"workers in Slurm: {words} ({', '.join(newest.arrays)})" if words else None
        alive: dict[int, bool | None] = {
            n: owner.partition("-")[0] in living for n, owner in held.items()
        }
        return WorkerStatus(alive, shown, left=bool(states))
    silence_s = claims.silence_s()
    if silence_s is None:
        text = f"workers: unknown, as this user may not write into {newest.directory}"
        return WorkerStatus(dict.fromkeys(held), text, left=True)
    living = {owner for owner, silent_s in silence_s.items() if silent_s <= newest.stale_s}
    alive = {n: owner in living for n, owner in held.items()}
    if not any((newest.directory / LOGS).iterdir()):
        text = "workers on Ray: none has started yet; `ray status` shows what they wait for"
        return WorkerStatus(alive, text, left=True)
    vanished = len(silence_s) - len(living)
    words = f"{len(living)} running" + (f", {vanished} vanished" if vanished else "")
    return WorkerStatus(alive, f"workers on Ray: {words}" if silence_s else None, bool(living))
