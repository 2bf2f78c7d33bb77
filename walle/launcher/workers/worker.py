"""A worker: runs jobs on the cores that a scheduler gives it.

`python -m walle.launcher.workers.worker DIRECTORY` is a worker of Slurm.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
from omegaconf import open_dict, read_write

from walle.launcher.allocation import Need, Resources, read_siblings, spread, visible_gpus
from walle.launcher.composing import Job
from walle.launcher.planning import Plan
from walle.launcher.records import Manifest, jobs_locked, write_index
from walle.launcher.runner import Runner
from walle.launcher.settings import STALE_BEATS, WalleLauncherConf
from walle.launcher.workers import slurm
from walle.launcher.workers.claims import ClaimedJobs, ClaimLostError, Claims, Stops
from walle.launcher.workers.submission import LOGS, read_submission
from walle.system.commands import command_line
from walle.system.locks import RUN_LOCK, is_locked
from walle.system.machine import usable_cores
from walle.system.signals import ENDING, signal_handlers

LOCK_WAIT_S = 60.0
COMMON, JOBS = "common.pkl", "jobs"


class StoredJobs:
    """The jobs of a submission, each in a file of its own: a worker reads those that it runs."""

    def __init__(self, directory: Path, nums: Sequence[int]) -> None:
        self._directory, self._nums = directory, nums

    def __len__(self) -> int:
        return len(self._nums)

    def __getitem__(self, index: int) -> Job:
        content = (self._directory / JOBS / f"{self._nums[index]}.pkl").read_bytes()
        job: Job = pickle.loads(content)
        return job


class StoredPlan(NamedTuple):
    """What all workers of a submission need."""

    sweep: Path  # the sweep's directory
    plan: Plan  # its jobs are `StoredJobs`
    nums: list[int]  # the number of each job, by index
    needs: list[Need]  # of each job
    settings: WalleLauncherConf  # of the launcher
    preparation: bytes  # what the jobs import
    command: str  # the command that started the sweep
    cwd: str  # its working directory
    path: list[str]  # its `sys.path`


def store(
    directory: Path,
    sweep: Path,
    plan: Plan,
    settings: WalleLauncherConf,
    preparation: bytes,
) -> None:
    """Writes the plan into a submission's directory, which it makes."""
    (directory / JOBS).mkdir(parents=True)
    (directory / LOGS).mkdir()
    for index in plan.order:
        job = plan.jobs[index]
        with read_write(job.config.hydra), open_dict(job.config.hydra):
            # A worker runs none of the application's code, so it can resolve nothing.
            job.config.hydra.sweep.dir = str(job.config.hydra.sweep.dir)
        (directory / JOBS / f"{job.num}.pkl").write_bytes(cloudpickle.dumps(job))
    nums, needs = [job.num for job in plan.jobs], [job.need for job in plan.jobs]
    jobs: Any = StoredJobs(directory, nums)
    small = plan._replace(jobs=jobs, done={}, manifest=Manifest((), {}, (), ()))
    content = (small, nums, needs, settings, preparation, command_line(), os.getcwd(), sys.path)
    stored = StoredPlan(sweep.absolute(), *content)
    (directory / COMMON).write_bytes(cloudpickle.dumps(stored))


class WorkerHost:
    """Where a worker runs, as its scheduler knows it."""

    name: str  # of the worker among those of its submission

    def cores(self, usable: list[int]) -> list[int]:
        """The worker's cores, among those that this process may use."""
        raise NotImplementedError

    def jobs_are_over(self, arrays: Sequence[str]) -> None:
        """No worker of the submission is needed any more; see `Submission`."""

    def start_again(self) -> None:
        """The worker was asked to end before its jobs were over."""


class SlurmHost(WorkerHost):
    """An element of an array of Slurm's jobs."""

    def __init__(self) -> None:
        self._known = slurm.worker_name(os.environ)
        self.name = self._known or "0"

    def cores(self, usable: list[int]) -> list[int]:
        """See `WorkerHost`."""
        return usable if self._known is None else slurm.own_cores(self.name, os.environ, usable)

    def jobs_are_over(self, arrays: Sequence[str]) -> None:
        """Cancels the workers that wait in the queue."""
        if arrays:
            slurm.cancel_waiting(arrays)

    def start_again(self) -> None:
        """Asks Slurm to start the worker again, unless its user has cancelled it."""
        if self._known is not None and slurm.requeue(self._known):
            logging.info("asked Slurm to start this worker again")


def main(directory: Path, host: WorkerHost) -> int:
    """Runs the jobs of a submission until none is left; returns the exit code.

    Asked to end, it waits until its jobs have written their checkpoints, and gives them back.
    """
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", stream=sys.stdout)
    stored: StoredPlan = pickle.loads((directory / COMMON).read_bytes())
    os.chdir(stored.cwd)
    sys.path[:] = stored.path
    ending: list[int] = []
    saving: list[int] = []

    def end(number: int) -> None:
        # Slurm sends SIGUSR1 some time before a time limit, as `--signal` asks it to, and more than
        # one SIGTERM when it takes the cores back; a second one must not interrupt the checkpoints.
        # A SIGINT after the first signal does: the jobs are killed.
        if not ending or number == signal.SIGINT:
            ending.append(signal.SIGTERM)

    handlers = dict.fromkeys((*ENDING, signal.SIGUSR1), end) | {signal.SIGUSR2: saving.append}
    with signal_handlers(handlers, keep_ignored=()):
        try:
            is_over = _work(directory, stored, host, ending, saving)
        except ClaimLostError as error:
            logging.warning(f"this worker was frozen: {error}")
            return 1
        if is_over:
            write_index(stored.sweep)
            host.jobs_are_over(read_submission(directory).arrays)
        elif ending:
            host.start_again()
    return 0


def _work(
    directory: Path, stored: StoredPlan, host: WorkerHost, ending: list[int], saving: list[int]
) -> bool:
    """Claims jobs and runs them; returns whether every job of the submission has ended."""
    plan, settings = stored.plan, stored.settings
    beat_s = (settings.ray if settings.backend == "ray" else settings.slurm).heartbeat_s
    cores = host.cores(usable_cores())
    os.sched_setaffinity(0, cores)
    claims = Claims(directory, f"{host.name}-{os.uname().nodename}-{os.getpid()}")
    claimed = ClaimedJobs(
        stored.needs,
        plan.order,
        Resources(spread(cores, read_siblings(cores)), visible_gpus(None, os.environ)),
        exclusive=plan.exclusive,
        nums=stored.nums,
        claims=claims,
        stale_s=STALE_BEATS * beat_s,
        is_locked=lambda index: is_locked(plan.jobs[index].directory / RUN_LOCK),
        ending=ending,
        max_failures=1 if settings.on_failure == "stop" else settings.max_failures,
    )
    stops = Stops(directory, beat_s)
    with (
        claims.beating(beat_s),
        jobs_locked(stored.sweep, LOCK_WAIT_S, shared=True) as lock,
        closing(
            Runner(plan, claimed, settings, stored.preparation, lock, stops, stored.command)
        ) as runner,
    ):
        runner.run(ending, saving)
        while claimed.may_get_more() and not ending:
            time.sleep(beat_s)
            runner.run(ending, saving)
        return claimed.is_over()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), SlurmHost()))
