"""The check of the machine around a sweep that measures time: timed, printed and recorded."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from walle.launcher.planning import Plan
from walle.launcher.records import write_manifest
from walle.system.format import count_text, ranges_text
from walle.system.machine import busy_s
from walle.system.run_files import read_status

log = logging.getLogger(__name__)

PIECES = 20  # of work for each core, about 0.05 s each
MOST_PIECES = 400  # on all cores together: machines with more than 20 cores do fewer on each
FEWEST_PIECES = 3
UNEQUAL = 0.1  # a core that is a tenth slower than the fastest one is reported
# More cores kept busy by others than this are reported; the kernel's own work is the second number.
BUSY_CORES, BUSY_SHARE = 0.1, 0.01
OthersBusy = Callable[[float | None], float | None]


class CoreSpeeds(NamedTuple):
    """A check of all cores."""

    work_s: dict[int, float]  # the median of the seconds of a piece of work on each core
    # the mean number of these cores that other programs kept busy meanwhile; None where the kernel
    # does not show it
    others_busy: float | None


def others_clock(cores: Sequence[int]) -> OthersBusy:
    """Starts to count the processor time that other programs use on some cores.

    The function that it returns takes the processor seconds of the work that is not counted, and
    returns the mean number of cores that other programs have kept busy; None if it is unknown.
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
    """Times the same work on one core after the other, several times round; None if stopped."""
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
    """Times the cores before and after the body, which runs the jobs of a launch, if `enabled`.

    The launch's entry in manifest.json gets `machine`: both checks (see `CoreSpeeds`), and `notes`,
    sentences on what makes the sweep's times uncertain, which are logged too. A check ends early
    when something is in `stop`.
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
    """Sentences for the user; empty where all cores were equal, steady and free.

    `ran` has the content of status.json of each job that ran, by its number.
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
    if busy:
        notes.append(
            f"The machine was not quiet while {count_text(len(busy), 'job')} of {len(ran)} ran "
            f"(#{ranges_text(busy)}): other programs kept up to {max(busy.values()):.2f} of a "
            "job's cores busy."
        )
    return notes


def is_busy(others_busy: float | None, cores: int) -> bool:
    """True when other programs took more of the cores than a quiet machine's do."""
    return others_busy is not None and others_busy > BUSY_CORES + BUSY_SHARE * cores
