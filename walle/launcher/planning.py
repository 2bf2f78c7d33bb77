"""From lists of overrides to a plan: which jobs run, in which order, which are complete.

A machine drifts: for minutes a neighbour takes a part of a core, or a hot core slows down. A sweep
that ran all seeds of one value before the next value would mistake such a drift for an effect of
the value. In blocks, every value runs once before any runs a second time: a drift meets all of
them, and the values of one block can be compared with each other.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.types import HydraContext
from omegaconf import DictConfig

from walle.errors import nearest
from walle.launcher import composing
from walle.launcher.allocation import Resources, thread_settings
from walle.launcher.composing import Composed, Job, PlanError, fast_loader
from walle.launcher.identity import assign_numbers, refuse_other_base
from walle.launcher.messages import job_label
from walle.launcher.records import MANIFEST, JobRecord, Manifest, is_done, read_manifest
from walle.launcher.settings import DEFAULT_REPEAT, WalleLauncherConf
from walle.system.commands import command_line
from walle.system.forkserver import without_collector
from walle.system.format import count_text
from walle.system.identity import Flat, as_json, flatten
from walle.system.run_files import has_checkpoint, read_status
from walle.timing import timestamp

PLAIN = re.compile(r"[\w./+-]+", re.ASCII)  # what needs no quotation marks in an override
CHOICE_SETTING = re.compile(r"(\+{0,2})([\w-]+)\.([^=]+)=(.*)", re.DOTALL)
SHUFFLE_SEED = 0
# Jobs that differ in one of these keys differ in how fast they are.
KEYS_OF_SPEED = ("sampler.n", "sampler.max_lag", "learner.n", "learner.threads")


class Plan(NamedTuple):
    """A launch before its first job starts."""

    jobs: list[Job]  # in the order of the sweeper's overrides
    done: dict[int, Any]  # recorded return values of the jobs to skip, by index
    order: list[int]  # indices of the jobs to run, first to last
    resumed: list[int]  # indices of those among them that resume from a checkpoint
    manifest: Manifest  # the manifest to write
    exclusive: bool  # one job at a time

    @property
    def nums(self) -> list[int]:
        """The numbers of the jobs to run."""
        return [self.jobs[index].num for index in self.order]


class ChoiceSettings:
    """Settings of single choices of a group: `ppo.clip=0.1` in a sweep over `algo=ppo,a2c`.

    Such an override becomes `algo.clip=0.1` in the jobs with algo=ppo, and is dropped from all
    others. Records, hashes and figures therefore hold only the settings that a job has in the end.
    """

    def __init__(self, context: HydraContext, master: DictConfig, group: str | None) -> None:
        # A choice with the name of a key of the sweep's config has no settings of its own.
        self._context, self._master, self._group = context, master, group
        self._choices: set[str] = set()
        self._requested: set[str] = set()  # the words in the values of the group
        if group is not None:
            requested = composing.requested_overrides(context, master)
            texts = [str(override.input_line) for override in requested]
            added = {text.partition(".")[0].lstrip("+") for text in texts if text.startswith("+")}
            options = context.config_loader.get_group_options(group)
            self._choices = set(options) - ({str(key) for key in master} - added)
            of_group = (override for override in requested if override.key_or_group == group)
            values = (str(override.input_line).partition("=")[2] for override in of_group)
            self._requested = {word for text in values for word in re.findall(r"[\w-]+", text)}

    def resolved(self, overrides: Sequence[str]) -> list[str]:
        """The overrides of a job with those of its own choice in their final form.

        Raises:
            PlanError: the job's choice has no such setting.
        """
        matches = {text: match for text in overrides if (match := self._match(text))}
        plain = [text for text in overrides if text not in matches]
        if not matches:
            return plain
        config = self._context.config_loader.load_sweep_config(self._master, plain)
        choice = self._choice(config)
        for signs, name, setting, value in (match.groups() for match in matches.values()):
            if name == choice:
                added = "+" if signs == "+" else ""
                key = self._key(config, name, setting, f"{added}{name}.{setting}={value}")
                plain = [text for text in plain if text.lstrip("+").partition("=")[0] != key]
                plain.append(f"{added}{key}={value}")
        return plain

    def refuse_absent(self, jobs: Sequence[Sequence[str]], configs: Sequence[DictConfig]) -> None:
        """Checks that every override of a single choice concerns some job of the sweep.

        Raises:
            PlanError: no job has the choice.
        """
        present = {choice for config in configs if (choice := self._choice(config))}
        for text in dict.fromkeys(text for job in jobs for text in job):
            match = self._match(text)
            # An adaptive sweeper may choose later what the command line asks for.
            if match is not None and match[2] not in present | self._requested:
                shown = text.removeprefix("++")
                raise PlanError(
                    f"{shown}: no job of this sweep has {self._group}={match[2]}; the sweep has "
                    f"{self._group}={','.join(sorted(present))}: add {match[2]} or drop {shown}"
                )

    def _choice(self, config: DictConfig) -> str | None:
        choices = config.hydra.runtime.choices
        return None if self._group is None else str(choices.get(self._group))

    def _match(self, override: str) -> re.Match[str] | None:
        """Signs, choice, key and value of an override of a single choice; None for any other."""
        match = CHOICE_SETTING.fullmatch(override)
        return match if match is not None and match[2] in self._choices else None

    def _key(self, config: DictConfig, choice: str, setting: str, shown: str) -> str:
        """The key of the config that an override sets: one of the group's, or of the top level."""
        first = setting.partition(".")[0]
        node = config[str(self._group)]
        if shown.startswith("+") or first in node.keys():  # noqa: SIM118 - `in` skips empty keys
            return f"{self._group}.{setting}"
        if first in config and first != "hydra":
            return setting
        near = nearest(f"{choice}.{setting}", {f"{choice}.{key}" for key in node})
        raise PlanError(f"{shown}: {choice} has no setting {setting}; {near}")


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
        # `moved_to` is the sweep's directory if it is a new one.
        self._settings, self._context, self._config = settings, context, config
        self._resources, self._moved_to = resources, moved_to
        self._sweep = Path(str(config.hydra.sweep.dir))
        self.manifest: Manifest | None = None  # of this launch's earlier batches

    @without_collector()
    def compose(self, overrides: Sequence[Sequence[str]]) -> list[Composed]:
        """Composes and checks the jobs; raises `PlanError` for configs that cannot run."""
        context, config, ignore = self._context, self._config, self._settings.hash_ignore
        settings = ChoiceSettings(context, config, self._settings.own_settings)
        resolved = [settings.resolved(job) for job in overrides]
        composed = [composing.compose(context, config, job, ignore) for job in resolved]
        fast_loader(context).forget()
        settings.refuse_absent(overrides, [job.config for job in composed])
        composing.validate(composed, self._settings.validate)
        return composed

    def plan(self, composed: Sequence[Composed], first_num: int) -> Plan:
        """Numbers the jobs, from `first_num` in an empty directory; finds those that are complete.

        Raises:
            ValueError: a job cannot run, or does not belong to the recorded sweep.
        """
        before = Manifest((), {}, (), ())
        if self.manifest is not None:
            before = self.manifest
        elif self._resumes and (self._sweep / MANIFEST).exists():
            before = read_manifest(self._sweep)
        overrides = [job.identity.overrides for job in composed]
        swept = composing.swept_keys(self._context, self._config, overrides).union(before.swept)
        known = [job.identity for job in before.jobs]
        wanted = [job.identity for job in composed]
        if self.manifest is None:  # a later batch is always a part of this sweep
            refuse_other_base(known, wanted, swept)
        jobs = [
            composing.numbered(job, num, job_label(job.identity.overrides, swept), self._moved_to)
            for job, num in zip(composed, assign_numbers(known, wanted, first_num), strict=True)
        ]
        composing.check_jobs(jobs, self._resources.gpus)
        recorded = {identity.num for identity in known}
        done, resumed = {}, []
        for index, job in enumerate(jobs):
            if job.num in recorded:
                status = read_status(job.directory)
                if is_done(status, job.identity.config_hash):
                    done[index] = status["return_value"]
                elif can_resume(job):
                    resumed.append(index)
        exclusive = self._settings.exclusive
        if exclusive is None:
            exclusive = measures_time(composed, [job.need.cores for job in jobs], swept)
        order_name = self._settings.order or ("blocks" if exclusive else "interleaved")
        repeats = self._repeats(jobs, before)
        jobs = in_repeats(jobs, repeats, blocks=order_name == "blocks", exclusive=exclusive)
        order = [i for i in in_order(repeats, order_name) if i not in done]
        settings = {
            "order": order_name,
            "repeat": self._settings.repeat,
            "exclusive": exclusive,
            "cores": self._resources.cores,
            "gpus": self._resources.gpus,
            "threads": thread_settings(self._settings.threads),
        }
        manifest = self._merged(before, jobs, order, tuple(sorted(swept)), settings)
        return Plan(jobs, done, order, [i for i in order if i in resumed], manifest, exclusive)

    @property
    def _resumes(self) -> bool:
        """Whether this launch skips what the directory holds already."""
        resume = self._settings.resume
        return bool(self._config.get("name")) if resume is None else resume

    def _repeats(self, jobs: Sequence[Job], before: Manifest) -> list[int]:
        """The number of each job's repeat; a repeat of an earlier launch keeps its number."""
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

    def _merged(
        self,
        before: Manifest,
        jobs: Sequence[Job],
        order: Sequence[int],
        swept: tuple[str, ...],
        settings: dict[str, Any],
    ) -> Manifest:
        """The manifest with this launch's jobs."""
        records = {job.identity.num: job for job in before.jobs}
        for index, job in enumerate(jobs):
            path = os.path.relpath(job.directory, self._sweep)
            block = job.block if index in order else records[job.num].block
            records[job.num] = JobRecord(job.identity, path, job.need.cores, block)
        name = self._config.get("name")
        to_resume: list[str] = []  # a named sweep resumes without further overrides
        if not (self._resumes and name and str(name) in self._sweep.parts):
            to_resume = [
                f"hydra.sweep.dir={quoted(str(self._sweep))}",
                "hydra.launcher.resume=true",
            ]
        launch = {
            "started": timestamp(),
            "command": command_line(),
            "to_resume": [text for text in to_resume if text not in sys.orig_argv],
            "directory": os.getcwd(),
            "host": os.uname().nodename,
            "order": [jobs[index].num for index in order],
        }
        ordered = tuple(records[num] for num in sorted(records))
        return Manifest(swept, settings, ordered, (*before.launches, launch))


