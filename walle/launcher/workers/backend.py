"""Where jobs run: on this machine, or in workers that a scheduler starts elsewhere."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

from walle.launcher.allocation import Allocator, Grant, Resources, sweep_cores, visible_gpus
from walle.launcher.composing import Job, StopRule
from walle.launcher.jobs import Verdict
from walle.launcher.planning import KEYS_OF_SPEED, Plan
from walle.launcher.records import LOG, jobs_locked, last_lines, launcher_locked, locked
from walle.launcher.runner import Runner, checked_machine
from walle.launcher.screen import Screen
from walle.launcher.settings import BackendError, RayConf, SlurmConf, WalleLauncherConf
from walle.launcher.workers import slurm
from walle.launcher.workers.claims import Claim, Claims, Stops
from walle.launcher.workers.submission import Submission, new_directory, unfinished
from walle.launcher.workers.worker import store
from walle.system.format import count_text, ranges_text
from walle.system.run_files import read_status
from walle.system.signals import leave_terminal

log = logging.getLogger(__name__)

LOCK_WAIT_S = 15.0


class LocalBackend:
    """Runs jobs on the cores of this machine; they end with the command that started them."""

    def __init__(self, settings: WalleLauncherConf) -> None:
        self._settings = settings
        cores = sweep_cores(settings.cores)
        self.resources = Resources(cores, visible_gpus(settings.gpus, os.environ))

    def locked(self, sweep: Path) -> AbstractContextManager[int]:
        """Locks the directory for this launcher and its jobs."""
        return locked(sweep, LOCK_WAIT_S)

    def where(self, plan: Plan) -> str:  # noqa: ARG002  other backends look at it
        """Where the jobs run, for the text of a dry run."""
        return f"on cores {ranges_text(self.resources.cores)}"

    def run(
        self,
        plan: Plan,
        sweep: Path,
        preparation: bytes,
        lock_fd: int,
        ending: Sequence[int],
        saving: list[int],
        stop_rule: StopRule | None,
    ) -> dict[int, Verdict]:
        """Runs the jobs, with a check of the machine around them where they measure time.

        Signals that ask for the end grow in `ending`, those for checkpoints in `saving`, which is
        emptied. Returns how each job ended, by index; a job that never started is left out.
        """
        settings, cores = self._settings, self.resources.cores
        enabled = plan.exclusive if settings.check_cores is None else settings.check_cores
        needs = [job.need for job in plan.jobs]
        allocator = Allocator(needs, plan.order, self.resources, exclusive=plan.exclusive)
        with (
            checked_machine(sweep, plan, cores, ending, enabled=enabled),
            closing(Runner(plan, allocator, settings, preparation, lock_fd, stop_rule)) as runner,
        ):
            return runner.run(ending, saving)


class WorkersBackend(ABC):
    """Submits workers that claim the jobs, or finds those of an earlier command; follows the jobs.

    What differs between schedulers is abstract.
    """

    def __init__(self, settings: WalleLauncherConf, workers: SlurmConf | RayConf) -> None:
        self._settings, self._heartbeat_s = settings, workers.heartbeat_s
        cores = list(range(workers.cores or 0))
        self.resources = Resources(cores, [str(gpu) for gpu in range(workers.gpus)])
        self._earlier: Submission | None = None

    def _connected(self) -> AbstractContextManager[object]:
        return nullcontext()

    @abstractmethod
    def where(self, plan: Plan) -> str:
        """Where the jobs run, for the text of a dry run."""

    @abstractmethod
    def _states(self, names: Sequence[str]) -> Mapping[str, object] | None:
        """The workers of `Submission.arrays` that still exist; None if nobody answers."""

    @abstractmethod
    def _submit(self, plan: Plan, sweep: Path, directory: Path) -> Submission:
        """Starts workers for the plan that is stored in `directory`."""

    @abstractmethod
    def _how_to_end(self, submission: Submission) -> tuple[str, str]:
        """How to end the workers: after `to end them,`, and after `walle sweep status`."""

    def _end(
        self,
        submission: Submission,  # noqa: ARG002  Ray's backend looks at them
        follower: Follower,  # noqa: ARG002
        sweep: Path,  # noqa: ARG002
        ending: Sequence[int],  # noqa: ARG002
    ) -> bool:
        """Ends all workers after a signal and waits for them; False if they continue."""
        return False

    def _request_checkpoints(self, submission: Submission, saving: list[int]) -> None:  # noqa: B027
        """Asks the jobs for checkpoints; empties `saving`."""

    def _wait_until_gone(self, submission: Submission) -> None:  # noqa: B027
        """Waits for what the last worker does when all jobs have ended."""

    @contextmanager
    def locked(self, sweep: Path) -> Iterator[int]:
        """Locks the directory for this launcher; waits for jobs that a local launcher left.

        Yields -1 in place of the jobs' lock, as workers have locks of their own.
        """
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
        preparation: bytes,
        lock_fd: int,  # noqa: ARG002  workers have locks of their own
        ending: Sequence[int],
        saving: list[int],
        stop_rule: StopRule | None,
    ) -> dict[int, Verdict] | None:
        """Runs the jobs as `LocalBackend.run` does; returns None when it does not wait.

        Raises:
            BackendError: the jobs cannot run there.
            SystemExit: a signal ended the waiting; the workers continue.
        """
        submission = self._earlier
        if submission is None:
            directory = new_directory(sweep)
            store(directory, sweep, plan, self._settings, preparation)
            submission = self._submit(plan, sweep, directory)
        else:
            workers = ", ".join(submission.arrays)
            if more := set(plan.nums).difference(submission.nums):
                raise BackendError(
                    f"workers of an earlier command ({workers}) still run jobs of this sweep, and "
                    f"{count_text(len(more), 'job')} of this command are not theirs: wait for "
                    f"them, or {self._how_to_end(submission)[0]}"
                )
            log.info(f"the workers of an earlier command ({workers}) run these jobs")
        status = shlex.join(["walle", "sweep", "status", str(sweep)])
        how = f"`{status}` shows them{self._how_to_end(submission)[1]}"
        if not self._settings.wait:
            log.info(f"not waiting for the jobs: {how}")
            return None
        with closing(Screen(len(plan.jobs), len(plan.done))) as screen:
            follower = Follower(
                plan, submission, screen, self._states, stop_rule, self._heartbeat_s
            )
            verdicts = follower.follow(
                ending, lambda: self._request_checkpoints(submission, saving)
            )
            if ending and ending[0] == signal.SIGHUP:
                leave_terminal()
            if ending and self._end(submission, follower, sweep, ending):
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


POLL_S = 1.0
ASK_S = 30.0  # between two questions to the scheduler
LOST = Verdict("interrupted", "its worker vanished, and no other worker was left")


class Follower:
    """Shows the jobs of a submission as they start and end, and has some of them stopped."""

    def __init__(
        self,
        plan: Plan,
        submission: Submission,
        screen: Screen,
        ask: Callable[[Sequence[str]], Mapping[str, object] | None],
        stop_rule: StopRule | None = None,
        stop_rule_s: float = POLL_S,
    ) -> None:
        # `ask` is `WorkersBackend._states`; the stop rule is applied every `stop_rule_s` seconds.
        self._plan, self._submission, self.screen = plan, submission, screen
        self._ask = ask
        self._claims, self._stops = Claims(submission.directory), Stops(submission.directory)
        self._stop_rule, self._stop_rule_s, self._stop_rule_at = stop_rule, stop_rule_s, 0.0
        self._stopped: set[int] = set()  # indices of jobs that workers were asked to stop
        self._shown: dict[int, Claim] = {}  # the claim shown last, by the job's index
        self._verdicts: dict[int, Verdict] = {}

    def follow(
        self, ending: Sequence[int], meanwhile: Callable[[], None] = lambda: None
    ) -> dict[int, Verdict]:
        """Waits until all jobs have ended, no worker is left, or a signal arrives in `ending`.

        `meanwhile` is called about once a second.

        Returns:
            how each job ended, by index; a job that never started is left out.
        """
        ask_at, gone = time.monotonic() + ASK_S, False
        while not ending:
            self.look()
            self._apply_stop_rule()
            meanwhile()
            if gone or len(self._verdicts) == len(self._plan.order):
                break
            if time.monotonic() > ask_at:
                gone = self._ask(self._submission.arrays) == {}
                ask_at = time.monotonic() + ASK_S
            else:
                time.sleep(POLL_S)
        if gone:  # jobs that were running have ended with their workers
            lost = {i for i, claim in self._shown.items() if not claim.is_over}
            self._verdicts |= dict.fromkeys(lost, LOST)
            if left := len(self._plan.order) - len(self._verdicts) + len(lost):
                self.screen.warn(f"no worker is left for {count_text(left, 'job')}")
        return self._verdicts

    def ended_early(self) -> dict[int, Verdict]:
        """How each job ended after all workers were asked to end."""
        self.look()
        for index, claim in self._shown.items():
            if not claim.is_over:
                verdict = recorded_verdict(self._plan.jobs[index])
                self._verdicts[index] = LOST if verdict.state == "running" else verdict
        return self._verdicts

    def look(self) -> None:
        """Shows what is new."""
        newest = self._claims.newest()
        for index in self._plan.order:
            claim = newest.get(self._plan.jobs[index].num)
            if claim is not None and claim != self._shown.get(index):
                self._show(index, claim)
        running = [
            (job, _grant(index, job))
            for index, claim in self._shown.items()
            if claim.state is None and (job := self._plan.jobs[index])
        ]
        waiting = len(self._plan.order) - len(self._verdicts) - len(running)
        self.screen.update(running, waiting)

    def _apply_stop_rule(self) -> None:
        """Has the workers stop the jobs that need not run to their ends, or not start them."""
        if self._stop_rule is None or time.monotonic() < self._stop_rule_at:
            return
        self._stop_rule_at = time.monotonic() + self._stop_rule_s
        over = self._stopped | self._verdicts.keys()
        stops: list[tuple[bool, int, str]] = []
        for index in [i for i in self._plan.order if i not in over]:
            claim = self._shown.get(index)
            runs = claim is not None and claim.state is None
            if reason := self._stop_rule(self._plan.jobs[index], starts=runs):
                stops.append((runs, index, reason))
        for _, index, reason in sorted(stops):  # first those that wait for the cores of the others
            self._stops.ask(self._plan.jobs[index].num, reason)
            self._stopped.add(index)

    def _show(self, index: int, claim: Claim) -> None:
        job, before = self._plan.jobs[index], self._shown.get(index)
        if before is None or before.turn < claim.turn:
            if before is not None and before.state is None:
                self.screen.warn(f"#{job.num} changed hands: its worker was stopped or vanished")
            grant = _grant(index, job)
            if not grant.cores:  # claimed a moment ago, without a status.json, or never to start
                if claim.is_over and recorded_verdict(job).state == "pruned":
                    self._shown[index], self._verdicts[index] = claim, recorded_verdict(job)
                return
            self.screen.started(job, grant, "resumes" if claim.turn else "starts")
        self._shown[index] = claim
        if claim.is_over:
            verdict = recorded_verdict(job)
            self._verdicts[index] = verdict
            wanted = verdict.state in ("completed", "pruned")
            self.screen.ended(job, verdict, [] if wanted else last_lines(job.directory / LOG))


def recorded_verdict(job: Job) -> Verdict:
    """How a job ended, as its worker wrote it into status.json."""
    status = read_status(job.directory)
    return Verdict(
        status.get("state", "failed"),
        status.get("error"),
        status.get("exit_code"),
        status.get("signal"),
        status.get("return_value"),
    )


def _grant(index: int, job: Job) -> Grant:
    status = read_status(job.directory)
    over = bool(status.get("oversubscribed"))
    return Grant(index, tuple(status.get("cores") or ()), tuple(status.get("gpus") or ()), over)
