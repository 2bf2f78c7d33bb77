"""The start of an attempt at a job: without the files of earlier attempts, or on from a checkpoint.

The launcher tells the job which of the two by the field `resume` of status.json. Where it is true,
the job goes on from the checkpoint in its directory; where it is false, there is none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from walle.launcher.allocation import Grant
from walle.launcher.composing import Job
from walle.launcher.records import LOG
from walle.system.machine import clock_mhz
from walle.system.run_files import has_checkpoint, read_status, set_aside, update_status
from walle.timing import timestamp


def can_resume(job: Job) -> bool:
    """Whether the job's directory holds a checkpoint of a run with its config that did not end.

    It does not matter why the run did not complete: it was interrupted or killed, ran past its
    limit of time, or failed.
    """
    status = read_status(job.directory)
    if status.get("config_hash") != job.identity.config_hash or status.get("state") == "completed":
        return False
    return has_checkpoint(job.directory)


def prepare(job: Job, grant: Grant, *, resume: bool) -> dict[str, Any]:
    """Prepares the job's directory and status.json for the next attempt.

    Args:
        job: the job.
        grant: its cores and GPUs.
        resume: keep the files of the last attempt, from which this one goes on; otherwise they are
            set aside.

    Returns:
        The launcher's fields of status.json that are known at the start.
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
            log.write(f"--- attempt {attempts}, {record['started']}: on from the checkpoint\n")
    else:
        set_aside(job.directory)
    update_status(job.directory, state="running", **record, **ended)
    return record
