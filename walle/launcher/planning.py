"""From composed configs to a plan: which jobs run, in which order, which are complete.

A machine drifts: for minutes a neighbour takes a part of a core, or a hot core slows down. A sweep
that ran all seeds of one value before the next value would mistake such a drift for an effect of
the value. In blocks, every value runs once before any runs a second time: a drift meets all of
them, and the values of one block can be compared with each other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.types import HydraContext
from omegaconf import DictConfig

from walle.errors import ConfigError, nearest
from walle.launcher.allocation import Resources
from walle.launcher.composing import Composed, Job, requested_overrides
from walle.launcher.records import Identity, Manifest, common_part, same
from walle.system.format import count_text
from walle.system.identity import Flat, as_json, flatten
from walle.system.run_files import has_checkpoint, read_status

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
        self._loader, self._master, self._group = context.config_loader, master, str(group)
        self._choices: set[str] = set()
        self._requested: set[str] = set()  # the words in the values of the group
        if group is None:
            return
        requested = requested_overrides(context, master)
        texts = [str(override.input_line) for override in requested]
        added = {text.partition(".")[0].lstrip("+") for text in texts if text.startswith("+")}
        # A choice with the name of a key of the sweep's config has no settings of its own.
        self._choices = set(self._loader.get_group_options(group)) - ({*map(str, master)} - added)
        of_group = (override for override in requested if override.key_or_group == group)
        values = " ".join(str(override.input_line).partition("=")[2] for override in of_group)
        self._requested = set(re.findall(r"[\w-]+", values))

    def resolved(self, overrides: Sequence[str]) -> list[str]:
        """The overrides of a job with those of its own choice in their final form."""
        matches = {text: match for text in overrides if (match := self._match(text))}
        plain = [text for text in overrides if text not in matches]
        if not matches:
            return plain
        config = self._loader.load_sweep_config(self._master, plain)
        choice = config.hydra.runtime.choices.get(self._group)
        for signs, name, setting, value in (match.groups() for match in matches.values()):
            if name != choice:
                continue
            added, first = "+" if signs == "+" else "", setting.partition(".")[0]
            node = config[self._group]
            if added or first in node.keys():  # noqa: SIM118 - `in` skips empty keys
                key = f"{self._group}.{setting}"
            elif first in config and first != "hydra":
                key = setting
            else:
                near = nearest(f"{name}.{setting}", {f"{name}.{key}" for key in node})
                shown = f"{name}.{setting}={value}"
                raise ConfigError(f"{shown}: {name} has no setting {setting}; {near}")
            plain = [text for text in plain if text.lstrip("+").partition("=")[0] != key]
            plain.append(f"{added}{key}={value}")
        return plain

    def refuse_absent(self, jobs: Sequence[Sequence[str]], configs: Sequence[DictConfig]) -> None:
        """Raises `ConfigError` for an override of a single choice that no job of the sweep has."""
        present = {str(config.hydra.runtime.choices.get(self._group)) for config in configs}
        for text in dict.fromkeys(text for job in jobs for text in job):
            match = self._match(text)
            # An adaptive sweeper may choose later what the command line asks for.
            if match is not None and match[2] not in present | self._requested:
                shown = text.removeprefix("++")
                raise ConfigError(
                    f"{shown}: no job of this sweep has {self._group}={match[2]}; the sweep has "
                    f"{self._group}={','.join(sorted(present))}: add {match[2]} or drop {shown}"
                )

    def _match(self, override: str) -> re.Match[str] | None:
        """Signs, choice, key and value of an override of a single choice; None for any other."""
        match = CHOICE_SETTING.fullmatch(override)
        return match if match is not None and match[2] in self._choices else None


def assign_numbers(
    known: Sequence[Identity], wanted: Sequence[Identity], first_free: int = 0
) -> list[int]:
    """Gives every wanted job the number of the known job that it equals, or a new number."""
    by_hash = {job.config_hash: job for job in known}
    by_overrides = {frozenset(job.overrides): job for job in known}
    free = max([first_free - 1, *(job.num for job in known)]) + 1
    numbers: list[int] = []
    for job in wanted:
        equal = by_overrides.get(frozenset(job.overrides), by_hash.get(job.config_hash))
        if equal is not None and equal.config_hash != job.config_hash:
            what = f"job {equal.num} ({' '.join(job.overrides)})"
            raise config_changed(equal.config, job.config, what)
        if equal is None or equal.num in numbers:
            numbers.append(free)
            free += 1
        else:
            numbers.append(equal.num)
    return numbers


def refuse_other_base(
    known: Sequence[Identity], wanted: Sequence[Identity], swept: Collection[str]
) -> None:
    """Raises `ConfigError` where a key that is not swept has changed.

    `swept` names the overrides along which the sweep's jobs differ, now or earlier.
    """
    if not known or not wanted:
        return
    common = [common_part([job.config for job in jobs]) for jobs in (known, wanted)]
    paths = {path for job in [*known, *wanted] for path in job.config}
    # A swept key may change, every key of a swept group, and what follows from one of them.
    fixed = {path for path in paths if not any(f"{path}.".startswith(f"{key}.") for key in swept)}
    for jobs, part in zip((known, wanted), common, strict=True):
        fixed -= {path for job in jobs for path in job.config} - part.keys()
    before, after = ({path: part[path] for path in part if path in fixed} for part in common)
    if not same(before, after):
        raise config_changed(before, after, "the sweep")


def config_changed(before: Flat, after: Flat, what: str) -> ConfigError:
    """The error with a line for each leaf that differs: `key: old -> new`."""
    old, new = ({path: as_json(value) for path, value in flat.items()} for flat in (before, after))
    changes = [
        f"  {path}: {old.get(path, '(absent)')} -> {new.get(path, '(absent)')}\n"
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]
    return ConfigError(
        f"the config of {what} is not the one recorded here:\n{''.join(changes)}the directory "
        "keeps the sweep that it was made for: undo the change, give the new sweep another name, "
        "or start a new directory with hydra.launcher.resume=false"
    )


def can_resume(job: Job) -> bool:
    """Whether the job's directory holds a checkpoint of a run with its config, however it ended."""
    status = read_status(job.directory)
    if status.get("config_hash") != job.identity.config_hash or status.get("state") == "completed":
        return False
    return has_checkpoint(job.directory)