def can_resume(job: Job) -> bool:
    """Whether the job's directory holds a checkpoint of a run with its config, however it ended."""
    status = read_status(job.directory)
    if status.get("config_hash") != job.identity.config_hash or status.get("state") == "completed":
        return False
    return has_checkpoint(job.directory)


def quoted(text: str) -> str:
    """The text as the value of an override, in quotation marks where Hydra needs them."""
    if PLAIN.fullmatch(text):
        return text
    return "'" + text.replace("'", "\\'") + "'"


def plan_lines(plan: Plan, resources: Resources, sweep: Path, where: str) -> list[str]:
    """The text of a dry run: the jobs in order, with their cores and directories."""
    side = "one at a time" if plan.exclusive else "side by side where cores allow"
    first = f"{count_text(len(plan.jobs), 'job')} in {sweep}, {side}, {where}"
    if blocks := {job.block for job in plan.jobs if job.block is not None}:
        key = plan.manifest.settings["repeat"]
        first += f", in {count_text(len(blocks), 'block')}, each a value of {key} in an order of "
        first += "its own"
    lines = [first]
    for index, value in plan.done.items():
        job = plan.jobs[index]
        lines.append(f"skip  #{job.num} (done, returned {value}): {job.label}")
    for index in plan.order:
        job = plan.jobs[index]
        needs = "all cores" if job.need.cores is None else f"{job.need.cores} core(s)"
        over = " (oversubscribed)" if _is_oversubscribed(job, resources) else ""
        resumed = " from its checkpoint" if index in plan.resumed else ""
        lines.append(f"run   #{job.num}{resumed} on {needs}{over} in {job.directory}: {job.label}")
    return lines


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
    # Without cores the jobs run elsewhere, in workers that have enough.
    return bool(resources.cores) and (job.need.cores or 0) > len(resources.cores)


