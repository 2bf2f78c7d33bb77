"""A worker: runs jobs on the cores that a scheduler gives it.

`python -m walle.launcher.workers.worker DIRECTORY` is a worker of Slurm.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from walle.launcher.lock import jobs_locked, run_is_locked
from walle.launcher.records import write_index
from walle.launcher.resources import Resources, read_siblings, spread, visible_gpus
from walle.launcher.settings import STALE_BEATS, heartbeat_s
from walle.launcher.workers import slurm
from walle.launcher.workers.claimed_jobs import ClaimedJobs, ClaimLostError
from walle.launcher.workers.claims import Claims, Stops
from walle.launcher.workers.running import runner
from walle.launcher.workers.stored_plan import StoredPlan, read_stored
from walle.launcher.workers.submitted import read_submission
from walle.system.machine import usable_cores

LOCK_WAIT_S = 60.0


class Place(Protocol):
    """Where a worker runs, as its scheduler knows it.

    Attributes:
        name: of the worker among those of its submission.
    """

    name: str

    def cores(self, usable: list[int]) -> list[int]:
        """The worker's cores, among those that this process may use."""

    def jobs_are_over(self, arrays: Sequence[str]) -> None:
        """Learns that no worker of the submission is needed any more; see `Submission`."""

    def start_again(self) -> None:
        """Learns that the worker was asked to end before its jobs were over."""


class SlurmPlace:
    """An element of an array of Slurm's jobs."""

    def __init__(self) -> None:
        """Reads the variables that Slurm has set."""
        self._known = slurm.worker_name(os.environ)
        self.name = self._known or "0"

    def cores(self, usable: list[int]) -> list[int]:
        """See `Place`."""
        return usable if self._known is None else slurm.own_cores(self.name, os.environ, usable)

    def jobs_are_over(self, arrays: Sequence[str]) -> None:
        """Cancels the workers that wait in the queue."""
        if arrays:
            slurm.cancel_waiting(arrays)

    def start_again(self) -> None:
        """Asks Slurm to start the worker again, unless its user has cancelled it."""
        if self._known is not None and slurm.requeue(self._known):
            logging.info("asked Slurm to start this worker again")


def main(directory: Path, place: Place) -> int:
    """Runs the jobs of a submission until none is left; returns the exit code.

    Asked to end, it waits until its jobs have written their checkpoints, and gives them back.
    """
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", stream=sys.stdout)
    stored = read_stored(directory)
    os.chdir(stored.cwd)
    sys.path[:] = stored.path
    ending: list[int] = []
    saving: list[int] = []
    _collect_signals(ending, saving)
    try:
        is_over = _work(directory, stored, place, ending, saving)
    except ClaimLostError as error:
        logging.warning(f"this worker was frozen: {error}")
        return 1
    if is_over:
        write_index(stored.sweep)
        place.jobs_are_over(read_submission(directory).arrays)
    elif ending:
        place.start_again()
    return 0


def _collect_signals(ending: list[int], saving: list[int]) -> None:
    """Appends the first signal that asks for the end to `ending`, SIGUSR2 to `saving`.

    Slurm sends SIGUSR1 some time before a time limit, as `--signal` asks it to, and more than one
    SIGTERM when it takes the cores back; a second one must not break off the checkpoints. A SIGINT
    after the first signal does: the jobs are killed.
    """

    def end(number: int, _: object) -> None:
        if not ending or number == signal.SIGINT:
            ending.append(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, end)
    signal.signal(signal.SIGUSR2, lambda number, _: saving.append(number))


def _resources(place: Place) -> Resources:
    """Cores and GPUs of this worker, which binds itself to the cores."""
    cores = place.cores(usable_cores())
    os.sched_setaffinity(0, cores)
    return Resources(spread(cores, read_siblings(cores)), visible_gpus(None, os.environ))


def _work(
    directory: Path, stored: StoredPlan, place: Place, ending: list[int], saving: list[int]
) -> bool:
    """Claims jobs and runs them; returns whether every job of the submission has ended."""
    plan, settings = stored.plan(directory), stored.settings
    resources = _resources(place)
    beat_s = heartbeat_s(settings)
    claims = Claims(directory, f"{place.name}-{os.uname().nodename}-{os.getpid()}")
    first = 1 if settings.on_failure == "stop" else settings.max_failures
    source = ClaimedJobs(
        stored.needs,
        stored.order,
        resources,
        exclusive=stored.exclusive,
        nums=stored.nums,
        claims=claims,
        stale_s=STALE_BEATS * beat_s,
        is_locked=lambda index: run_is_locked(plan.jobs[index].directory),
        ending=ending,
        max_failures=first,
    )
    with contextlib.ExitStack() as open_until_end:
        open_until_end.enter_context(claims.beating(beat_s))
        lock = open_until_end.enter_context(jobs_locked(stored.sweep, LOCK_WAIT_S, shared=True))
        jobs = open_until_end.enter_context(
            runner(
                plan,
                source,
                resources,
                settings,
                stored.wanted,
                lock,
                ending,
                Stops(directory, beat_s),
                stored.command,
            )
        )
        jobs.run(ending, saving)
        while source.may_get_more() and not ending:
            time.sleep(beat_s)
            jobs.run(ending, saving)
        return source.is_over()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), SlurmPlace()))
