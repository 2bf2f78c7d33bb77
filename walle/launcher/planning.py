"""From lists of overrides to a plan: which jobs run, which are complete, which are refused."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.types import HydraContext
from omegaconf import DictConfig

from walle.launcher import composing
from walle.launcher.attempts import can_resume
from walle.launcher.composing import Composed, Job, PlanError
from walle.launcher.identity import assign_numbers, refuse_other_base
from walle.launcher.overrides.choices import OwnSettingError, OwnSettings
from walle.launcher.overrides.quick_loader import quick_loader
from walle.launcher.overrides.swept import swept_keys
from walle.launcher.records import MANIFEST, JobRecord, Manifest, is_done, read_manifest
from walle.launcher.resources import Resources, thread_settings
from walle.launcher.settings import DEFAULT_REPEAT, WalleLauncherConf
from walle.launcher.texts import job_label
from walle.launcher.timed.order import in_order, in_repeats, measures_time, repeat_numbers
from walle.system.commands import command_line
from walle.system.forkserver import without_collector
from walle.system.format import count_text
from walle.system.identity import as_json
from walle.system.run_files import read_status
from walle.timing import timestamp

PLAIN = re.compile(r"[\w./+-]+", re.ASCII)  # what needs no quotation marks in an override


class Plan(NamedTuple):
    """A launch before its first job starts.

    Attributes:
        jobs: in the order of the sweeper's overrides.
        done: recorded return values of the jobs to skip, by index.
        order: indices of the jobs to run, first to last.
        resumed: indices of those among them that go on from a checkpoint.
        manifest: the manifest to write.
        exclusive: one job at a time.
    """

    jobs: list[Job]
    done: dict[int, Any]
    order: list[int]
    resumed: list[int]
    manifest: Manifest
    exclusive: bool


class Planner:
    """Plans the batches of one launch; an adaptive sweeper sends more than one."""

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
            moved_to: the sweep's directory; None for the one in the jobs' configs.
        """
        self._settings, self._context, self._config = settings, context, config
        self._resources, self._moved_to = resources, moved_to
        self._sweep = Path(str(config.hydra.sweep.dir))
        self._manifest: Manifest | None = None

    @without_collector()
    def compose(self, overrides: Sequence[Sequence[str]]) -> list[Composed]:
        """Composes and checks the jobs.

        Args:
            overrides: the overrides of each job.

        Raises:
            PlanError: some jobs cannot run with their configs.
        """
        ignore = self._settings.hash_ignore
        own = OwnSettings(self._context, self._config, self._settings.own_settings)
        try:
            resolved = [own.resolved(job) for job in overrides]
            composed = [
                composing.compose(self._context, self._config, job, ignore) for job in resolved
            ]
            quick_loader(self._context).forget()
            own.refuse_absent(overrides, [job.config for job in composed])
        except OwnSettingError as error:
            raise PlanError(str(error)) from None
        composing.validate(composed, self._settings.validate)
        return composed

    def plan(self, composed: Sequence[Composed], first_num: int) -> Plan:
        """Numbers the jobs, and finds the jobs that are complete.

        Args:
            composed: the jobs.
            first_num: the number of the first job in a directory without jobs.

        Raises:
            ValueError: a job cannot run, or does not belong to the recorded sweep.
        """
        before = self._recorded()
        overrides = [job.identity.overrides for job in composed]
        swept = swept_keys(self._context, self._config, overrides).union(before.swept)
        jobs = self._numbered(composed, before, swept, first_num)
        recorded = _recorded_in(before, jobs)
        done = _done(jobs, recorded)
        exclusive = self._is_exclusive(composed, jobs, swept)
        order_name = self._settings.order or ("blocks" if exclusive else "interleaved")
        repeats = self._repeats(jobs, before)
        jobs = in_repeats(jobs, repeats, blocks=order_name == "blocks", exclusive=exclusive)
        order = [i for i in in_order(repeats, order_name) if i not in done]
        resumed = [i for i in order if i in recorded and can_resume(jobs[i])]
        settings = self._recorded_settings(order_name, exclusive=exclusive)
        manifest = self._merged(before, jobs, order, swept, settings)
        return Plan(jobs, done, order, resumed, manifest, exclusive)

    def _is_exclusive(
        self, composed: Sequence[Composed], jobs: Sequence[Job], swept: Collection[str]
    ) -> bool:
        if self._settings.exclusive is not None:
            return self._settings.exclusive
        return measures_time(composed, [job.need.cores for job in jobs], swept)

    def _repeats(self, jobs: Sequence[Job], before: Manifest) -> list[int]:
        """The number of each job's repeat; a repeat of an earlier launch keeps its number.

        Raises:
            PlanError: no job has the key that was said to distinguish the repeats.
        """
        key, configs = self._settings.repeat, [job.identity.config for job in jobs]
        if key != DEFAULT_REPEAT and not any(key in config for config in configs):
            raise PlanError(
                f"hydra.launcher.repeat={key} is no key of the jobs' configs: name the key that "
                f"distinguishes the repeats of a setting, such as {DEFAULT_REPEAT}"
            )
        known = {
            as_json(job.identity.config.get(key)): job.block
            for job in before.jobs
            if job.block is not None
        }
        return repeat_numbers(configs, key, known)

    def confirm(self, plan: Plan) -> None:
        """Records that the plan is carried out: the next batch extends it."""
        self._manifest = plan.manifest

    def _recorded(self) -> Manifest:
        """The manifest of this launch's earlier batches, or of the earlier launches."""
        if self._manifest is not None:
            return self._manifest
        if self._resumes and (self._sweep / MANIFEST).exists():
            return read_manifest(self._sweep)
        return Manifest((), {}, (), ())

    @property
    def _resumes(self) -> bool:
        """Whether this launch skips what the directory holds already."""
        asked = self._settings.resume
        return bool(self._config.get("name")) if asked is None else asked

    def _to_resume(self) -> list[str]:
        """Overrides that let the same command go on in this directory; none for a named sweep."""
        name = self._config.get("name")
        if self._resumes and name and str(name) in self._sweep.parts:
            return []
        wanted = [f"hydra.sweep.dir={quoted(str(self._sweep))}", "hydra.launcher.resume=true"]
        return [override for override in wanted if override not in sys.orig_argv]

    def _numbered(
        self, composed: Sequence[Composed], before: Manifest, swept: set[str], first_num: int
    ) -> list[Job]:
        known = [job.identity for job in before.jobs]
        wanted = [job.identity for job in composed]
        if self._manifest is None:  # a later batch is always a part of this sweep
            refuse_other_base(known, wanted, swept)
        jobs = [
            composing.place(job, num, job_label(job.identity.overrides, swept), self._moved_to)
            for job, num in zip(composed, assign_numbers(known, wanted, first_num), strict=True)
        ]
        composing.refuse_shared_directories(jobs)
        composing.check_gpus(jobs, self._resources.gpus)
        return jobs

    def _recorded_settings(self, order: str, *, exclusive: bool) -> dict[str, Any]:
        """The launcher's settings as the manifest records them."""
        return {
            "order": order,
            "repeat": self._settings.repeat,
            "exclusive": exclusive,
            "cores": self._resources.cores,
            "gpus": self._resources.gpus,
            "threads": thread_settings(self._settings.threads),
        }

    def _merged(
        self,
        before: Manifest,
        jobs: Sequence[Job],
        order: Sequence[int],
        swept: Iterable[str],
        settings: dict[str, Any],
    ) -> Manifest:
        """The manifest with this launch's jobs."""
        records = {job.identity.num: job for job in before.jobs}
        for index, job in enumerate(jobs):
            where = os.path.relpath(job.directory, self._sweep)
            block = job.block if index in order else records[job.num].block
            records[job.num] = JobRecord(job.identity, where, job.need.cores, block)
        launch = {
            "started": timestamp(),
            "command": command_line(),
            "to_resume": self._to_resume(),
            "directory": os.getcwd(),
            "host": os.uname().nodename,
            "order": [jobs[index].num for index in order],
        }
        ordered = tuple(records[num] for num in sorted(records))
        return Manifest(tuple(sorted(swept)), settings, ordered, (*before.launches, launch))


