"""The loop that starts jobs, waits for their ends, enforces time limits and handles Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from walle.errors import cause_text
from walle.launcher import attempts
from walle.launcher.allocation import Allocator, Grant
from walle.launcher.composing import Job
from walle.launcher.jobs.client import RunningJob
from walle.launcher.jobs.fork_server import Ended
from walle.launcher.jobs.job import Request
from walle.launcher.jobs.verdict import Circumstances, Verdict, judge
from walle.launcher.jobs.watch import Watch
from walle.launcher.planning import Plan
from walle.launcher.records import LOG, is_recordable, last_lines, python_scalar, size_of
from walle.launcher.screen import Screen
from walle.launcher.settings import WalleLauncherConf
from walle.launcher.texts import start_text
from walle.launcher.timed.core_speeds import OthersClock, rounded
from walle.system.format import count_text
from walle.system.machine import clock_mhz, oom_kills
from walle.system.run_files import read_status, update_status
from walle.system.signals import leave_terminal
from walle.timing import timestamp

POLL_S = 0.25
WATCH_S = 1.0


@dataclass
class Active:
    """A job that is running.

    Attributes:
        job: the job.
        grant: its cores and GPUs.
        process: its process.
        record: the launcher's fields of status.json that are known at the start.
        log_start: the size of its log at the start, in bytes.
        oom_before: the kernel's count of out-of-memory kills at the start.
        others: counts the time of other programs on its cores; None if other jobs run there too.
        end_at: when to stop the job, on the monotonic clock; None without a limit.
        timed_out: whether the job has been asked to stop since.
        pruned: why the job was asked to stop before its end; None for a job that was not.
    """

    job: Job
    grant: Grant
    process: RunningJob
    record: dict[str, Any]
    log_start: int
    oom_before: int
    others: OthersClock | None
    end_at: float | None
    timed_out: bool = False
    pruned: str | None = None


class Runner:
    """Runs the jobs of one launch."""

    def __init__(
        self,
        plan: Plan,
        allocator: Allocator,
        settings: WalleLauncherConf,
        start: Callable[[Request], RunningJob],
        screen: Screen,
        watch: Watch | None = None,
    ) -> None:
        """Prepares the loop.

        Args:
            plan: the jobs of the launch, and which of them begin from a checkpoint.
            allocator: holds the jobs to run, in order, by their index in `plan.jobs`.
            settings: limits on failures, retries and time.
            start: starts a job's process.
            screen: shows what happens.
            watch: asked about each job before it starts, and once a second while it runs.
        """
        self._watch, self._watch_at = watch, 0.0
        self._plan, self._allocator, self._settings = plan, allocator, settings
        self._start, self._screen = start, screen
        self._active: dict[int, Active] = {}
        self._tries = dict.fromkeys(range(len(plan.jobs)), 0)
        self._failures = 0
        self._seen = self._handled = 0  # signals that ask for the end: received, and passed on
        self._verdicts: dict[int, Verdict] = {}

    def run(self, ending: Sequence[int], saving: list[int]) -> dict[int, Verdict]:
        """Runs until every job has ended or the sweep was stopped.

        Args:
            ending: the signals that ask for the end so far; grows while this runs.
            saving: the signals that ask the jobs for a checkpoint; emptied, and grows again.

        Returns:
            how each job ended, by index; a job that never started is left out.
        """
        while True:
            self._pass_on(ending)
            while saving:
                self._signal_jobs(saving.pop(0))
            while (grant := self._allocator.next()) is not None:
                self._begin(grant)
            if not self._active:
                return self._verdicts
            self._finish_ended()
            self._enforce_time_limits()
            self._prune()
            running = [(active.job, active.grant) for active in self._active.values()]
            self._screen.update(running, self._allocator.waiting)

    def _begin(self, grant: Grant) -> None:
        job = self._plan.jobs[grant.job]
        if self._watch is not None and (reason := self._watch(job)):
            update_status(job.directory, state="pruned", error=reason)
            self._allocator.release(grant.job)
            self._conclude(grant.job, Verdict("pruned", reason))
            return
        again = grant.again or grant.job in self._plan.resumed or self._tries[grant.job] > 0
        record = attempts.prepare(job, grant, resume=again and attempts.can_resume(job))
        self._screen.started(job, grant, start_text(record["attempts"], resumed=record["resume"]))
        limit = self._settings.timeout_s
        end_at = time.monotonic() + limit if limit is not None else None
        log_start = size_of(job.directory / LOG)
        others = OthersClock(grant.cores) if self._plan.exclusive else None
        process = self._start(_request(job, grant))
        self._tries[grant.job] += 1
        self._active[grant.job] = Active(
            job, grant, process, record, log_start, oom_kills(), others, end_at
        )

    def _finish_ended(self) -> None:
        """Waits a moment for jobs to end, and records how they ended."""
        by_link = {active.process.link: index for index, active in self._active.items()}
        for link in wait(list(by_link), timeout=POLL_S):
            self._finish(by_link[link])  # type: ignore[index]

    def _finish(self, index: int) -> None:
        active = self._active.pop(index)
        job, log = active.job, active.job.directory / LOG
        ended = active.process.result()
        status = read_status(job.directory)
        circumstances = Circumstances(
            timeout_s=self._settings.timeout_s if active.timed_out else None,
            pruned=active.pruned,
            interrupted=self._handled > 0,
            out_of_memory=oom_kills() > active.oom_before,
            own_state=status.get("state"),
            own_error=cause_text(status.get("error") or "") or None,
            own_signal=status.get("signal"),
            last_line=next(iter(last_lines(log, active.log_start, 1)), None),
        )
        verdict = judge(ended, circumstances)
        tail = [] if verdict.state in ("completed", "pruned") else last_lines(log, active.log_start)
        self._record(active, verdict, tail, ended)
        self._allocator.release(index)
        self._screen.ended(job, verdict, tail)
        if ended.survivors:
            self._screen.warn(f"processes {ended.survivors} of #{job.num} cannot be killed")
        self._conclude(index, verdict)

    def _record(self, active: Active, verdict: Verdict, tail: list[str], ended: Ended) -> None:
        """Writes the job's end into status.json, over what the job itself wrote."""
        if verdict.state != "completed":
            last: dict[str, Any] = {"log_tail": tail}
        elif is_recordable(value := python_scalar(verdict.value)):
            last = {"return_value": value}
        else:
            last = {}
            self._screen.warn(
                f"#{active.job.num} returned a {type(value).__name__}, which JSON cannot hold: the "
                "job will run again when the sweep is resumed"
            )
        update_status(
            active.job.directory,
            state=verdict.state,
            **active.record,
            exit_code=verdict.exit_code,
            signal=verdict.signal,
            error=verdict.error,
            ended=timestamp(),
            load_end=os.getloadavg()[0],
            mhz_end=clock_mhz(active.grant.cores),
            peak_memory_bytes=ended.peak_memory_bytes,
            others_busy=_others_busy(active, ended),
            **last,
        )

    def _conclude(self, index: int, verdict: Verdict) -> None:
        """Tries a failed job again, or counts the failure; stops the sweep after too many."""
        self._verdicts[index] = verdict
        failed = verdict.state == "failed"
        if failed and self._tries[index] <= self._settings.retries and not self._allocator.stopped:
            self._allocator.requeue(index)
            return
        self._allocator.settle(index, verdict.state)
        self._failures += failed
        most = 1 if self._settings.on_failure == "stop" else self._settings.max_failures
        if failed and most is not None and self._failures >= most:
            if waiting := self._allocator.waiting:
                self._screen.stop(
                    f"{self._failures} failed: the {count_text(waiting, 'job')} still waiting will "
                    "not be started"
                )
            self._allocator.stop()

    def _enforce_time_limits(self) -> None:
        """Asks a job past its time limit to stop; kills it when `grace_s` has passed too."""
        now_s = time.monotonic()
        for active in self._active.values():
            if active.end_at is None or now_s < active.end_at:
                continue
            active.process.signal(signal.SIGKILL if active.timed_out else signal.SIGTERM)
            active.timed_out = True
            active.end_at = now_s + self._settings.grace_s

    def _prune(self) -> None:
        """Asks the jobs that need not run to their ends to stop, with a checkpoint."""
        if self._watch is None or time.monotonic() < self._watch_at:
            return
        self._watch_at = time.monotonic() + WATCH_S
        for active in self._active.values():
            if active.pruned is None and (reason := self._watch(active.job)):
                active.pruned = reason
                active.process.signal(signal.SIGTERM)

    def _pass_on(self, signals: Sequence[int]) -> None:
        """Asks the jobs to stop at the first signal, and kills them at the second.

        A SIGHUP is never the second: one closing of a terminal sends two.
        """
        for signum in signals[self._seen :]:
            self._seen += 1
            if signum == signal.SIGHUP:
                leave_terminal()
                if self._handled:
                    continue
            self._handled += 1
            self._allocator.stop()
            if self._handled == 1:
                self._screen.stop(
                    "stopping: the running jobs are asked to end; a second Ctrl-C kills them"
                )
            polite = signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM
            self._signal_jobs(polite if self._handled == 1 else signal.SIGKILL)

    def _signal_jobs(self, signum: int) -> None:
        for active in self._active.values():
            active.process.signal(signum)


def _others_busy(active: Active, ended: Ended) -> float | None:
    """The mean number of the job's cores that other programs kept busy; None if it is unknown."""
    if active.others is None or ended.cpu_s is None:
        return None
    return rounded(active.others.others_busy(ended.cpu_s))


def _request(job: Job, grant: Grant) -> Request:
    # An application without the key `device` chooses its GPUs by itself.
    environ = {"CUDA_VISIBLE_DEVICES": ",".join(grant.gpus)} if "device" in job.config else {}
    return Request(job.config, str(job.directory.absolute() / LOG), grant.cores, environ)
