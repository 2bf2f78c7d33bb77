"""Where jobs run: on this machine, or in workers that Slurm or Ray starts elsewhere."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from walle.errors import ConfigError
from walle.launcher.allocation import Allocator, Grant, Resources, sweep_cores, visible_gpus
from walle.launcher.jobs import Verdict
from walle.launcher.planning import Job, Plan, StopRule, compares_times
from walle.launcher.records import LOG, jobs_locked, last_lines, launcher_locked
from walle.launcher.runner import Runner, checked_machine
from walle.launcher.screen import Screen
from walle.launcher.settings import RayConf, SlurmConf, WalleLauncherConf
from walle.launcher.workers import slurm
from walle.launcher.workers.claims import Claim, Claims, Stops
from walle.launcher.workers.submission import LOGS, Submission, new_directory, unfinished
from walle.launcher.workers.worker import store
from walle.system.format import count_text, ranges_text
from walle.system.run_files import read_status

log = logging.getLogger(__name__)

LOCK_WAIT_S = 15.0
MOST_SLURM_WORKERS = 16
POLL_S = 1.0
ASK_S = 30.0  # between two questions to the scheduler
LOST = Verdict("interrupted", "its worker vanished, and no other worker was left")


class Run(NamedTuple):
    """A sweep for a backend to run, and the signals that arrive meanwhile."""

    plan: Plan
    sweep: Path  # the sweep's directory
    preparation: bytes  # for the jobs' fork server, see `jobs.preparation`
    ending: Sequence[int]  # grows by each signal that asks for the end
    saving: list[int]  # grows by those that ask for checkpoints; the backend empties it
    stop_rule: StopRule | None


def refuse_in_slurm(submission: Submission) -> None:
    """Refuses a sweep whose workers are in Slurm's queue, where they hold no lock yet."""
    if submission.backend == "slurm" and slurm.states(submission.arrays):
        raise ConfigError(
            "Slurm still has workers for this sweep: wait for them, or end them with scancel "
            f"{' '.join(submission.arrays)}"
        )


class LocalBackend:
    """Runs jobs on the cores of this machine; they end with the command that started them."""

    def __init__(self, settings: WalleLauncherConf) -> None:
        self._settings = settings
        cores = sweep_cores(settings.cores)
        self.resources = Resources(cores, visible_gpus(settings.gpus, os.environ))

    @contextmanager
    def locked(self, sweep: Path) -> Iterator[None]:
        """Locks the directory for this launcher and its jobs."""
        with launcher_locked(sweep), jobs_locked(sweep, LOCK_WAIT_S) as self._lock_fd:
            if (newest := unfinished(sweep)) is not None:
                refuse_in_slurm(newest)
            yield

    def where(self, plan: Plan) -> str:  # noqa: ARG002  other backends look at it
        """Where the jobs run, for the text of a dry run."""
        return f"on cores {ranges_text(self.resources.cores)}"

    def run(self, run: Run) -> dict[int, Verdict]:
        """Runs the jobs, with a check of the machine around them if they measure time.

        Returns how each job ended, by index; a job that never started is left out.
        """
        plan, settings, cores = run.plan, self._settings, self.resources.cores
        enabled = plan.exclusive if settings.check_cores is None else settings.check_cores
        needs = [job.need for job in plan.jobs]
        allocator = Allocator(needs, plan.order, self.resources, exclusive=plan.exclusive)
        lock, rule = self._lock_fd, run.stop_rule
        with (
            checked_machine(run.sweep, plan, cores, run.ending, enabled=enabled),
            closing(Runner(plan, allocator, settings, run.preparation, lock, rule)) as runner,
        ):
            return runner.run(run.ending, run.saving)


