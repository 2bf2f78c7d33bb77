"""Sentences on a machine whose cores were unequal, changed their speed, or had other work to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from walle.launcher.timed.core_speeds import CoreSpeeds
from walle.system.format import count_text, ranges_text

UNEQUAL = 0.1  # a tenth slower is told
# Cores kept busy by others that are told. The kernel's own work is in the second number.
BUSY_CORES, BUSY_SHARE = 0.1, 0.01


def machine_notes(
    before: CoreSpeeds | None,
    after: CoreSpeeds | None,
    others: Mapping[int, float | None],
    cores: Mapping[int, int],
) -> list[str]:
    """Sentences for the user; none where all cores were equal, steady and free.

    Args:
        before: the check before the first job.
        after: the check after the last job.
        others: for each job, the mean number of its cores that other programs kept busy.
        cores: the number of cores of each job.
    """
    checks = [("before the first job", before), ("after the last job", after)]
    notes = [note for when, found in checks if found and (note := _unequal(found, when))]
    if before and after:
        notes += _changed(before, after)
    busy = [_busy_while_timed(found, when) for when, found in checks if found]
    return [*notes, *filter(None, busy), *_busy_jobs(others, cores)]


def is_busy(others_busy: float | None, cores: int) -> bool:
    """True when other programs took more of the cores than a quiet machine's do."""
    return others_busy is not None and others_busy > BUSY_CORES + BUSY_SHARE * cores


def _unequal(found: CoreSpeeds, when: str) -> str | None:
    """The sentence on cores of unequal speed; None where they are equal."""
    fastest_s = min(found.work_s.values())
    slow = [core for core, seconds in found.work_s.items() if seconds > fastest_s * (1 + UNEQUAL)]
    if not slow:
        return None
    most = max(found.work_s.values()) / fastest_s - 1
    return (
        f"The cores were unequal {when}: {_named(slow)} took up to {most:.0%} longer than the "
        "fastest core for the same work."
    )


def _changed(before: CoreSpeeds, after: CoreSpeeds) -> list[str]:
    """The sentence on cores that were not as fast after the sweep as before it."""
    ratios = {
        core: after.work_s[core] / seconds
        for core, seconds in before.work_s.items()
        if core in after.work_s
    }
    changed = {c: r for c, r in ratios.items() if not 1 / (1 + UNEQUAL) <= r <= 1 + UNEQUAL}
    if not changed:
        return []
    words = " to ".join(dict.fromkeys(f"{of(changed.values()):.2f}" for of in (min, max)))
    return [
        f"The speed of cores changed during the sweep: after the last job {_named(list(changed))} "
        f"took {words} times as long as before the first."
    ]


def _busy_while_timed(found: CoreSpeeds, when: str) -> str | None:
    if not is_busy(found.others_busy, len(found.work_s)):
        return None
    return (
        f"The machine was not quiet {when}: other programs kept {found.others_busy:.2f} of its "
        f"{count_text(len(found.work_s), 'core')} busy."
    )


def _busy_jobs(others: Mapping[int, float | None], cores: Mapping[int, int]) -> list[str]:
    busy = {job: number for job, number in others.items() if is_busy(number, cores[job])}
    most = max((number for number in busy.values() if number is not None), default=0.0)
    if not busy:
        return []
    nums = ranges_text(sorted(busy))
    return [
        f"The machine was not quiet while {count_text(len(busy), 'job')} of {len(others)} ran "
        f"(#{nums}): other programs kept up to {most:.2f} of a job's cores busy."
    ]


def _named(cores: Sequence[int]) -> str:
    return f"{'core' if len(cores) == 1 else 'cores'} {ranges_text(sorted(cores))}"
