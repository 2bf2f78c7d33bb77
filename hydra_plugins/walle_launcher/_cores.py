"""Cores and GPUs: what a job needs, and who gets which."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TOPOLOGY = Path("/sys/devices/system/cpu")


class Need(NamedTuple):
    """What a job asks for.

    Attributes:
        cores: processes that compute at the same time; None for as many as there are.
        gpus: devices.
    """

    cores: int | None = 1
    gpus: int = 0


def need(config: Mapping[str, Any]) -> Need:
    """What a job needs, from its config: walle's keys, or one core where there are none.

    Cores: one a sampler process; one more for the agent when it learns while they collect
    (`sampler.max_lag` other than 0); one more for each learner process after the first; never
    fewer than the threads that learn at one time. A serial sampler is the agent itself.
    GPUs: one a learner process when `device` names CUDA.
    """
    sampler, learner = _group(config, "sampler"), _group(config, "learner")
    learners, threads = _count(learner, "n"), _count(learner, "threads")
    gpus = learners if str(config.get("device")).partition(":")[0] == "cuda" else 0
    if sampler.get("name") == "serial":
        return Need(learners * threads, gpus)
    if "n" in sampler and sampler["n"] is None:
        return Need(None, gpus)
    samplers = _count(sampler, "n")
    if sampler.get("max_lag", 0) != 0:
        return Need(samplers + learners * threads, gpus)
    return Need(max(samplers + learners - 1, learners * threads), gpus)


def _group(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The group of that name; empty where there is none."""
    group = config.get(key)
    return group if isinstance(group, Mapping) else {}


def _count(group: Mapping[str, Any], key: str) -> int:
    """A number of processes or threads; 1 where another application's key means something else."""
    value = group.get(key)
    return value if isinstance(value, int) and value > 0 else 1


class Grant(NamedTuple):
    """What a job got.

    Attributes:
        job: the job's index in the list given to `Allocator`.
        cores: its own, ascending.
        gpus: its own; may name one twice.
        oversubscribed: it needs more than there are and runs alone on what there is.
    """

    job: int
    cores: tuple[int, ...]
    gpus: tuple[str, ...]
    oversubscribed: bool


class Allocator:
    """Hands out disjoint sets, strictly in the jobs' order.

    A job never overtakes an earlier one, small as it may be: the order of a sweep is part of its
    design, and a large job would starve otherwise.
    """

    def __init__(
        self,
        needs: Sequence[Need],
        order: Sequence[int],
        cores: Sequence[int],
        gpus: Sequence[str] = (),
        *,
        exclusive: bool = False,
    ) -> None:
        """Begins with all jobs waiting.

        Args:
            needs: of every job, by index.
            order: the indices of the jobs to run, first to last.
            cores: what there is, best first.
            gpus: slots.
            exclusive: one job at a time.
        """
        self._needs = needs
        self._waiting = deque(order)
        self._cores, self._gpus = tuple(cores), tuple(gpus)
        self._free_cores, self._free_gpus = list(cores), list(gpus)
        self._granted: dict[int, Grant] = {}
        self._exclusive = exclusive
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether no further job is to start."""
        return self._stopped

    @property
    def waiting(self) -> tuple[int, ...]:
        """The jobs not started yet, in order."""
        return tuple(self._waiting)

    def stop(self) -> None:
        """Starts no further job."""
        self._waiting.clear()
        self._stopped = True

    def again(self, job: int) -> None:
        """Puts a job at the end of the order once more."""
        self._waiting.append(job)

    def next(self) -> Grant | None:
        """Starts the next job if it may start now."""
        if not self._waiting:
            return None
        job = self._waiting[0]
        grant = self._grant(job, self._needs[job])
        if grant is None:
            return None
        self._waiting.popleft()
        self._granted[job] = grant
        self._free_cores = [core for core in self._free_cores if core not in grant.cores]
        self._free_gpus = self._free_gpus[len(grant.gpus) :]
        return grant

    def release(self, job: int) -> None:
        """Takes back what a job that ended had."""
        grant = self._granted.pop(job)
        freed = {*self._free_cores, *grant.cores}
        self._free_cores = [core for core in self._cores if core in freed]
        self._free_gpus = [*grant.gpus, *self._free_gpus]

    def _grant(self, job: int, wanted: Need) -> Grant | None:
        cores = len(self._cores) if wanted.cores is None else wanted.cores
        over = cores > len(self._cores) or wanted.gpus > len(self._gpus)
        cores, gpus = min(cores, len(self._cores)), min(wanted.gpus, len(self._gpus))
        if self._granted and (over or self._exclusive):
            return None
        if cores > len(self._free_cores) or gpus > len(self._free_gpus):
            return None
        own = tuple(sorted(self._free_cores[:cores]))
        return Grant(job, own, tuple(self._free_gpus[:gpus]), over)


def spread(cores: Sequence[int], siblings: Mapping[int, Sequence[int]]) -> list[int]:
    """Cores in the order to hand them out: one of each physical core before any second one.

    Args:
        cores: numbers as the kernel has them.
        siblings: the hardware threads of each core's physical core, itself among them.
    """

    def rank(core: int) -> tuple[int, int]:
        return sum(other < core for other in siblings.get(core, ()) if other in cores), core

    return sorted(cores, key=rank)


def read_siblings(cores: Sequence[int], topology: Path = TOPOLOGY) -> dict[int, list[int]]:
    """The hardware threads that share each core, where the kernel tells."""
    found = {}
    for core in cores:
        file = topology / f"cpu{core}" / "topology" / "thread_siblings_list"
        if file.exists():
            found[core] = parse_cpu_list(file.read_text())
    return found


def parse_cpu_list(text: str) -> list[int]:
    """The kernel's notation: `0-2,8` is `[0, 1, 2, 8]`."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return cores


def usable_cores(asked: Sequence[int] | None) -> list[int]:
    """The sweep's cores, best first.

    Args:
        asked: `hydra.launcher.cores`.

    Raises:
        ValueError: a core was asked for that this process may not use.
    """
    usable = os.sched_getaffinity(0)
    cores = sorted(usable) if asked is None else list(asked)
    if strange := sorted(set(cores) - usable):
        raise ValueError(
            f"hydra.launcher.cores names {strange}, but this process may only run on "
            f"{sorted(usable)}: name some of these, or leave it null for all"
        )
    if not cores or len(set(cores)) != len(cores):
        raise ValueError(
            f"hydra.launcher.cores={cores} must name at least one core, and none twice"
        )
    return spread(cores, read_siblings(cores))