def quoted(text: str) -> str:
    """The text as the value of an override, in quotation marks where Hydra needs them."""
    return text if PLAIN.fullmatch(text) else "'" + text.replace("'", "\\'") + "'"


def plan_lines(plan: Plan, resources: Resources, sweep: Path, where: str) -> list[str]:
    """The text of a dry run: the jobs in order, with their cores and directories."""
    side = "one at a time" if plan.exclusive else "side by side where cores allow"
    lines = [f"{count_text(len(plan.jobs), 'job')} in {sweep}, {side}, {where}"]
    if blocks := {job.block for job in plan.jobs if job.block is not None}:
        key, count = plan.manifest.settings["repeat"], count_text(len(blocks), "block")
        lines[0] += f", in {count}, each a value of {key} in an order of its own"
    for index, value in plan.done.items():
        job = plan.jobs[index]
        lines.append(f"skip  #{job.num} (done, returned {value}): {job.label}")
    for index in plan.order:
        job = plan.jobs[index]
        needs = "all cores" if job.need.cores is None else f"{job.need.cores} core(s)"
        # Without cores here, the jobs run in workers that have enough.
        over = " (oversubscribed)" if (job.need.cores or 0) > len(resources.cores) > 0 else ""
        resumed = " from its checkpoint" if index in plan.resumed else ""
        lines.append(f"run   #{job.num}{resumed} on {needs}{over} in {job.directory}: {job.label}")
    return lines


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
    for config in configs:
        free = 1 + max(numbers.values(), default=-1)
        numbers.setdefault(as_json(config.get(key)), free)
    return [numbers[as_json(config.get(key))] for config in configs]


def in_repeats(
    jobs: Sequence[Job], repeats: Sequence[int], *, blocks: bool, exclusive: bool
) -> list[Job]:
    """The jobs with the numbers of their blocks, if they run in blocks.

    If they run one at a time, each repeat also has its turn of the cores; see `Allocator`.
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
