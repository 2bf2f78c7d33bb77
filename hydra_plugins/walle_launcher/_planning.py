"""From override lists to a plan: what runs where, what is done already, what is refused."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.types import HydraContext
from omegaconf import DictConfig

from hydra_plugins.walle_launcher import _compose
from hydra_plugins.walle_launcher._compose import Composed, Job, PlanError
from hydra_plugins.walle_launcher._identity import assign_numbers, refuse_other_base
from hydra_plugins.walle_launcher._machine import thread_settings
from hydra_plugins.walle_launcher._records import (
    MANIFEST,
    JobRecord,
    Manifest,
    is_done,
    now,
    read_manifest,
    read_status,
)
from hydra_plugins.walle_launcher._screen import cores_text, label
from hydra_plugins.walle_launcher._settings import WalleLauncherConf

log = logging.getLogger(__name__)


class Resources(NamedTuple):
    """What a sweep may use.

    Attributes:
        cores: best first.
        gpus: slots.
    """

    cores: list[int]
    gpus: list[str]


class Plan(NamedTuple):
    """A launch before its first job.

    Attributes:
        jobs: in the order of the overrides given.
        done: recorded return values of the jobs to skip, by index.
        order: indices of the jobs to run, first to last.
        manifest: to be written.
        exclusive: one job at a time.
    """

    jobs: list[Job]
    done: dict[int, Any]
    order: list[int]
    manifest: Manifest
    exclusive: bool


class Planner:
    """Plans the batches of one launch."""

    def __init__(
        self,
        settings: WalleLauncherConf,
        context: HydraContext,
        config: DictConfig,
        resources: Resources,
        moved_to: str | None,
    ) -> None:
        """Keeps what all batches share.

        Args:
            settings: of the launcher.
            context: holds Hydra's loader.
            config: the sweep's.
            resources: cores and GPUs of the sweep.
            moved_to: the sweep's directory, where it is not the one of the jobs' configs.
        """
        self._settings, self._context, self._config = settings, context, config
        self._resources, self._moved_to = resources, moved_to
        self._sweep = Path(str(config.hydra.sweep.dir))
        self._manifest: Manifest | None = None

    def compose(self, overrides: Sequence[Sequence[str]]) -> list[Composed]:
        """Composes and checks the jobs, of each of which the overrides are given.

        Raises:
            PlanError: some of them cannot run as asked.
        """
        composed = _compose.compose(
            self._context, self._config, overrides, self._settings.hash_ignore
        )
        _compose.validate(composed, self._settings.validate)
        return composed

    def plan(self, composed: Sequence[Composed], first_num: int) -> Plan:
        """Numbers the jobs; finds those that are done.

        Args:
            composed: the jobs.
            first_num: the number of the first, in a directory that has none yet.

        Raises:
            ValueError: something cannot run as asked, or is not more of the recorded sweep.
        """
        before = self._recorded()
        overrides = [job.overrides for job in composed]
        swept = _compose.swept_keys(self._context, self._config, overrides).union(before.swept)
        jobs = self._numbered(composed, before, swept, first_num)
        done = _done(jobs, before)
        order = [i for i in _compose.in_order(composed, self._settings.order) if i not in done]
        exclusive = self._is_exclusive(composed, swept)
        manifest = self._merged(before, jobs, order, swept, exclusive)
        return Plan(jobs, done, order, manifest, exclusive)

    def keep(self, plan: Plan) -> None:
        """The plan is carried out: the next batch of an adaptive sweeper adds to it."""
        self._manifest = plan.manifest

    def _recorded(self) -> Manifest:
        """The sweep so far: of this launch's earlier batches, or of the launches before it."""
        if self._manifest is not None:
            return self._manifest
        resumes = self._settings.resume
        if resumes is None:
            resumes = bool(self._config.get("name"))
        if resumes and (self._sweep / MANIFEST).exists():
            return read_manifest(self._sweep)
        return Manifest((), {}, (), ())

    def _numbered(
        self, composed: Sequence[Composed], before: Manifest, swept: set[str], first_num: int
    ) -> list[Job]:
        known, wanted = [job.known for job in before.jobs], [job.known for job in composed]
        if self._manifest is None:  # a later batch belongs to this sweep by definition
            refuse_other_base(known, wanted, swept)
        jobs = [
            _compose.place(job, num, label(job.overrides, swept), self._moved_to)
            for job, num in zip(composed, assign_numbers(known, wanted, first_num), strict=True)
        ]
        _compose.refuse_shared_directories(jobs)
        check_gpus(jobs, self._resources.gpus)
        return jobs

    def _is_exclusive(self, jobs: Sequence[Composed], swept: set[str]) -> bool:
        if self._settings.exclusive is not None:
            return self._settings.exclusive
        return _compose.compares_times(jobs, swept)

    def _merged(
        self,
        before: Manifest,
        jobs: Sequence[Job],
        order: Sequence[int],
        swept: Iterable[str],
        exclusive: bool,
    ) -> Manifest:
        """The manifest with this launch's jobs."""
        entries = {job.known.num: job for job in before.jobs}
        for job in jobs:
            where = os.path.relpath(job.directory, self._sweep)
            entries[job.num] = JobRecord(job.known, where, job.need.cores)
        settings = {
            "order": self._settings.order,
            "exclusive": exclusive,
            "cores": self._resources.cores,
            "gpus": self._resources.gpus,
            "threads": thread_settings(self._settings.threads),
        }
        launch = {
            "started": now(),
            "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
            "directory": os.getcwd(),
            "host": os.uname().nodename,
            "order": [jobs[index].num for index in order],
        }
        ordered = tuple(entries[num] for num in sorted(entries))
        return Manifest(tuple(sorted(swept)), settings, ordered, (*before.launches, launch))


