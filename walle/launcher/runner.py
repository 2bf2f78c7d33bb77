"""Runs jobs: starts, watches and ends them, and checks the machine before and after them."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from walle.launcher.allocation import Allocator, Grant, job_environment, thread_settings
from walle.launcher.jobs import ForkServer, Request, Verdict, judge, send_signal, wait_for_end
from walle.launcher.planning import Job, Plan, StopRule, can_resume
from walle.launcher.records import (
    LOG,
    is_done,
    is_recordable,
    last_lines,
    python_scalar,
    write_manifest,
)
from walle.launcher.screen import Screen, alike
from walle.launcher.settings import WalleLauncherConf
from walle.system.commands import COMMAND_VARIABLE, command_line
from walle.system.format import count_text, ranges_text
from walle.system.machine import busy_s, clock_mhz, oom_kills
from walle.system.run_files import read_status, set_aside, update_status
from walle.timing import timestamp

log = logging.getLogger(__name__)

POLL_S = 0.25
STOP_RULE_S = 1.0
PIECES = 20  # of work for each core in a check of the machine, about 0.05 s each
MOST_PIECES = 400  # on all cores together: machines with more than 20 cores do fewer on each
FEWEST_PIECES = 3
UNEQUAL = 0.1  # a core that is a tenth slower than the fastest one is reported
# Other programs are reported if they keep more cores busy than the first number plus, for the
# kernel's own work, the second times the number of cores.
BUSY_CORES, BUSY_SHARE = 0.1, 0.01
OthersBusy = Callable[[float | None], float | None]  # made by `others_clock`


@dataclass
class Active:
    """A job that is running."""

    job: Job
    grant: Grant
    link: Connection  # to its supervisor
    record: dict[str, Any]  # the launcher's fields of status.json that are known at the start
    log_start: int  # the size of its log at the start, in bytes
    oom_before: int  # the kernel's count of out-of-memory kills at the start
    # measures how busy other programs keep its cores; None unless jobs run one at a time
    others_busy: OthersBusy | None
    end_at: float  # when to stop the job, on the monotonic clock
    timed_out: bool = False  # whether the job was asked to stop at its time limit
    # why the job was asked to stop before its end; None for a job that was not
    pruned: str | None = None


class Runner:
    """Runs the jobs of one launch, or of one worker."""

    def __init__(
        self,
        plan: Plan,
        allocator: Allocator,
        settings: WalleLauncherConf,
        preparation: bytes,
        lock_fd: int,
        stop_rule: StopRule | None = None,
        command: str | None = None,
    ) -> None:
        """Starts a fork server, whose jobs keep `lock_fd`, the jobs' lock on the sweep's directory.

        The stop rule is called with each job before it starts, and once a second while it runs.
        `command` is the command line that started the sweep; None stands for this process's.
        """
        self._stop_rule: StopRule = stop_rule or (lambda _: None)
        self._stop_rule_at = 0.0
        self._plan, self._allocator, self._settings = plan, allocator, settings
        environ = job_environment(os.environ, thread_settings(settings.threads))
        environ[COMMAND_VARIABLE] = command or command_line()
        self._server = ForkServer(preparation, environ, lock_fd)
        self._screen = Screen(len(plan.jobs), len(plan.done))
        self._active: dict[int, Active] = {}
        self._tries: Counter[int] = Counter()
        self._failures = 0
        self._first: dict[str, int] = {}  # the number of the first job that failed, by cause
        self._seen = self._handled = 0  # signals that ask for the end: received, and passed on
        self._verdicts: dict[int, Verdict] = {}

    def close(self) -> None:
        """Ends the display and the fork server."""
        self._screen.close()
        self._server.close()

    def run(self, ending: Sequence[int], saving: list[int]) -> dict[int, Verdict]:
        """Runs until every job has ended or the sweep was stopped; returns verdicts by index.

        A job that never started is left out. Signals that ask for the end are appended to `ending`
        meanwhile, and those that ask for checkpoints to `saving`, which this method empties.
        """
        while True:
            self._pass_on(ending)
            while saving:
                self._signal_jobs(saving.pop(0))
            while (grant := self._allocator.next()) is not None:
                self._begin(grant)
            if not self._active:
                return self._verdicts
            links = {active.link: index for index, active in self._active.items()}
            for link in wait(list(links), timeout=POLL_S):
                self._finish(links[link])  # type: ignore[index]
            self._stop_jobs()
            running = [(active.job, active.grant) for active in self._active.values()]
            self._screen.update(running, self._allocator.waiting)

    def _begin(self, grant: Grant) -> None:
        job = self._plan.jobs[grant.job]
        reason = self._stop_rule(job)
        if reason is not None:
            update_status(job.directory, state="pruned", error=reason)
        completed = grant.again and is_done(read_status(job.directory), job.identity.config_hash)
        if reason is not None or completed:  # completed just before its worker was killed
            self._allocator.release(grant.job)
            self._conclude(grant.job, Verdict("pruned" if reason else "completed", reason))
            return
        again = grant.again or grant.job in self._plan.resumed or self._tries[grant.job] > 0
        record = start_attempt(job, grant, resume=again and can_resume(job))
        how = "resumes from its checkpoint" if record["resume"] else "starts again"
        attempt = record["attempts"]
        self._screen.started(job, grant, "starts" if attempt == 1 else f"{how} (attempt {attempt})")
        end_at = time.monotonic() + (self._settings.timeout_s or math.inf)
        log = job.directory.absolute() / LOG
        log_start = log.stat().st_size if log.exists() else 0
        others = others_clock(grant.cores) if self._plan.exclusive else None
        # An application without the key `device` chooses its GPUs by itself.
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(grant.gpus)} if "device" in job.config else {}
        link = self._server.start(Request(job.config, str(log), grant.cores, visible))
        self._tries[grant.job] += 1
        self._active[grant.job] = Active(
            job, grant, link, record, log_start, oom_kills(), others, end_at
        )

    def _finish(self, index: int) -> None:
        """Judges and records how a job ended, and hands its cores back."""
        active = self._active.pop(index)
        job, ended = active.job, wait_for_end(active.link)
        log = job.directory / LOG
        verdict = judge(
            ended,
            read_status(job.directory),
            timeout_s=self._settings.timeout_s if active.timed_out else None,
            pruned=active.pruned,
            interrupted=self._handled > 0,
            out_of_memory=oom_kills() > active.oom_before,
            last_line=next(iter(last_lines(log, active.log_start, 1)), None),
        )
        tail = [] if verdict.state in ("completed", "pruned") else last_lines(log, active.log_start)
        if verdict.state != "completed":
            last: dict[str, Any] = {"log_tail": tail}
        elif is_recordable(value := python_scalar(verdict.value)):
            last = {"return_value": value}
        else:
            last = {}
            self._screen.warn(
                f"#{job.num} returned a {type(value).__name__}, which JSON cannot hold: the job "
                "will run again when the sweep is resumed"
            )
        update_status(  # over what the job itself wrote
            job.directory,
            state=verdict.state,
            **active.record,
            exit_code=verdict.exit_code,
            signal=verdict.signal,
            error=verdict.error,
            ended=timestamp(),
            load_end=os.getloadavg()[0],
            mhz_end=clock_mhz(active.grant.cores),
            peak_memory_bytes=ended.peak_memory_bytes,
            others_busy=active.others_busy and active.others_busy(ended.cpu_s),
            **last,
        )
        self._allocator.release(index)
        shown = alike(self._first, job.num, verdict)
        self._screen.ended(job, shown, tail if shown is verdict else [])
        if ended.survivors:
            self._screen.warn(f"processes {ended.survivors} of #{job.num} cannot be killed")
        self._conclude(index, verdict)

    def _conclude(self, index: int, verdict: Verdict) -> None:
        """Tries a failed job again, or counts the failure; stops the sweep after too many."""
        self._verdicts[index] = verdict
        failed = verdict.state == "failed"
        if failed and self._tries[index] <= self._settings.retries and not self._allocator.stopped:
            self._allocator.requeue(index)
            return
        self._allocator.settle(index, verdict.state)
        self._failures += failed
        most = self._settings.max_failures
        others = len(self._first) > 1 or len(self._verdicts) > self._failures or self._plan.done
        alike = "" if others or most else " alike (hydra.launcher.max_failures=N allows more)"
        most = 3 if alike else most
        if failed and most is not None and self._failures >= most:
            if waiting := self._allocator.waiting:
                self._screen.stop(
                    f"{self._failures} failed{alike}: the {count_text(waiting, 'job')} still "
                    "waiting will not be started"
                )
            self._allocator.stop()

    def _stop_jobs(self) -> None:
        """Asks jobs that are past their limit or of no more use to stop, with a checkpoint.

        A job past its time limit is killed when `grace_s` has passed too.
        """
        now_s = time.monotonic()
        apply_rule = now_s >= self._stop_rule_at
        if apply_rule:
            self._stop_rule_at = now_s + STOP_RULE_S
        for active in self._active.values():
            if now_s >= active.end_at:
                send_signal(active.link, signal.SIGKILL if active.timed_out else signal.SIGTERM)
                active.timed_out, active.end_at = True, now_s + self._settings.grace_s
            if apply_rule and not active.pruned and (reason := self._stop_rule(active.job)):
                active.pruned = reason
                send_signal(active.link, signal.SIGTERM)

    def _pass_on(self, signals: Sequence[int]) -> None:
        """Asks the jobs to stop at the first signal, and kills them at a later SIGINT.

        Closing a terminal once sends two SIGHUPs, and Slurm more than one SIGTERM.
        """
        for signum in signals[self._seen :]:
            self._seen += 1
            if self._handled and signum != signal.SIGINT:
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
            send_signal(active.link, signum)


def start_attempt(job: Job, grant: Grant, *, resume: bool) -> dict[str, Any]:
    """Prepares the job's directory and status.json for the next attempt.

    The job reads from the field `resume` whether to continue from the checkpoint in its directory;
    if `resume` is false, the files of the last attempt are moved to attempts/. Returns the
    launcher's fields of status.json that are known at the start.
    """
    attempts = (read_status(job.directory).get("attempts") or 0) + 1
    record = {
        "config_hash": job.identity.config_hash,
        "attempts": attempts,
        "resume": resume,
        "started": timestamp(),
        "cores": grant.cores,
        "gpus": grant.gpus,
        "oversubscribed": grant.oversubscribed,
        "load_start": os.getloadavg()[0],
        "mhz_start": clock_mhz(grant.cores),
        "label": job.label,
        "sweep": "/".join(Path(job.config.hydra.sweep.dir).parts[-2:]),  # DATE/TIME by default
    }
    if job.block is not None:
        record["block"] = job.block
    ended = dict.fromkeys(("exit_code", "signal", "error", "ended"))
    if resume:
        ended["log_tail"] = None
        with (job.directory / LOG).open("a") as log:
            log.write(f"--- attempt {attempts}, {record['started']}: resumes from the checkpoint\n")
    else:
        set_aside(job.directory)
    update_status(job.directory, state="running", **record, **ended)
    return record


class CoreSpeeds(NamedTuple):
    """The result of timing the same work on all cores."""

    work_s: dict[int, float]  # the median of the seconds of a piece of work on each core
    # the mean number of these cores that other programs kept busy meanwhile; None if the kernel
    # does not show it
    others_busy: float | None


def others_clock(cores: Sequence[int]) -> OthersBusy:
    """Starts counting the processor time that other programs use on some cores.

    Returns a function that takes the processor seconds to exclude and returns the mean number of
    cores kept busy by other programs; None if unknown.
    """
    before_s, start_s = busy_s(cores), time.monotonic()

    def others_busy(own_s: float | None) -> float | None:
        after_s, elapsed_s = busy_s(cores), time.monotonic() - start_s
        if after_s is None or before_s is None or own_s is None or elapsed_s <= 0:
            return None
        return round(max(0.0, (after_s - before_s - own_s) / elapsed_s), 3)

    return others_busy


def time_on(core: int) -> float:
    """Seconds that one piece of work takes on a core; leaves this thread pinned to it."""
    os.sched_setaffinity(0, {core})
    start_s, total = time.perf_counter(), 0
    for number in range(500_000):  # stays in the core's own cache
        total += number * number % 7
    return time.perf_counter() - start_s


def core_speeds(cores: Sequence[int], stop: Collection[int] = ()) -> CoreSpeeds | None:
    """Times the same work on each core in turn, several times over; None if stopped."""
    times_s: dict[int, list[float]] = {core: [] for core in cores}
    allowed = os.sched_getaffinity(0)
    others_busy, own_s = others_clock(cores), time.thread_time()
    try:
        for _ in range(max(FEWEST_PIECES, min(PIECES, MOST_PIECES // len(cores)))):
            for core in cores:
                if stop:
                    return None
                times_s[core].append(time_on(core))
    finally:
        os.sched_setaffinity(0, allowed)
    work_s = {core: round(median(seconds), 6) for core, seconds in times_s.items()}
    return CoreSpeeds(work_s, others_busy(time.thread_time() - own_s))


@contextmanager
def checked_machine(
    sweep: Path, plan: Plan, cores: Sequence[int], stop: Collection[int], *, enabled: bool
) -> Iterator[None]:
    """If `enabled`, times the cores before and after the body, which runs the jobs of a launch.

    The launch's entry in manifest.json gets `machine`: both checks (see `CoreSpeeds`) and `notes`,
    sentences on what makes the sweep's times uncertain, which are also logged. A check ends early
    when `stop` is not empty.
    """
    checks: dict[str, CoreSpeeds | None] = {}
    logged: set[str] = set()

    def record() -> None:
        jobs = [plan.jobs[index] for index in plan.order] if plan.exclusive else []
        ran = {job.num: read_status(job.directory) for job in jobs}
        notes = machine_notes(checks.get("before"), checks.get("after"), ran)
        records = {when: speeds._asdict() for when, speeds in checks.items() if speeds}
        plan.manifest.launches[-1]["machine"] = {**records, "notes": notes}
        write_manifest(sweep, plan.manifest)
        for note in notes:
            if note not in logged:
                log.warning(note)
        logged.update(notes)

    if enabled:
        log.info(f"timing the same work on {count_text(len(cores), 'core')}")
        checks["before"] = core_speeds(cores, stop)
        record()
    yield
    if enabled:
        checks["after"] = core_speeds(cores, stop)
    if enabled or plan.exclusive:
        record()


def machine_notes(
    before: CoreSpeeds | None, after: CoreSpeeds | None, ran: Mapping[int, Mapping[str, Any]]
) -> list[str]:
    """Warnings for the user, in sentences; empty if all cores were equally fast, steady and free.

    `ran` holds the status.json of each job that ran, by its number.
    """
    notes: list[str] = []

    def named(cores: Collection[int]) -> str:
        return f"{'core' if len(cores) == 1 else 'cores'} {ranges_text(cores)}"

    for when, speeds in ("before the first job", before), ("after the last job", after):
        if speeds is None:
            continue
        fastest_s, slowest_s = min(speeds.work_s.values()), max(speeds.work_s.values())
        limit_s = fastest_s * (1 + UNEQUAL)
        if slow := [core for core, seconds in speeds.work_s.items() if seconds > limit_s]:
            notes.append(
                f"The cores were unequal {when}: {named(slow)} took up to "
                f"{slowest_s / fastest_s - 1:.0%} longer than the fastest core for the same work."
            )
        if is_busy(speeds.others_busy, len(speeds.work_s)):
            notes.append(
                f"The machine was not quiet {when}: other programs kept {speeds.others_busy:.2f} "
                f"of its {count_text(len(speeds.work_s), 'core')} busy."
            )
    if before and after:
        ratios = {core: after.work_s[core] / work_s for core, work_s in before.work_s.items()}
        changed = {c: r for c, r in ratios.items() if not 1 / (1 + UNEQUAL) <= r <= 1 + UNEQUAL}
        if changed:
            span = dict.fromkeys(f"{end(changed.values()):.2f}" for end in (min, max))
            notes.append(
                f"The speed of cores changed during the sweep: after the last job {named(changed)} "
                f"took {' to '.join(span)} times as long as before the first."
            )
    busy = {
        num: status["others_busy"]
        for num, status in ran.items()
        if is_busy(status.get("others_busy"), len(status.get("cores") or []))
    }
    if busy:  # first, because a script shows only the first note
        notes.insert(
            0,
            f"The machine was not quiet while {count_text(len(busy), 'job')} of {len(ran)} ran "
            f"(#{ranges_text(busy)}): other programs kept up to {max(busy.values()):.2f} of a "
            "job's cores busy.",
        )
    return notes


def is_busy(others_busy: float | None, cores: int) -> bool:
    """True when other programs used more of the cores than on a quiet machine."""
    return others_busy is not None and others_busy > BUSY_CORES + BUSY_SHARE * cores