def measures_time(
    jobs: Sequence[Composed], needs: Sequence[int | None], swept: Collection[str]
) -> bool:
    """Whether each job has to run alone: the jobs differ in a key of speed, or take all cores."""
    if len(jobs) > 1 and all(need is None for need in needs):
        return True
    configs = [flatten(job.values) for job in jobs]
    return any(
        key in swept or len({as_json(config.get(key)) for config in configs}) > 1
        for key in KEYS_OF_SPEED
    )


def repeat_numbers(configs: Sequence[Flat], key: str, known: Mapping[str, int]) -> list[int]:
    """Numbers the repeats of a sweep, from 0; returns the number of each job's repeat.

    Repeats differ in `key`, as `seed`; jobs without it belong to one repeat. `known` has the
    numbers that repeats have already, by the key's value as JSON.
    """
    numbers = dict(known)
    free = max(numbers.values(), default=-1) + 1
    for config in configs:
        value = as_json(config.get(key))
        if value not in numbers:
            numbers[value], free = free, free + 1
    return [numbers[as_json(config.get(key))] for config in configs]


def in_repeats(
    jobs: Sequence[Job], repeats: Sequence[int], *, blocks: bool, exclusive: bool
) -> list[Job]:
    """The jobs with the numbers of their blocks, if they run in blocks.

    If they run one at a time, each repeat also has its turn of the cores (allocation.in_turn).
    """
    return [
        job._replace(
            block=repeat if blocks else None,
            need=job.need._replace(turn=repeat if exclusive else 0),
        )
        for job, repeat in zip(jobs, repeats, strict=True)
    ]


def in_order(repeats: Sequence[int], order: str) -> list[int]:
    """Indices of the jobs in the order to run them; `WalleLauncherConf.order` names the orders.

    `repeats` has the number of each job's repeat, in the order given by the sweeper.
    """

    def shuffled(indices: Sequence[int], seed: int) -> list[int]:
        return random.Random(seed).sample(indices, len(indices))

    indices = list(range(len(repeats)))
    if order == "shuffled":
        return shuffled(indices, SHUFFLE_SEED)
    if order == "given":
        return indices
    blocks = {number: [i for i in indices if repeats[i] == number] for number in repeats}
    if order == "blocks":
        blocks = {number: shuffled(jobs, number) for number, jobs in blocks.items()}
    return [index for number in sorted(blocks) for index in blocks[number]]
