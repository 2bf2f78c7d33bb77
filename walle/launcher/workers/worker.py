"""A worker: `python -m walle.launcher.workers.worker DIRECTORY`, on cores that Slurm gives it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from walle.launcher.lock import run_is_locked, share_jobs_lock
from walle.launcher.records import write_index
from walle.launcher.resources import Resources, read_siblings, spread, visible_gpus
from walle.launcher.workers import slurm
from walle.launcher.workers.claimed_jobs import ClaimedJobs, ClaimLostError
from walle.launcher.workers.claims import Claims, Stops
from walle.launcher.workers.running import runner
from walle.launcher.workers.stored_plan import StoredPlan, read_stored
from walle.launcher.workers.submitted import read_submission
from walle.machine import usable_cores

STALE_BEATS = 9
LOCK_WAIT_S = 60.0


def main(directory: Path) -> int:
    """Runs the jobs of a submission until none is left; returns the exit code.

    Asked to end, it waits until its jobs have written their checkpoints, gives them back, and asks
    to be started again.
    """
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", stream=sys.stdout)
    stored, name = read_stored(directory), slurm.worker_name(os.environ)
    os.chdir(stored.cwd)
    sys.path[:] = stored.path
    ending: list[int] = []
    saving: list[int] = []
    _collect_signals(ending, saving)
    try:
        is_over = _work(directory, stored, _resources(name, os.environ), ending, saving)
    except ClaimLostError as error:
        logging.warning(f"this worker was frozen: {error}")
        return 1
    if is_over:
        write_index(stored.sweep)
        if arrays := read_submission(directory).arrays:
            slurm.cancel_waiting(arrays)
    elif ending and name is not None and slurm.requeue(name):
        logging.info("asked Slurm to start this worker again")
    return 0


def _collect_signals(ending: list[int], saving: list[int]) -> None:
    """Appends the first signal that asks for the end to `ending`, SIGUSR2 to `saving`.

    Slurm sends SIGUSR1 some time before a time limit, as `--signal` asks it to, and more than one
    SIGTERM when it takes the cores back; a second one must not break off the checkpoints.
    """

    def end(*_: object) -> None:
        if not ending:
            ending.append(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, end)
    signal.signal(signal.SIGUSR2, lambda number, _: saving.append(number))


def _resources(name: str | None, environ: Mapping[str, str]) -> Resources:
    """Cores and GPUs of this worker, which binds itself to the cores."""
    cores = usable_cores()
    if name is not None:
        cores = slurm.own_cores(name, environ, cores)
    os.sched_setaffinity(0, cores)
    return Resources(spread(cores, read_siblings(cores)), visible_gpus(None, environ))


def _work(
    directory: Path,
    stored: StoredPlan,
    resources: Resources,
    ending: list[int],
    saving: list[int],
) -> bool:
    """Claims jobs and runs them; returns whether every job of the submission has ended."""
    plan, settings = stored.plan(directory), stored.settings
    beat_s = settings.slurm.heartbeat_s
    name = slurm.worker_name(os.environ) or "0"
    stops = Stops(directory, beat_s)
    claims = Claims(directory, f"{name}-{os.uname().nodename}-{os.getpid()}")
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
        lock = open_until_end.enter_context(share_jobs_lock(stored.sweep, LOCK_WAIT_S))
        jobs = open_until_end.enter_context(
            runner(plan, source, settings, stored.wanted, lock, stops, stored.command)
        )
        jobs.run(ending, saving)
        while source.may_get_more() and not ending:
            time.sleep(beat_s)
            jobs.run(ending, saving)
        return source.is_over()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
