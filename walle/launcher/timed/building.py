"""Builds what timed jobs have in common, such as compiled programs, before the first job starts."""

from __future__ import annotations

import logging
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any

from omegaconf import DictConfig

from walle.launcher.composing import Job, task_config
from walle.launcher.jobs.client import RunningJob
from walle.launcher.jobs.fork_server import Ended
from walle.launcher.jobs.job import JobResult, Preparing
from walle.launcher.planning import Plan
from walle.launcher.resources import Resources
from walle.system.format import count_text
from walle.system.identity import as_json

log = logging.getLogger(__name__)

POLL_S = 0.25
SILENT_POLLS = 8  # a full cache takes less, and needs no words


def build_first(
    plan: Plan,
    resources: Resources,
    function: str,
    repeat: str,
    start: Callable[[Preparing], RunningJob],
    ending: Sequence[int],
) -> None:
    """Calls `function` with the configs of the jobs, in a process of its own.

    The jobs on the CPU and those on GPUs have a process each, which sees what the jobs will see.
    A process that fails is only logged: the jobs build for themselves what they do not find, and
    say what is wrong.

    Args:
        plan: the jobs.
        resources: cores and GPUs of the sweep.
        function: `module.function`; it returns a line for the log, or None.
        repeat: the key in which the repeats of a setting differ; one config for each setting is
            enough.
        start: starts the process.
        ending: signals that ask for the end so far; grows.
    """
    jobs = [plan.jobs[index] for index in plan.order]
    for gpus in sorted({job.need.gpus > 0 for job in jobs}):
        alike = [job for job in jobs if (job.need.gpus > 0) == gpus]
        visible = ",".join(resources.gpus[: max(job.need.gpus for job in alike)])
        environ = {"CUDA_VISIBLE_DEVICES": visible} if "device" in alike[0].config else {}
        configs = list(_distinct(alike, repeat))
        cores = tuple(resources.cores)
        process = start(Preparing(function, configs, os.devnull, cores, environ))
        if line := _line(_ended(process, len(alike), ending)):
            log.info(line)


def _distinct(jobs: Sequence[Job], repeat: str) -> Iterator[DictConfig]:
    """The configs that differ in more than the key `repeat`."""
    seen = set()
    for job in jobs:
        content = {key: each for key, each in job.identity.config.items() if key != repeat}
        if (text := as_json(content)) not in seen:
            seen.add(text)
            yield task_config(job.config)


def _ended(process: RunningJob, jobs: int, ending: Sequence[int]) -> Ended:
    """Waits for the end of the process, which is asked to end when a signal arrives."""
    polls = asked = 0
    while not wait([process.link], timeout=POLL_S):
        polls += 1
        if polls == SILENT_POLLS:
            log.info(f"building what {count_text(jobs, 'job')} will need, before the first starts")
        for _ in ending[asked:]:
            process.signal(signal.SIGKILL if asked else signal.SIGINT)
            asked += 1
    return process.result()


def _line(ended: Ended) -> str | None:
    """What the function returned, or how its process failed."""
    if ended.result is None:
        return None  # stopped, or killed; the jobs meet the same fault and have a log to tell it
    result: JobResult = pickle.loads(ended.result)
    value: Any = result.value
    if result.error:
        return f"nothing was built before the first job, so the jobs do it ({result.error})"
    return value if value is None else str(value)
