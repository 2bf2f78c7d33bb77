"""The loop that starts jobs, hears how they end, and minds the clock and Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import FrameType, TracebackType
from typing import Any

from hydra_plugins.walle_launcher._compose import Job
from hydra_plugins.walle_launcher._cores import Allocator, Grant
from hydra_plugins.walle_launcher._machine import Moment, moment, oom_kills
from hydra_plugins.walle_launcher._records import (
    LOG,
    last_lines,
    now,
    plain,
    read_status,
    recordable,
    set_aside,
    update_status,
)
from hydra_plugins.walle_launcher._screen import Screen
from hydra_plugins.walle_launcher._settings import WalleLauncherConf
from hydra_plugins.walle_launcher._verdict import Circumstances, Verdict, judge
from hydra_plugins.walle_launcher._warm import Running, unpickled

TICK_S = 0.25


class Interrupts:
    """Counts the requests to stop (Ctrl-C, SIGTERM, a closed terminal) instead of dying of them."""

    def __init__(self) -> None:
        """Begins with none."""
        self.received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        """Takes the signals over; only a main thread may, and only those not ignored so far."""
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(signum) != signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Gives the signals back."""
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _: FrameType | None) -> None:
        self.received.append(signum)


@dataclass
class Active:
    """A job that is running.

    Attributes:
        job: which.
        grant: what it runs on.
        running: its link.
        attempt: 1 the first time it runs in its directory.
        started: as status.json tells it.
        began: the machine at that moment.
        oom_before: the kernel's count of out-of-memory kills then.
        end_at: when its time is up, on the monotonic clock; None without a limit.
        timed_out: it has been asked to stop since.
    """

    job: Job
    grant: Grant
    running: Running
    attempt: int
    started: str
    began: Moment
    oom_before: int
    end_at: float | None
    timed_out: bool = False