def quoted(text: str) -> str:
    """The text as the value of an override, in quotation marks where Hydra needs them."""
    if PLAIN.fullmatch(text):
        return text
    return "'" + text.replace("'", "\\'") + "'"


def _recorded_in(before: Manifest, jobs: Sequence[Job]) -> list[int]:
    """Indices of the jobs that the manifest lists."""
    nums = {job.identity.num for job in before.jobs}
    return [i for i, job in enumerate(jobs) if job.num in nums]


def _done(jobs: Sequence[Job], recorded: Sequence[int]) -> dict[int, Any]:
    """Recorded return values of the jobs that are complete, by index."""
    statuses = {i: read_status(jobs[i].directory) for i in recorded}
    return {
        index: status["return_value"]
        for index, status in statuses.items()
        if is_done(status, jobs[index].identity.config_hash)
    }


def plan_lines(plan: Plan, resources: Resources, sweep: Path, place: str) -> list[str]:
    """The text of a dry run: the jobs in order, with their cores and directories; `place` first."""
    side = "one at a time" if plan.exclusive else "side by side where cores allow"
    jobs = count_text(len(plan.jobs), "job")
    lines = [f"{jobs} in {sweep}, {side}, {place}{_blocks_text(plan)}"]
    for index, value in plan.done.items():
        job = plan.jobs[index]
        lines.append(f"skip  #{job.num} (done, returned {value}): {job.label}")
    return lines + [_run_line(plan, index, resources) for index in plan.order]


def _blocks_text(plan: Plan) -> str:
    blocks = {job.block for job in plan.jobs if job.block is not None}
    if not blocks:
        return ""
    key = plan.manifest.settings["repeat"]
    return f", in {count_text(len(blocks), 'block')}, each a value of {key} in an order of its own"


def _run_line(plan: Plan, index: int, resources: Resources) -> str:
    job = plan.jobs[index]
    needs = "all cores" if job.need.cores is None else f"{job.need.cores} core(s)"
    over = " (oversubscribed)" if _is_oversubscribed(job, resources) else ""
    resumed = " from its checkpoint" if index in plan.resumed else ""
    return f"run   #{job.num}{resumed} on {needs}{over} in {job.directory}: {job.label}"


def oversubscribed_warning(plan: Plan, resources: Resources) -> str | None:
    """One warning for all jobs that need more cores than the sweep has; None without such jobs."""
    jobs = (plan.jobs[index] for index in plan.order)
    large = [f"#{job.num}" for job in jobs if _is_oversubscribed(job, resources)]
    if not large:
        return None
    return (
        f"{', '.join(large)} need more than the sweep's {len(resources.cores)} cores: each of them "
        "runs alone, and index.csv marks it oversubscribed"
    )


def _is_oversubscribed(job: Job, resources: Resources) -> bool:
    """Whether it needs more cores than there are; a worker elsewhere has cores for its jobs."""
    return bool(resources.cores) and (job.need.cores or 0) > len(resources.cores)