class WorkersBackend(ABC):
    """Submits workers that claim the jobs, or finds those submitted earlier; follows the jobs."""

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
        """The workers of `Submission.arrays` that still exist; None if that is unknown."""

    @abstractmethod
    def _submit(self, plan: Plan, sweep: Path, directory: Path) -> Submission:
        """Starts workers for the plan that is stored in `directory`."""

    @abstractmethod
    def _how_to_end(self, submission: Submission) -> tuple[str, str]:
        """How to end the workers, as text for an error and the sentence on `walle sweep status`."""

    def _request_checkpoints(self, submission: Submission, saving: list[int]) -> None:  # noqa: B027
        """Asks the jobs for checkpoints; empties `saving`."""

    def _wait_for_workers(self, follower: Follower, sweep: Path, ending: Sequence[int]) -> bool:  # noqa: ARG002
        """Waits for the workers to end, and ends them after a signal; False if they continue."""
        return not ending

    @contextmanager
    def locked(self, sweep: Path) -> Iterator[None]:
        """Locks the directory for this launcher; waits for remaining jobs of a local launcher."""
        with launcher_locked(sweep), self._connected():
            self._earlier = self._running_submission(sweep)
            if self._earlier is None:
                with jobs_locked(sweep, LOCK_WAIT_S):
                    pass
            yield

    def _running_submission(self, sweep: Path) -> Submission | None:
        """The newest submission, if it has workers, and jobs that have not ended."""
        newest, backend = unfinished(sweep), self._settings.backend
        if newest is None:
            return None
        if newest.backend != backend:
            refuse_in_slurm(newest)
            return None
        if (states := self._states(newest.arrays)) is None:
            raise ConfigError(
                f"hydra.launcher.backend={backend} does not answer, and workers of an earlier "
                "command may still run: try again"
            )
        return newest if states else None

    def run(self, run: Run) -> dict[int, Verdict] | None:
        """Runs the jobs as `LocalBackend.run` does; returns None when it does not wait.

        Raises:
            ConfigError: the jobs cannot run on this backend.
            SystemExit: a signal ended the waiting; the workers continue.
        """
        plan, sweep, ending, submission = run.plan, run.sweep, run.ending, self._earlier
        if submission is None:
            directory = new_directory(sweep)
            store(directory, sweep, plan, self._settings, run.preparation)
            submission = self._submit(plan, sweep, directory)
        else:
            workers = ", ".join(submission.arrays)
            if more := set(plan.nums).difference(submission.jobs):
                raise ConfigError(
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
            rule = run.stop_rule, self._heartbeat_s
            follower = Follower(plan, submission, screen, self._states, *rule)
            verdicts = follower.follow(
                ending, lambda: self._request_checkpoints(submission, run.saving)
            )
            if self._wait_for_workers(follower, sweep, ending):
                return follower.ended_early() if ending else verdicts
        print(f"left; the workers continue: {how}", file=sys.stderr)
        raise SystemExit(128 + ending[0])

    def _compares_times(self, plan: Plan) -> bool:
        """Whether times are compared, so that all jobs must stay on one node."""
        # Jobs that run one at a time only because each takes all cores need not share a node.
        speed = compares_times(plan.jobs, plan.manifest.swept)
        return plan.exclusive and bool(self._settings.exclusive or speed)


class SlurmBackend(WorkersBackend):
    """Runs jobs in workers on cluster nodes; each worker is an element of an array of jobs."""

    def __init__(self, settings: WalleLauncherConf) -> None:
        super().__init__(settings, settings.slurm)
        self._slurm = settings.slurm
        slurm.check(self._slurm.partition)
        # Can its template be used?
        slurm.batch_script(self._slurm, "", name="", logs=Path(), cores=None)

    def where(self, plan: Plan) -> str:
        """See `WorkersBackend`."""
        workers, cores = self._size(plan)
        size = "a whole node" if cores is None else count_text(cores, "core")
        return f"in {count_text(workers, 'worker')} of Slurm with {size}"

    def _states(self, names: Sequence[str]) -> Mapping[str, object] | None:
        return slurm.states(names)

    def _how_to_end(self, submission: Submission) -> tuple[str, str]:
        cancel = f"scancel {' '.join(submission.arrays)}"
        return f"end them with {cancel}", f", `{cancel}` ends them"

    def _submit(self, plan: Plan, sweep: Path, directory: Path) -> Submission:
        workers, cores = self._size(plan)
        script = slurm.batch_script(
            self._slurm,
            shlex.join([sys.executable, "-m", "walle.launcher.workers.worker", str(directory)]),
            name=f"walle-{sweep.name}",
            logs=directory / LOGS,
            cores=cores,
        )
        (directory / "batch.sh").write_text(script)
        submission = Submission(directory, [], plan.nums)
        for elements in slurm.array_sizes(workers):
            submission.arrays.append(slurm.submit(script, elements))
            submission.record()
        log.info(
            f"submitted {count_text(workers, 'worker')} to Slurm: {', '.join(submission.arrays)}"
        )
        return submission

    def _size(self, plan: Plan) -> tuple[int, int | None]:
        """How many workers to submit, and with how many cores each; None for whole nodes.

        No more workers than jobs to run, and one if times are compared.
        """
        needs, conf = [plan.jobs[index].need.cores for index in plan.order], self._slurm
        cores = conf.cores or max((need or 1 for need in needs), default=1)
        enough = -(-sum(min(need or 1, cores) for need in needs) // cores)
        whole = plan.exclusive or None in needs
        if whole:
            enough = 1 if self._compares_times(plan) else len(needs)
        workers = min(conf.workers or min(enough, MOST_SLURM_WORKERS), len(needs))
        return workers, None if whole else cores


class Follower:
    """Shows the jobs of a submission as they start and end, and applies the stop rule to them."""

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
        self._plan, self.submission, self.screen, self._ask = plan, submission, screen, ask
        self._claims, self._stops = Claims(submission.directory), Stops(submission.directory)
        self._stop_rule, self._stop_rule_s, self._stop_rule_at = stop_rule, stop_rule_s, 0.0
        self._stopped: set[int] = set()  # indices of jobs that workers were asked to stop
        self._shown: dict[int, Claim] = {}  # the claim shown last, by the job's index
        self._verdicts: dict[int, Verdict] = {}

    def follow(
        self, ending: Sequence[int], meanwhile: Callable[[], None] = lambda: None
    ) -> dict[int, Verdict]:
        """Waits until all jobs have ended, no worker is left, or a signal arrives in `ending`.

        Returns how each job ended, by index; a job that never started is left out. `meanwhile` is
        called about once a second.
        """
        ask_at, gone = time.monotonic() + ASK_S, False
        while not ending:
            self.look()
            self._apply_stop_rule()
            meanwhile()
            if gone or len(self._verdicts) == len(self._plan.order):
                break
            if time.monotonic() > ask_at:
                gone = self._ask(self.submission.arrays) == {}
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
                _, verdict = recorded(index, self._plan.jobs[index])
                self._verdicts[index] = LOST if verdict.state == "running" else verdict
        return self._verdicts

    def look(self) -> None:
        """Shows the changes since the last call."""
        newest = self._claims.newest()
        for index in self._plan.order:
            claim = newest.get(self._plan.jobs[index].num)
            if claim is not None and claim != self._shown.get(index):
                self._show(index, claim)
        running = [
            (job, recorded(index, job)[0])
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
        stops: list[tuple[bool, int, str]] = []
        for index in self._plan.order:
            claim = self._shown.get(index)
            runs = claim is not None and claim.state is None
            over = index in self._stopped or index in self._verdicts
            if not over and (reason := self._stop_rule(self._plan.jobs[index], starts=runs)):
                stops.append((runs, index, reason))
        for _, index, reason in sorted(stops):  # first those that wait for the cores of the others
            self._stops.ask(self._plan.jobs[index].num, reason)
            self._stopped.add(index)

    def _show(self, index: int, claim: Claim) -> None:
        job, before = self._plan.jobs[index], self._shown.get(index)
        grant, verdict = recorded(index, job)
        if before is None or before.turn < claim.turn:
            if before is not None and before.state is None:
                self.screen.warn(f"#{job.num} changed hands: its worker was stopped or vanished")
            if not grant.cores:  # just claimed, without a status.json yet, or never to start
                if claim.is_over and verdict.state == "pruned":
                    self._shown[index], self._verdicts[index] = claim, verdict
                return
            self.screen.started(job, grant, "resumes" if claim.turn else "starts")
        self._shown[index] = claim
        if claim.is_over:
            self._verdicts[index] = verdict
            wanted = verdict.state in ("completed", "pruned")
            self.screen.ended(job, verdict, [] if wanted else last_lines(job.directory / LOG))


def recorded(index: int, job: Job) -> tuple[Grant, Verdict]:
    """The cores of a job and how it ended, as its worker wrote them into status.json."""
    status = read_status(job.directory)
    over = bool(status.get("oversubscribed"))
    grant = Grant(index, tuple(status.get("cores") or ()), tuple(status.get("gpus") or ()), over)
    end = [status.get(key) for key in ("error", "exit_code", "signal", "return_value")]
    return grant, Verdict(status.get("state", "failed"), *end)
