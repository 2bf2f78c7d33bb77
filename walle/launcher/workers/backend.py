"""Where jobs run: on this machine, or in workers that a scheduler starts elsewhere."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

from walle.launcher.allocation import Allocator
from walle.launcher.composing import StopRule
from walle.launcher.jobs.fork_server import Preparation
from walle.launcher.jobs.verdict import Verdict
from walle.launcher.locks import jobs_locked, launcher_locked, locked
from walle.launcher.machine_check import MachineCheck
from walle.launcher.planning import KEYS_OF_SPEED, Plan
from walle.launcher.resources import Resources, sweep_cores, visible_gpus
from walle.launcher.runner import runner
from walle.launcher.screen import open_screen
from walle.launcher.settings import (
    BackendError,
    RayConf,
    SlurmConf,
    WalleLauncherConf,
    check_worker_settings,
)
from walle.launcher.workers import slurm
from walle.launcher.workers.follower import Follower
from walle.launcher.workers.stored_plan import store
from walle.launcher.workers.submission import Submission, new_directory, unfinished
from walle.system.format import ranges_text
from walle.system.signals import leave_terminal

log = logging.getLogger(__name__)

LOCK_WAIT_S = 15.0


class Backend(ABC):
    """Runs the jobs of a launch.

    Attributes:
        resources: cores and GPUs of the sweep; of a worker elsewhere, as far as they were given.
    """

    resources: Resources

    @abstractmethod
    def locked(self, sweep: Path) -> AbstractContextManager[int]:
        """Locks the sweep's directory for this launcher.

        Yields:
            the jobs' lock on the directory; -1 where workers have locks of their own.
        """

    @abstractmethod
    def where(self, plan: Plan) -> str:
        """Where the jobs run, for the text of a dry run."""

    @abstractmethod
    def run(
        self,
        plan: Plan,
        sweep: Path,
        preparation: Preparation,
        lock_fd: int,
        ending: Sequence[int],
        saving: list[int],
        stop_rule: StopRule | None,
    ) -> dict[int, Verdict] | None:
        """Runs the jobs.

        Args:
            plan: the jobs.
            sweep: the sweep's directory.
            preparation: what the jobs import.
            lock_fd: the jobs' lock on the directory.
            ending: signals that ask for the end so far; grows.
            saving: signals that ask for checkpoints; emptied, and grows again.
            stop_rule: decides which jobs need not run to their ends.

        Returns:
            how each job ended, by index; a job that never started is left out. None when it did not
            wait.

        Raises:
            BackendError: the jobs cannot run there.
            SystemExit: a signal ended the waiting; the workers continue.
        """


class LocalBackend(Backend):
    """Runs jobs on the cores of this machine; they end with the command that started them."""

    def __init__(self, settings: WalleLauncherConf) -> None:
        """Finds the cores and GPUs.

        Raises:
            ValueError: the settings name a core that this process may not use.
        """
        self._settings = settings
        cores = sweep_cores(settings.cores)
        self.resources = Resources(cores, visible_gpus(settings.gpus, os.environ))

    def locked(self, sweep: Path) -> AbstractContextManager[int]:
        """Locks the directory for this launcher and its jobs."""
        return locked(sweep, LOCK_WAIT_S)

    def where(self, plan: Plan) -> str:  # noqa: ARG002  see `Backend`
        """See `Backend`."""
        return f"on cores {ranges_text(self.resources.cores)}"

    def run(
        self,
        plan: Plan,
        sweep: Path,
        preparation: Preparation,
        lock_fd: int,
        ending: Sequence[int],
        saving: list[int],
        stop_rule: StopRule | None,
    ) -> dict[int, Verdict]:
        """Runs the jobs, with a check of the machine around them where they measure time."""
        wanted = self._settings.check_cores
        enabled = plan.exclusive if wanted is None else wanted
        machine = MachineCheck(sweep, plan, self.resources.cores, enabled=enabled)
        machine.before(ending)
        needs = [job.need for job in plan.jobs]
        allocator = Allocator(needs, plan.order, self.resources, exclusive=plan.exclusive)
        with runner(plan, allocator, self._settings, preparation, lock_fd, stop_rule) as jobs:
            verdicts = jobs.run(ending, saving)
        machine.after(ending)
        return verdicts


class WorkersBackend(Backend):
    """Submits workers that claim the jobs, or finds those of an earlier command; follows the jobs.

    What differs between schedulers is abstract.
    """

    def __init__(self, settings: WalleLauncherConf, workers: SlurmConf | RayConf) -> None:
        """Checks the settings.

        Args:
            settings: of the launcher.
            workers: what to ask the scheduler for.

        Raises:
            ValueError: they cannot work.
        """
        check_worker_settings(settings, workers)
        self._settings, self._heartbeat_s = settings, workers.heartbeat_s
        cores = list(range(workers.cores or 0))
        self.resources = Resources(cores, [str(gpu) for gpu in range(workers.gpus)])
        self._earlier: Submission | None = None

    def _connected(self) -> AbstractContextManager[object]:
        """Connects to the scheduler for the body."""
        return nullcontext()

    @abstractmethod
    def _states(self, names: Sequence[str]) -> Mapping[str, object] | None:
        """The workers of `Submission.arrays` that still exist; None if nobody answers."""

    @abstractmethod
    def _submit(self, plan: Plan, sweep: Path, directory: Path) -> Submission:
        """Starts workers for the plan that is stored in `directory`.

        Raises:
            BackendError: the jobs cannot run there.
        """

    @abstractmethod
    def _how_to_end(self, submission: Submission) -> tuple[str, str]:
        """How to end the workers: after `to end them,`, and after `walle sweep status`."""

    def _ends_workers(self, number: int) -> bool:  # noqa: ARG002  a scheduler may look at it
        """Whether a signal to this command ends the workers too."""
        return False

    def _end(
        self, submission: Submission, follower: Follower, sweep: Path, ending: Sequence[int]
    ) -> None:
        """Ends all workers, and waits until they have gone."""

    def _request_checkpoints(self, submission: Submission, saving: list[int]) -> None:
        """Asks the jobs for checkpoints; empties `saving`."""

    def _wait_until_gone(self, submission: Submission) -> None:
        """Waits for what the last worker does when all jobs have ended."""

    @contextmanager
    def locked(self, sweep: Path) -> Iterator[int]:
        """Locks the directory for this launcher; waits for jobs that a local launcher left."""
        with launcher_locked(sweep), self._connected():
            self._earlier = self._running_submission(sweep)
            if self._earlier is None:
                with jobs_locked(sweep, LOCK_WAIT_S):
                    pass
            yield -1

    def _running_submission(self, sweep: Path) -> Submission | None:
        """The newest submission, if it has jobs that have not ended and workers."""
        newest, backend = unfinished(sweep), self._settings.backend
        if newest is None:
            return None
        if newest.backend == "slurm" != backend and slurm.states(newest.arrays):
            raise BackendError(
                "Slurm still has workers for this sweep: wait for them, or end them with scancel "
                f"{' '.join(newest.arrays)}"
            )
        return newest if newest.backend == backend and self._states(newest.arrays) else None

    def run(
        self,
        plan: Plan,
        sweep: Path,
        preparation: Preparation,
        lock_fd: int,  # noqa: ARG002  workers have locks of their own
        ending: Sequence[int],
        saving: list[int],
        stop_rule: StopRule | None,
    ) -> dict[int, Verdict] | None:
        """See `Backend`."""
        submission = self._earlier
        if submission is None:
            directory = new_directory(sweep)
            store(directory, sweep, plan, self._settings, preparation)
            submission = self._submit(plan, sweep, directory)
        else:
            submission.check_joined(plan.nums, self._how_to_end(submission)[0])
        status = shlex.join(["walle", "sweep", "status", str(sweep)])
        how = f"`{status}` shows them{self._how_to_end(submission)[1]}"
        if not self._settings.wait:
            log.info(f"not waiting for the jobs: {how}")
            return None
        with closing(open_screen(len(plan.jobs), len(plan.done))) as screen:
            follower = Follower(
                plan, submission, screen, self._states, stop_rule, self._heartbeat_s
            )
            verdicts = follower.follow(
                ending, lambda: self._request_checkpoints(submission, saving)
            )
            if ending and ending[0] == signal.SIGHUP:
                leave_terminal()
            if ending and self._ends_workers(ending[0]):
                screen.stop("stopping: the workers end their jobs; a second Ctrl-C kills these")
                self._end(submission, follower, sweep, ending)
                return follower.ended_early()
        if ending:
            print(f"left; the workers continue: {how}", file=sys.stderr)
            raise SystemExit(128 + ending[0])
        self._wait_until_gone(submission)
        return verdicts

    def _compares_times(self, plan: Plan) -> bool:
        """Whether jobs run one at a time for their times, and not only for all cores.

        Times of different nodes are hard to compare, so such jobs stay on one node.
        """
        speed = set(plan.manifest.swept).intersection(KEYS_OF_SPEED)
        return plan.exclusive and bool(self._settings.exclusive or speed)
