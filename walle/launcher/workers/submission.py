"""The backend of Slurm: submits workers that claim the jobs, and follows them."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from walle.launcher.jobs.fork_server import Preparation
from walle.launcher.jobs.verdict import Verdict
from walle.launcher.jobs.watch import Watch
from walle.launcher.lock import jobs_locked, launcher_locked
from walle.launcher.planning import Plan
from walle.launcher.resources import Resources
from walle.launcher.screen import open_screen
from walle.launcher.settings import SlurmConf, WalleLauncherConf, check_worker_settings
from walle.launcher.timed.order import compares_times
from walle.launcher.workers import slurm
from walle.launcher.workers.batch_script import batch_script
from walle.launcher.workers.following import Follower
from walle.launcher.workers.slurm import SlurmError
from walle.launcher.workers.stored_plan import store
from walle.launcher.workers.submitted import (
    LOGS,
    Submission,
    check_joined,
    new_directory,
    record_submission,
    unfinished,
)
from walle.system.format import count_text

log = logging.getLogger(__name__)

MOST_WORKERS = 16
LOCK_WAIT_S = 15.0


class SlurmBackend:
    """Runs jobs in workers on the nodes of a cluster."""

    def __init__(self, settings: WalleLauncherConf) -> None:
        """Asks Slurm whether the settings can work.

        Raises:
            ValueError: they cannot, or Slurm is missing.
        """
        self._settings, self._slurm = settings, settings.slurm
        check_worker_settings(settings, settings.slurm)
        slurm.check_installed()
        _check_partition(self._slurm.partition)
        batch_script(self._slurm, "", name="", log="", cores=None)  # can its template be used?
        cores = list(range(self._slurm.cores or 0))
        self.resources = Resources(cores, [str(gpu) for gpu in range(self._slurm.gpus)])

    def place(self, plan: Plan) -> str:
        """Where the jobs run, for the text of a dry run."""
        cores = worker_cores(plan, self._slurm)
        each = "a whole node" if cores is None else count_text(cores, "core")
        return f"in {count_text(self._workers(plan), 'worker')} of Slurm with {each}"

    @contextmanager
    def locked(self, sweep: Path) -> Iterator[int]:
        """Locks the directory for this launcher; waits for jobs that a local launcher left."""
        with launcher_locked(sweep):
            self._earlier = _running_submission(sweep)
            if self._earlier is None:
                with jobs_locked(sweep, LOCK_WAIT_S):
                    pass
            yield -1

    def run(
        self,
        plan: Plan,
        sweep: Path,
        wanted: Preparation,
        lock_fd: int,  # noqa: ARG002  workers have locks of their own
        ending: Sequence[int],
        saving: list[int],  # noqa: ARG002  scancel --signal=USR2 reaches the workers
        watch: Watch | None,
    ) -> dict[int, Verdict] | None:
        """Submits workers for the jobs, or finds those of an earlier command, and waits for them.

        See `LocalBackend.run`.

        Returns:
            None when it did not wait.

        Raises:
            SlurmError: Slurm refuses, or the jobs cannot run there.
            SystemExit: a signal ended the waiting; the workers go on.
        """
        submission = self._earlier
        if submission is None:
            submission = self._submit(plan, sweep, wanted)
        else:
            end = f"end them with scancel {' '.join(submission.arrays)}"
            check_joined(submission, planned_nums(plan), end)
        status = shlex.join(["walle", "sweep", "status", str(sweep)])
        how = f"`{status}` shows them, `scancel {' '.join(submission.arrays)}`"
        if not self._settings.wait:
            log.info(f"not waiting for the jobs: {how} ends them")
            return None
        screen = open_screen(len(plan.jobs), len(plan.done))
        try:
            follower = Follower(
                plan,
                submission,
                screen,
                slurm.states,
                watch=watch,
                watch_s=self._slurm.heartbeat_s,
            )
            verdicts = follower.follow(ending)
        finally:
            screen.close()
        if ending:
            print(f"left; the workers go on: {how} ends them", file=sys.stderr)
            raise SystemExit(128 + ending[0])
        return verdicts

    def _submit(self, plan: Plan, sweep: Path, wanted: Preparation) -> Submission:
        directory = new_directory(sweep)
        store(directory, sweep.absolute(), plan, self._settings, wanted)
        (directory / LOGS).mkdir()
        module = "walle.launcher.workers.worker"
        script = batch_script(
            self._slurm,
            shlex.join([sys.executable, "-m", module, str(directory)]),
            name=f"walle-{sweep.name}",
            log=str(directory / LOGS / "%A_%a.log"),
            cores=worker_cores(plan, self._slurm),
        )
        (directory / "batch.sh").write_text(script)
        arrays: list[str] = []
        nums = planned_nums(plan)
        for elements in array_sizes(self._workers(plan), slurm.max_array_size()):
            arrays.append(slurm.submit(script, elements, []))
            record_submission(Submission(directory, arrays, nums))
        workers = count_text(self._workers(plan), "worker")
        log.info(f"submitted {workers} to Slurm: {', '.join(arrays)}")
        return Submission(directory, arrays, nums)

    def _workers(self, plan: Plan) -> int:
        """How many workers to submit."""
        swept, asked = plan.manifest.swept, self._settings.exclusive
        compared = compares_times(swept, exclusive=plan.exclusive, asked=asked)
        return worker_count(plan, self._slurm, compared=compared)


def planned_nums(plan: Plan) -> list[int]:
    """The numbers of the jobs to run."""
    return [plan.jobs[index].num for index in plan.order]


def worker_cores(plan: Plan, settings: SlurmConf) -> int | None:
    """Cores of a worker; None for a whole node."""
    needs = [plan.jobs[index].need.cores for index in plan.order]
    if plan.exclusive or None in needs:
        return None
    return settings.cores or max((need or 1 for need in needs), default=1)


def worker_count(plan: Plan, settings: SlurmConf, *, compared: bool) -> int:
    """How many workers to submit: no more than jobs to run, and one if times are `compared`."""
    cores, jobs = worker_cores(plan, settings), len(plan.order)
    if cores is None:
        enough = 1 if compared else jobs
    else:
        needs = (plan.jobs[index].need.cores or 1 for index in plan.order)
        enough = -(-sum(min(need, cores) for need in needs) // cores)
    return min(settings.workers or min(enough, MOST_WORKERS), jobs)


def array_sizes(workers: int, most: int) -> list[int]:
    """The sizes of the arrays of jobs; tells when one array cannot hold all workers.

    Args:
        workers: how many to submit.
        most: the number of elements that the cluster allows in an array.
    """
    sizes = [min(most, workers - start) for start in range(0, workers, most)]
    if len(sizes) > 1:
        listed = ", ".join(map(str, sizes))
        log.warning(
            f"{workers} workers are more than the cluster's MaxArraySize of {most}: they are "
            f"submitted as arrays of {listed}"
        )
    return sizes


def _check_partition(asked: str | None) -> None:
    if asked is None:
        return
    known = slurm.partitions()
    if unknown := [name for name in asked.split(",") if name not in known]:
        raise SlurmError(
            f"hydra.launcher.slurm.partition={asked}: the cluster has no partition {unknown[0]}; "
            f"choose among {', '.join(known)}"
        )


def _running_submission(sweep: Path) -> Submission | None:
    """The newest submission, if it has jobs that have not ended and workers in Slurm's queue."""
    newest = unfinished(sweep)
    if newest is None or newest.backend != "slurm":
        return None
    return newest if slurm.states(newest.arrays) else None
