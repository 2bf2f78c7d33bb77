"""The backend of Ray: starts workers on the nodes of a cluster, and follows their jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from walle.launcher.jobs.fork_server import Preparation
from walle.launcher.jobs.verdict import Verdict
from walle.launcher.jobs.watch import Watch
from walle.launcher.lock import LockedError, jobs_locked, launcher_locked
from walle.launcher.planning import Plan
from walle.launcher.resources import Resources
from walle.launcher.screen import open_screen
from walle.launcher.settings import STALE_BEATS, WalleLauncherConf, check_worker_settings
from walle.launcher.timed.order import compares_times
from walle.launcher.workers import slurm
from walle.launcher.workers.following import Follower
from walle.launcher.workers.ray_cluster.actors import SETTING, Actors
from walle.launcher.workers.ray_cluster.placing import Placement, placements
from walle.launcher.workers.ray_cluster.supervisor import Task, digest
from walle.launcher.workers.stored_plan import COMMON, store
from walle.launcher.workers.submission import planned_nums
from walle.launcher.workers.submitted import (
    LOGS,
    BackendError,
    Submission,
    check_joined,
    new_directory,
    record_submission,
    unfinished,
)
from walle.system.format import count_text
from walle.system.signals import leave_terminal

log = logging.getLogger(__name__)

LOCK_WAIT_S = 15.0
GONE_S = 10.0
POLL_S = 0.2
CLIENT = "ray://"


class RayBackend:
    """Runs jobs in workers on the nodes of a Ray cluster."""

    def __init__(self, settings: WalleLauncherConf) -> None:
        """Checks the settings; connects to nothing yet.

        Raises:
            ValueError: they cannot work, or Ray is missing.
        """
        self._settings, self._ray = settings, settings.ray
        check_worker_settings(settings, self._ray)
        _check(settings)
        self._environ = dict(os.environ)  # before Ray changes it
        cores = list(range(self._ray.cores or 0))
        self.resources = Resources(cores, [str(gpu) for gpu in range(self._ray.gpus)])

    def place(self, plan: Plan) -> str:  # noqa: ARG002  the backend of Slurm looks at it
        """Where the jobs run, for the text of a dry run."""
        address = self._ray.address
        return f"in workers on the Ray cluster at {address}" if address else "in a Ray of their own"

    @contextmanager
    def locked(self, sweep: Path) -> Iterator[int]:
        """Locks the directory for this launcher, and connects to Ray.

        Waits for jobs that another launcher left.
        """
        with launcher_locked(sweep):
            self._actors = Actors(self._ray.address)
            try:
                self._earlier = self._running_submission(sweep)
                if self._earlier is None:
                    with jobs_locked(sweep, LOCK_WAIT_S):
                        pass
                yield -1
            finally:
                self._actors.close()

    def run(
        self,
        plan: Plan,
        sweep: Path,
        wanted: Preparation,
        lock_fd: int,  # noqa: ARG002  workers have locks of their own
        ending: Sequence[int],
        saving: list[int],
        watch: Watch | None,
    ) -> dict[int, Verdict] | None:
        """Starts workers for the jobs, or finds those of an earlier command, and waits for them.

        See `LocalBackend.run`.

        Returns:
            None when it did not wait.

        Raises:
            BackendError: the jobs cannot run there.
            SystemExit: a signal other than Ctrl-C ended the waiting; the workers go on.
        """
        submission = self._earlier
        if submission is None:
            submission = self._submit(plan, sweep, wanted)
        else:
            end = "start the earlier command again and end them with Ctrl-C"
            check_joined(submission, planned_nums(plan), end)
        again = "the same command" if self._settings.wait else "the same command without wait=false"
        status = shlex.join(["walle", "sweep", "status", str(sweep)])
        how = f"`{status}` shows them; {again}, and then Ctrl-C, ends them"
        if not self._settings.wait:
            log.info(f"not waiting for the jobs: {how}")
            return None
        screen = open_screen(len(plan.jobs), len(plan.done))
        ask = self._actors.states
        follower = Follower(
            plan,
            submission,
            screen,
            ask,
            lambda: self._pass_on(submission, saving),
            watch,
            self._ray.heartbeat_s,
        )
        try:
            verdicts = follower.follow(ending)
            if ending and ending[0] == signal.SIGHUP:
                leave_terminal()
            if ending and self._ends_workers(ending[0]):
                screen.stop("stopping: the workers end their jobs; a second Ctrl-C kills these")
                self._end(submission, follower, sweep, ending)
                return follower.ended_early()
        finally:
            screen.close()
        if ending:
            print(f"left; the workers go on: {how}", file=sys.stderr)
            raise SystemExit(128 + ending[0])
        self._wait_until_gone(submission)
        return verdicts

    def _submit(self, plan: Plan, sweep: Path, wanted: Preparation) -> Submission:
        directory = new_directory(sweep)
        store(directory, sweep.absolute(), plan, self._settings, wanted)
        (directory / LOGS).mkdir()
        stored, python, cwd = str(directory / COMMON), sys.executable, os.getcwd()
        task = Task(stored, digest(stored), "", 0, python, cwd, self._environ)
        try:
            workers = self._placements(plan, task)
        except BackendError:
            shutil.rmtree(directory)
            raise
        mark = uuid.uuid4().hex[:8]  # names outlive directories
        names = [f"walle-{sweep.name}-{mark}-{number}" for number in range(len(workers))]
        stale_s = STALE_BEATS * self._ray.heartbeat_s
        submission = Submission(directory, names, planned_nums(plan), "ray", stale_s)
        record_submission(submission)
        for number, (name, worker) in enumerate(zip(names, workers, strict=True)):
            own = task._replace(name=str(number), cores=worker.cores)
            self._actors.start(name, own, worker, self._ray.gpus)
        log.info(f"started {count_text(len(workers), 'worker')} on Ray: {_listed(workers)}")
        return submission

    def _placements(self, plan: Plan, task: Task) -> list[Placement]:
        """The workers to start; each of their nodes has said that it can run them.

        Raises:
            BackendError: a node cannot.
        """
        needs = [plan.jobs[index].need.cores for index in plan.order]
        nodes = self._actors.nodes()
        for _ in range(2):
            workers = placements(needs, nodes, self._ray, compared=self._compares_times(plan))
            asked = {worker.node for worker in workers if worker.node is not None}
            silent = asked.difference(self._actors.check(task, asked))
            if not silent:
                break
            named = ", ".join(node.name for node in silent)
            log.warning(f"node {named} does not answer, and is left out")
            nodes = [node for node in nodes if node not in silent]
        if waiting := [worker.cores for worker in workers if worker.node is None]:
            log.warning(
                f"{count_text(len(waiting), 'worker')} will start when a node of the cluster has "
                f"{count_text(max(waiting), 'free core')}; `ray status` shows its nodes"
            )
        return workers

    def _compares_times(self, plan: Plan) -> bool:
        swept, asked = plan.manifest.swept, self._settings.exclusive
        return compares_times(swept, exclusive=plan.exclusive, asked=asked)

    def _running_submission(self, sweep: Path) -> Submission | None:
        """The newest submission, if it has jobs that have not ended and workers in this cluster."""
        newest = unfinished(sweep)
        if newest is not None and newest.backend == "slurm" and slurm.states(newest.arrays):
            arrays = " ".join(newest.arrays)
            raise BackendError(
                f"Slurm still has workers for this sweep: wait for them, or end them with scancel "
                f"{arrays}"
            )
        if newest is None or newest.backend != "ray":
            return None
        return newest if self._actors.states(newest.arrays) else None

    def _ends_workers(self, number: int) -> bool:
        """Whether a signal to this command ends the workers too."""
        return number == signal.SIGINT or self._ray.address is None

    def _pass_on(self, submission: Submission, saving: list[int]) -> None:
        """Asks the jobs for checkpoints."""
        while saving:
            saving.pop(0)
            self._actors.signal(submission.arrays, signal.SIGUSR2)  # SIGUSR1 would end workers

    def _end(
        self, submission: Submission, follower: Follower, sweep: Path, ending: Sequence[int]
    ) -> None:
        """Ends all workers and waits until they have gone.

        After a second signal, or `save_s`, they kill their jobs; after a third one they are killed.
        """
        names, began_s, done = submission.arrays, time.monotonic(), 0
        kill_jobs = partial(self._actors.signal, names, signal.SIGINT)
        steps = (kill_jobs, partial(self._actors.kill, names))
        self._actors.end(names)
        while self._actors.states(names):
            follower.look()
            late_s = time.monotonic() - began_s - self._ray.save_s
            urged = sum(number != signal.SIGHUP for number in ending[1:])
            wanted = max(urged, (late_s > 0) + (late_s > GONE_S))
            for step in steps[done:wanted]:
                step()
            done = max(done, wanted)
            time.sleep(POLL_S)
        with contextlib.suppress(LockedError), jobs_locked(sweep, LOCK_WAIT_S):
            pass  # jobs that were killed with their workers end a moment later

    def _wait_until_gone(self, submission: Submission) -> None:
        """Waits a moment for the last worker, which writes the sweep's index when all is over."""
        deadline = time.monotonic() + GONE_S
        while self._actors.states(submission.arrays) and time.monotonic() < deadline:
            time.sleep(POLL_S)


def _check(settings: WalleLauncherConf) -> None:
    """Refuses what Ray cannot do.

    Raises:
        BackendError: Ray is missing, or a setting does not fit.
    """
    if find_spec("ray") is None:
        raise BackendError(
            "hydra.launcher.backend=ray needs a package that is missing: pip install 'walle[ray]'"
        )
    address = settings.ray.address
    if address and address.startswith(CLIENT):
        raise BackendError(
            f"{SETTING}={address} is that of Ray Client: run this on a node of the cluster with "
            f"{SETTING}=auto"
        )
    if address is None and not settings.wait:
        raise BackendError(
            f"hydra.launcher.wait=false with {SETTING}=null, whose workers end with this command: "
            f"leave it out, or start a cluster with `ray start --head` and use {SETTING}=auto"
        )


def _listed(workers: Sequence[Placement]) -> str:
    """The nodes of the workers, with the cores that they get there."""
    return ", ".join(
        f"{count_text(worker.cores, 'core')} of {worker.node.name if worker.node else 'any node'}"
        for worker in workers
    )