class Runner:
    """Runs the jobs of one launch."""

    def __init__(
        self,
        jobs: Sequence[Job],
        allocator: Allocator,
        settings: WalleLauncherConf,
        start: Callable[[Job, Grant], Running],
        screen: Screen,
    ) -> None:
        """Prepares the loop.

        Args:
            jobs: all jobs of the launch, those to skip too.
            allocator: holds the ones to run, in order, by their index in `jobs`.
            settings: limits on failures, retries and time.
            start: starts a job's process.
            screen: shows what happens.
        """
        self._jobs = jobs
        self._allocator = allocator
        self._settings = settings
        self._start = start
        self._screen = screen
        self._active: dict[int, Active] = {}
        self._tries = dict.fromkeys(range(len(jobs)), 0)
        self._failures = 0
        self._heeded = 0
        self.verdicts: dict[int, Verdict] = {}

    def run(self, interrupts: Interrupts) -> None:
        """Runs until every job has ended or the sweep was stopped; fills `verdicts`."""
        while True:
            self._heed(interrupts)
            while (grant := self._allocator.next()) is not None:
                self._begin(grant)
            if not self._active:
                return
            self._listen()
            self._mind_the_clock()
            self._screen.update(self._active.values(), self._allocator.waiting)

    def _begin(self, grant: Grant) -> None:
        job = self._jobs[grant.job]
        attempt = int(read_status(job.directory).get("attempts", 0)) + 1
        set_aside(job.directory)
        began = moment(grant.cores)
        started = now()
        update_status(
            job.directory,
            state="running",
            config_hash=job.known.config_hash,
            attempts=attempt,
            exit_code=None,
            signal=None,
            error=None,
            started=started,
            ended=None,
            cores=grant.cores,
            oversubscribed=grant.oversubscribed,
        )
        self._screen.started(job, grant)
        limit = self._settings.timeout_s
        end_at = time.monotonic() + limit if limit is not None else None
        running = self._start(job, grant)
        self._tries[grant.job] += 1
        self._active[grant.job] = Active(
            job, grant, running, attempt, started, began, oom_kills(), end_at
        )

    def _listen(self) -> None:
        """Waits a moment for jobs to end, and takes their results."""
        by_link = {active.running.link: index for index, active in self._active.items()}
        for link in wait(list(by_link), timeout=TICK_S):
            self._finish(by_link[link])  # type: ignore[index]

    def _finish(self, index: int) -> None:
        active = self._active.pop(index)
        ended = active.running.result()
        status = read_status(active.job.directory)
        around = Circumstances(
            timeout_s=self._settings.timeout_s if active.timed_out else None,
            interrupted=self._heeded > 0,
            out_of_memory=oom_kills() > active.oom_before,
            own_state=status.get("state"),
            own_error=status.get("error"),
            own_signal=status.get("signal"),
            last_words=next(iter(last_lines(active.job.directory / LOG, lines=1)), None),
        )
        verdict = judge(ended, unpickled(ended.outcome), around)
        self._record(active, verdict, ended.peak_memory_bytes)
        self._allocator.release(index)
        self._screen.ended(active.job, verdict, self._tail(active.job, verdict))
        if ended.survivors:
            self._screen.warn(f"processes {ended.survivors} of #{active.job.num} cannot be killed")
        self._conclude(index, verdict)

    def _conclude(self, index: int, verdict: Verdict) -> None:
        """Tries a failed job again, or counts it; stops the sweep after too many."""
        self.verdicts[index] = verdict
        if verdict.state != "failed":
            return
        if self._tries[index] <= self._settings.retries and not self._allocator.stopped:
            self._allocator.again(index)
            return
        self._failures += 1
        most = 1 if self._settings.on_failure == "stop" else self._settings.max_failures
        if most is not None and self._failures >= most:
            if waiting := len(self._allocator.waiting):
                self._screen.warn(
                    f"{self._failures} failed: the {waiting} jobs still waiting are not started"
                )
            self._allocator.stop()

    def _record(self, active: Active, verdict: Verdict, peak_memory_bytes: int) -> None:
        ended = moment(active.grant.cores)
        fields: dict[str, Any] = {
            "state": verdict.state,
            "config_hash": active.job.known.config_hash,
            "attempts": active.attempt,
            "exit_code": verdict.exit_code,
            "signal": verdict.signal,
            "error": verdict.error,
            "started": active.started,
            "ended": now(),
            "cores": active.grant.cores,
            "gpus": active.grant.gpus,
            "oversubscribed": active.grant.oversubscribed,
            "load_start": active.began.load,
            "load_end": ended.load,
            "mhz_start": active.began.mhz,
            "mhz_end": ended.mhz,
            "peak_memory_bytes": peak_memory_bytes,
        }
        if verdict.state == "completed":
            fields |= self._return_value(active.job, verdict.value)
        else:
            fields["log_tail"] = self._tail(active.job, verdict)
        update_status(active.job.directory, **fields)

    def _return_value(self, job: Job, value: Any) -> dict[str, Any]:
        if recordable(plain(value)):
            return {"return_value": plain(value)}
        self._screen.warn(
            f"#{job.num} returned a {type(value).__name__}, which JSON cannot hold: the job will "
            "run again when the sweep is resumed"
        )
        return {}

    def _tail(self, job: Job, verdict: Verdict) -> list[str]:
        return [] if verdict.state == "completed" else last_lines(job.directory / LOG)

    def _mind_the_clock(self) -> None:
        """Asks jobs out of time to stop, and ends by force those that do not."""
        moment_s = time.monotonic()
        for active in self._active.values():
            if active.end_at is None or moment_s < active.end_at:
                continue
            active.running.signal(signal.SIGKILL if active.timed_out else signal.SIGTERM)
            active.timed_out = True
            active.end_at = moment_s + self._settings.grace_s

    def _heed(self, interrupts: Interrupts) -> None:
        """Passes a request to stop on to the jobs; a second one kills them."""
        for signum in interrupts.received[self._heeded :]:
            self._heeded += 1
            self._allocator.stop()
            if signum == signal.SIGHUP:
                _leave_terminal()
            if self._heeded == 1:
                self._screen.warn("stopping: the running jobs may finish cleanly; again to kill")
            own = signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM
            for active in self._active.values():
                active.running.signal(own if self._heeded == 1 else signal.SIGKILL)


def _leave_terminal() -> None:
    """Sends what is still printed nowhere: on a closed terminal each line would be an error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