def _done(jobs: Sequence[Job], before: Manifest) -> dict[int, Any]:
    """Recorded return values of the jobs that completed, by index."""
    recorded = {job.known.num for job in before.jobs}
    statuses = {i: read_status(job.directory) for i, job in enumerate(jobs) if job.num in recorded}
    return {
        index: status["return_value"]
        for index, status in statuses.items()
        if is_done(status, jobs[index].known.config_hash)
    }


def check_gpus(jobs: Sequence[Job], gpus: Sequence[str]) -> None:
    """Checks that the jobs can have the GPUs they name.

    Raises:
        PlanError: there are none, or a job chooses one by itself.
    """
    for job in jobs:
        device = str(job.config.get("device"))
        if job.need.gpus and not gpus:
            raise PlanError(
                f"#{job.num} ({job.label}) asks for a GPU with device={device}, and this machine "
                "shows none: use device=cpu, or name them in hydra.launcher.gpus"
            )
        if job.need.gpus and ":" in device:
            raise PlanError(
                f"#{job.num} ({job.label}) names device={device}, but the launcher hands out the "
                "GPUs, and a job sees only its own: use device=cuda"
            )


def plan_lines(plan: Plan, resources: Resources, sweep: Path) -> list[str]:
    """What a dry run prints: the jobs in order, with their cores and directories."""
    side = "one at a time" if plan.exclusive else "side by side where cores allow"
    cores = cores_text(resources.cores)
    lines = [f"{len(plan.jobs)} jobs in {sweep}, {side}, on cores {cores}"]
    for index, value in plan.done.items():
        job = plan.jobs[index]
        lines.append(f"skip  #{job.num} (done, returned {value}): {job.label}")
    for index in plan.order:
        job = plan.jobs[index]
        needs = "all cores" if job.need.cores is None else f"{job.need.cores} core(s)"
        over = " (oversubscribed)" if (job.need.cores or 0) > len(resources.cores) else ""
        lines.append(f"run   #{job.num} on {needs}{over} in {job.directory}: {job.label}")
    return lines


def oversubscribed_warning(plan: Plan, resources: Resources) -> str | None:
    """One warning for all jobs that need more cores than there are; None without such."""
    jobs = [plan.jobs[index] for index in plan.order]
    large = [f"#{job.num}" for job in jobs if (job.need.cores or 0) > len(resources.cores)]
    if not large:
        return None
    return (
        f"{', '.join(large)} need more than the {len(resources.cores)} cores there are: each runs "
        "alone, and index.csv marks it oversubscribed"
    )
