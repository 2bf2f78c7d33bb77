"""What a launch hands back: the list of failures to the user, the results to Hydra's sweeper."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hydra import version
from hydra.core.utils import JobReturn, JobRuntime, JobStatus
from omegaconf import OmegaConf

from hydra_plugins.walle_launcher._compose import Job, task_config
from hydra_plugins.walle_launcher._records import LOG
from hydra_plugins.walle_launcher._screen import ending_text
from hydra_plugins.walle_launcher._verdict import Verdict

NOT_STARTED = Verdict("pending", "not started: the sweep was stopped before its turn")


class JobFailedError(RuntimeError):
    """What reading the return value of a job that did not complete raises."""


def failure_list(ends: Sequence[tuple[Job, Verdict]], total: int) -> str:
    """Two lines a job that did not complete: why, and its directory.

    Args:
        ends: these jobs.
        total: the number of all.
    """
    lines = [f"{len(ends)} of {total} jobs did not complete:"]
    for job, verdict in sorted(ends, key=lambda end: end[0].num):
        lines += [f"  #{job.num} {job.label}: {ending_text(verdict)}", f"      {job.directory}"]
    return "\n".join(lines)


def job_return(job: Job, verdict: Verdict) -> JobReturn:
    """A job's end as Hydra's sweepers expect it."""
    completed = verdict.state == "completed"
    why = f"#{job.num} {job.label}: {ending_text(verdict)}; see {job.directory / LOG}"
    return JobReturn(
        overrides=[str(override) for override in job.config.hydra.overrides.task],
        cfg=task_config(job.config),
        hydra_cfg=OmegaConf.masked_copy(job.config, "hydra"),
        working_dir=str(job.directory) if _moves(job) else os.getcwd(),
        task_name=JobRuntime.instance().get("name"),
        status=JobStatus.COMPLETED if completed else JobStatus.FAILED,
        _return_value=verdict.value if completed else JobFailedError(why),
    )


def _moves(job: Job) -> bool:
    """True when Hydra runs the job inside its directory."""
    asked = job.config.hydra.job.chdir
    return not version.base_at_least("1.2") if asked is None else bool(asked)
