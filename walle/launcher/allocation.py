"""The cores, GPUs and threads of a sweep: what each job needs and gets."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from walle.system.machine import THREAD_VARIABLES, read_siblings, spread, usable_cores

# These variables make a library bind its threads to cores, which undoes the samplers' pinning.
BINDING_VARIABLES = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES")


class Need(NamedTuple):
    """The number of cores and GPUs that a job needs."""

    # processes that compute at the same time; None for all cores of the sweep
    cores: int | None = 1
    gpus: int = 0
    turn: int = 0  # the number of its repeat; if jobs run alone, each repeat gets other cores


def need(config: Mapping[str, Any]) -> Need:
    """Finds what a job needs from walle's keys in its config; one core without such keys.

    Cores: the larger of the numbers of sampler processes and learning threads, because in
    lock-step one group waits while the other works; their sum if learners learn while samplers
    collect (`sampler.max_lag` other than 0). A serial sampler runs inside the agent. All cores are
    needed if the number of samplers or learners is left open.
    GPUs: one for each learner process when `device` names CUDA.
    """

    def count(group: Mapping[str, Any], key: str) -> int:  # 1 if the key means something else
        value = group.get(key)
        return value if isinstance(value, int) and value > 0 else 1

    groups = (config.get(key) for key in ("sampler", "learner"))
    sampler, learner = (group if isinstance(group, Mapping) else {} for group in groups)
    learners = count(learner, "n")
    threads = learners * count(learner, "threads")
    gpus = learners if str(config.get("device")).partition(":")[0] == "cuda" else 0
    serial = sampler.get("name") == "serial"
    if any(group.get("n", 1) is None for group in ([learner] if serial else [learner, sampler])):
        return Need(None, gpus)
    if serial:
        return Need(threads, gpus)
    samplers = count(sampler, "n")
    together = sampler.get("max_lag", 0) != 0
    return Need(samplers + threads if together else max(samplers, threads), gpus)


class Grant(NamedTuple):
    """The cores and GPUs that a job got."""

    job: int  # the job's index in the list given to `Allocator`
    cores: tuple[int, ...]  # numbers of its cores, ascending
    gpus: tuple[str, ...]  # names of its GPUs; a name may appear twice
    oversubscribed: bool  # the job needs more than the sweep has; it runs alone on everything
    again: bool = False  # another worker has started the job before


class Resources(NamedTuple):
    """Cores and GPUs that a sweep may use."""

    cores: list[int]  # in the order to hand them out
    gpus: list[str]  # a GPU may be named more than once


class Allocator:
    """Hands out cores and GPUs to jobs, strictly in the jobs' order.

    No job overtakes an earlier one, however small: the order of a sweep is part of its design, and
    a large job might otherwise wait forever.
    """

    def __init__(
        self,
        needs: Sequence[Need],  # of every job, by index
        order: Sequence[int],  # the indices of the jobs to run
        resources: Resources,
        *,
        exclusive: bool = False,
    ) -> None:
        self._needs, self._exclusive = needs, exclusive
        self._waiting = deque(order)
        self._cores, self._gpus = resources
        self._granted: dict[int, Grant] = {}
        self.stopped = False

    @property
    def waiting(self) -> int:
        """The number of jobs that have not started yet."""
        return len(self._waiting)

    def stop(self) -> None:
        """Drops the waiting jobs, which will not start."""
        self._waiting.clear()
        self.stopped = True

    def requeue(self, job: int) -> None:
        """Puts a job that has already run at the front of the queue.

        A sweep in which everything fails then reaches its limit on failures after a few jobs. If
        the job went to the end, all others would run before the first one failed for good.
        """
        self._waiting.appendleft(job)

    def next(self) -> Grant | None:
        """Grants the next job its cores and GPUs; None if it cannot start now."""
        grant = self._grant(self._waiting[0]) if self._waiting else None
        return None if grant is None else self._take(grant)

    def release(self, job: int) -> None:
        """Takes back the cores and GPUs of a job that ended."""
        del self._granted[job]

    def settle(self, job: int, state: str) -> None:
        """Records a job's final state for other workers; a no-op here, where there are none."""

    def _take(self, grant: Grant) -> Grant:
        self._waiting.remove(grant.job)
        self._granted[grant.job] = grant
        return grant

    def _grant(self, job: int) -> Grant | None:
        wanted, granted = self._needs[job], self._granted.values()
        count = len(self._cores) if wanted.cores is None else wanted.cores
        over = count > len(self._cores) or wanted.gpus > len(self._gpus)
        count, gpus = min(count, len(self._cores)), min(wanted.gpus, len(self._gpus))
        used = {core for grant in granted for core in grant.cores}
        free, free_gpus = [core for core in self._cores if core not in used], list(self._gpus)
        for gpu in (gpu for grant in granted for gpu in grant.gpus):
            free_gpus.remove(gpu)
        if (granted and (over or self._exclusive)) or count > len(free) or gpus > len(free_gpus):
            return None
        # Cores are seldom equally fast: a sweep that timed one sampler on the same core in every
        # block would mistake this core's speed for that of one sampler, and no number of seeds
        # would show the error. So when jobs run alone, the cores of each turn start where those of
        # the turn before ended.
        start = wanted.turn * count % len(free) if self._exclusive else 0
        cores = tuple(sorted([*free[start:], *free[:start]][:count]))
        return Grant(job, cores, tuple(free_gpus[:gpus]), over)


def sweep_cores(wanted: Sequence[int] | None) -> list[int]:
    """The cores of `hydra.launcher.cores`, or all usable ones, in the order to hand them out.

    Raises `ValueError` if the setting names an unusable core, no core, or a core twice.
    """
    usable = sorted(os.sched_getaffinity(0))
    cores = usable_cores() if wanted is None else sorted(wanted)
    if unusable := sorted(set(cores).difference(usable)):
        raise ValueError(
            f"hydra.launcher.cores names {unusable}, but this process may only run on {usable}: "
            "name some of these, or leave it null for all"
        )
    if not cores or len(set(cores)) != len(cores):
        raise ValueError(
            f"hydra.launcher.cores={cores} must name at least one core, and none twice"
        )
    return spread(cores, read_siblings(cores))


def visible_gpus(wanted: Sequence[str] | None, environ: Mapping[str, str]) -> list[str]:
    """The sweep's GPUs, as in `CUDA_VISIBLE_DEVICES`: `wanted`, else the visible ones, else all."""
    if wanted is not None:
        return list(wanted)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    listing = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    count = listing.stdout.count("GPU ") if listing.returncode == 0 else 0
    return [str(gpu) for gpu in range(count)]


def thread_settings(threads: int) -> dict[str, str]:
    """Environment variables that fix the number of threads of a job's libraries."""
    settings = dict.fromkeys(THREAD_VARIABLES, str(threads))
    return settings | {"OMP_PROC_BIND": "false", "OMP_DYNAMIC": "false", "MKL_DYNAMIC": "FALSE"}


def job_environment(inherited: Mapping[str, str], threads: Mapping[str, str]) -> dict[str, str]:
    """The environment of every job: the user's, with `threads` and no `BINDING_VARIABLES`."""
    return {k: v for k, v in inherited.items() if k not in BINDING_VARIABLES} | dict(threads)
