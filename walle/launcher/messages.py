"""Messages about jobs: their labels, how they started and ended, how to resume a sweep."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from walle.system.format import count_text, duration_text, list_text, ranges_text

if TYPE_CHECKING:  # not loaded: `walle.sweep` needs these messages and starts without Hydra
    from walle.launcher.composing import Job
    from walle.launcher.jobs.verdict import Verdict


def time_left_text(seconds: float | None) -> str:
    """`, about 3 min left`; empty for None and 0."""
    return f", about {duration_text(seconds)} left" if seconds else ""


def job_label(overrides: Sequence[str], swept: Collection[str]) -> str:
    """The overrides that distinguish a job from the others, in one line."""
    shown = [text for text in overrides if text.lstrip("+").partition("=")[0] in swept]
    return " ".join(" ".join(shown).split()) or "(the only job)"


def repeats_text(overrides: Sequence[Sequence[str]], indices: Sequence[int]) -> str:
    """One line about the jobs that repeat another job's configuration: those of equal `indices`."""
    groups: dict[int, list[str]] = {}
    for job, index in zip(overrides, indices, strict=True):
        text = " ".join(override.removeprefix("++") for override in job)
        groups.setdefault(index, []).append(text or "no overrides")
    repeated = [", ".join(group) for group in groups.values() if len(group) > 1]
    return (
        f"{len(overrides) - len(groups)} of {len(overrides)} jobs repeat the configuration of "
        f"another job, and are not run a second time: {list_text(repeated)}"
    )


def start_text(attempt: int, *, resumed: bool) -> str:
    """`starts`, `starts again (attempt 2)` or `resumes from its checkpoint (attempt 2)`."""
    if attempt == 1:
        return "starts"
    return f"{'resumes from its checkpoint' if resumed else 'starts again'} (attempt {attempt})"


def ending_text(verdict: Verdict) -> str:
    """`completed`, `failed: why (exit code 3)`, or why the job never started."""
    if verdict.error is None:
        return verdict.state
    text = verdict.error if verdict.state == "pending" else f"{verdict.state}: {verdict.error}"
    code, name = verdict.exit_code, verdict.signal
    if code and not (name and code == 128 + signal.Signals[name]):  # else the signal says it
        text += f" (exit code {code})"
    return text if not name or name in verdict.error else f"{text} ({name})"


def failure_list(ends: Iterable[tuple[Job, Verdict]], total: int) -> str:
    """Two lines for each job that did not complete, the reason and its directory.

    The jobs that never started have one line in common.
    """
    ordered = sorted(ends, key=lambda end: end[0].num)
    waiting = [job.num for job, verdict in ordered if verdict.state == "pending"]
    lines = [f"{len(ordered)} of {total} jobs did not complete:"]
    for job, verdict in ordered:
        if verdict.state != "pending":
            lines += [f"  #{job.num} {job.label}: {ending_text(verdict)}", f"      {job.directory}"]
    if waiting:
        lines.append(f"  #{ranges_text(waiting)}: not started: the sweep was stopped before")
    return "\n".join(lines)


def resume_text(command: str, resumable: int = 0) -> str:
    """How to run the jobs that are not complete, `resumable` of which have a checkpoint."""
    some = f" ({count_text(resumable, 'job')} from a checkpoint)" if resumable else ""
    return f"To resume{some}: {command}"
