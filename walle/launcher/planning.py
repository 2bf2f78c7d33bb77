"""Turns overrides into a plan: composes, checks, numbers and orders jobs, and picks those to run.

A machine's speed drifts: for minutes another program takes part of a core, or a hot core slows
down. A sweep that ran all seeds of one value before the next value would mistake such a drift for
an effect of the value. In blocks, every value runs once before any runs a second time: a drift
affects all of them, and the values of one block are comparable.
"""

from __future__ import annotations

import os
import pickle
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, cast

import cloudpickle
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from walle.errors import ConfigError, directory_fault, nearest
from walle.launcher.allocation import Need, Resources, need
from walle.launcher.records import Identity, Manifest, common_part, job_label, same
from walle.system.format import count_text
from walle.system.identity import Flat, as_json, comparable_leaves, config_hash, flatten
from walle.system.importing import imported
from walle.system.run_files import has_checkpoint, read_status

MESSAGES_SHOWN = 10
PLAIN = re.compile(r"[\w./+-]+", re.ASCII)  # what needs no quotation marks in an override
CHOICE_SETTING = re.compile(r"(\+{0,2})([\w-]+)\.([^=]+)=(.*)", re.DOTALL)
SHUFFLE_SEED = 0
# Jobs that differ in one of these keys differ in how fast they are.
KEYS_OF_SPEED = ("sampler.n", "sampler.max_lag", "learner.n", "learner.threads")


class Job(NamedTuple):
    """One job of this launch."""

    label: str  # the overrides that distinguish the job from the others, for people
    config: DictConfig  # the composed config with its `hydra` node
    directory: Path  # where the job writes
    identity: Identity  # what identifies the job
    need: Need  # cores and GPUs
    block: int | None = None  # the number of its block, from 0; None if the sweep has no blocks
    # the task's part of the config, resolved, as plain dictionaries and lists
    values: Mapping[str, Any] = {}

    @property
    def num(self) -> int:
        """The job's number in the sweep, which names its directory; see `numbered`."""
        return self.identity.num


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


# Returns why a job need not run to its end; None while it must. A sweeper that prunes has such a
# rule. The rule is also called with `starts=False`, for jobs that still wait.
StopRule = Callable[..., str | None]


class FastLoader:
    """Hydra's loader with a faster `load_sweep_config` that returns the same configs.

    Hydra composes every job from its files, which takes a tenth of a second with walle's groups,
    and its sweeper composes each job once more to check it. Here Hydra composes every combination
    of groups once, and a job is a copy with its values set. Overrides that Hydra might handle
    differently, or reject, are composed by Hydra itself.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self._parser = OverridesParser.create()
        self._groups: dict[str, bool] = {}
        self.refused: Callable[[], object] = lambda: None  # called when Hydra refuses a job
        self._bases: dict[tuple[str, ...], bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Jobs get the loader without the configs that it has composed."""
        return FastLoader, (self._loader,)

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        """The config of a job; the caller may change it."""
        try:
            return self._composed(master_config, sweep_overrides)
        except HydraException:
            self.refused()
            raise

    def _composed(self, master: DictConfig, overrides: list[str]) -> DictConfig:
        parsed = self._parser.parse_overrides(overrides)
        values = [override for override in parsed if self._sets_value(override, master)]
        others = [override for override in parsed if not self._sets_value(override, master)]
        if not all(self._is_group(override, master) for override in others):
            return self._loader.load_sweep_config(master, overrides)
        key = tuple(str(override.input_line) for override in others)
        if key not in self._bases:
            self._bases[key] = cloudpickle.dumps(self._loader.load_sweep_config(master, list(key)))
        config: DictConfig = pickle.loads(self._bases[key])  # six times as fast as deepcopy
        try:
            for override in values:
                name, force = override.key_or_group, override.type == OverrideType.FORCE_ADD
                OmegaConf.update(config, name, override.value(), merge=True, force_add=force)
        except OmegaConfBaseException:
            return self._loader.load_sweep_config(master, overrides)  # refuses in Hydra's words
        style = config.hydra.job.config.override_dirname
        named = [override for override in parsed if override.key_or_group not in style.exclude_keys]
        dirname = style.item_sep.join(sorted(str(override.input_line) for override in named))
        config.hydra.overrides.task = [str(override.input_line) for override in parsed]
        config.hydra.job.override_dirname = dirname.replace("=", style.kv_sep)
        OmegaConf.copy_cache(from_config=master, to_config=config)
        return config

    def _sets_value(self, override: Override, master: DictConfig) -> bool:
        """Whether it sets a value of the task on which no choice of config files depends."""
        simple = override.type in (OverrideType.CHANGE, OverrideType.FORCE_ADD)
        of_hydra = override.key_or_group.partition(".")[0] == "hydra"
        is_value = override.package is None and not of_hydra
        return simple and is_value and not self._is_group(override, master)

    def _is_group(self, override: Override, master: DictConfig) -> bool:
        """Whether it chooses an option of a group."""
        name = override.key_or_group
        if name not in self._groups:
            self._groups[name] = bool(group_options(self._loader, master, name, None))
        return self._groups[name] and not isinstance(override.value(), dict)


def group_options(
    loader: ConfigLoader,
    master: DictConfig,
    group: str,
    kind: ObjectType | None = ObjectType.CONFIG,
) -> list[str]:
    """The options of a group, with those in the directories of `hydra.searchpath`."""
    job, typed = master.hydra.job, list(master.hydra.overrides.hydra)
    return loader.get_group_options(group, kind, job.config_name, typed)


def fast_loader(context: HydraContext) -> FastLoader:
    """Makes Hydra's own sweeper, and everything else, compose jobs quickly; returns the loader."""
    if not isinstance(context.config_loader, FastLoader):
        context.config_loader = cast(Any, FastLoader(context.config_loader))
    return cast(FastLoader, context.config_loader)


def compose(
    context: HydraContext, master: DictConfig, overrides: Sequence[str], ignore: Sequence[str]
) -> Job:
    """Composes a job, which `numbered` completes; `ignore` names keys outside its identity."""
    config = fast_loader(context).load_sweep_config(master, list(overrides))
    written = written_values(config)
    values = comparable_values(config) if "${" in as_json(written) else written
    flat = comparable_leaves(values, written, ignore)
    identity = Identity(-1, tuple(overrides), config_hash(flat), flat)
    return Job("", config, Path(), identity, need(values), values=values)


def written_values(config: DictConfig) -> dict[str, Any]:
    """The task's part of a config as written, with its interpolations."""
    content = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    return {key: value for key, value in cast(dict[str, Any], content).items() if key != "hydra"}


def comparable_values(config: DictConfig, num: int = 0) -> dict[str, Any]:
    """The task's part of a config, resolved to the same values in every launch.

    Directories are empty, `${now:...}` becomes its pattern, and `${hydra:job.num}` is `num`. A
    config that can only be resolved inside the job, because it reads a variable that the job sets,
    keeps its interpolations.
    """
    config = deepcopy(config)
    OmegaConf.clear_cache(config)
    with read_write(config), open_dict(config):
        config.hydra.sweep.dir = config.hydra.sweep.subdir = config.hydra.run.dir = ""
        config.hydra.runtime.output_dir = config.hydra.runtime.cwd = ""
        config.hydra.job.id = config.hydra.job.num = num
    task = task_config(config)
    with hydra_config(config):
        OmegaConf.register_new_resolver("now", str, replace=True)
        try:
            values = OmegaConf.to_container(task, resolve=True, enum_to_str=True)
        except OmegaConfBaseException:
            values = OmegaConf.to_container(task, resolve=False, enum_to_str=True)
        finally:
            setup_globals()  # registers Hydra's own `now` again
    return cast(dict[str, Any], values)


def distinct(jobs: Sequence[Job]) -> tuple[list[Job], list[int]]:
    """Keeps the first of the jobs with the same config.

    Jobs are never the same if they differ in a setting of Hydra, or if their config contains the
    job's number. Also returns, for each of `jobs`, the index of the kept job with the same config.
    """
    first: dict[tuple[str, ...], int] = {}
    kept: list[Job] = []
    indices: list[int] = []
    for job in jobs:
        hydras = (text for text in job.identity.overrides if text.lstrip("+~").startswith("hydra"))
        content = (config_hash(flatten(job.values)), *sorted(hydras))
        index = first.setdefault(content, len(kept))
        if index == len(kept) or not same(job.values, comparable_values(job.config, num=1)):
            index = len(kept)
            kept.append(job)
        indices.append(index)
    return kept, indices


def task_config(config: DictConfig) -> DictConfig:
    """The config without its `hydra` node, as the task's function gets it."""
    task: DictConfig = pickle.loads(cloudpickle.dumps(config))  # quicker than any other copy
    with read_write(task), open_dict(task):
        task.pop("hydra", None)
    return task


@contextmanager
def hydra_config(config: DictConfig) -> Iterator[None]:
    """Makes `${hydra:...}` read `config` in the body."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().cfg = cast(Any, config)  # `set_config` would copy it
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def requested_overrides(context: HydraContext, master: DictConfig) -> list[Override]:
    """The overrides of the command line and of the sweeper's settings, parsed."""
    # The references are kept: reading an entry would resolve it.
    texts = list(cast(Any, OmegaConf.to_container(master.hydra.overrides.task, resolve=False)))
    params = OmegaConf.select(master, "hydra.sweeper.params") or {}
    texts += [f"{key}={value}" for key, value in params.items()]
    parser = OverridesParser.create(config_loader=context.config_loader)
    return list(parser.parse_overrides(texts))


def swept_keys(
    context: HydraContext, master: DictConfig, jobs: Sequence[Sequence[str]]
) -> set[str]:
    """Finds the names of the overrides along which the sweep's jobs differ.

    They have several values on the command line or in the sweeper's settings, or differ between
    jobs because an adaptive sweeper chooses values by itself. A setting of one choice of a group,
    such as `ppo.clip`, counts as `algo.clip`, its name in the jobs.
    """
    values = [dict(text.lstrip("+~").partition("=")[::2] for text in job) for job in jobs]
    names = {name for job in values for name in job}
    requested = requested_overrides(context, master)
    several = {str(key.key_or_group) for key in requested if key.is_sweep_override()}
    return (several & names) | {n for n in names if len({job.get(n) for job in values}) > 1}


def validate(jobs: Sequence[Job], function: str | None) -> None:
    """Refuses the configs for which the application's check, `module.function`, raises an error."""
    if function is None:
        return
    path = function if ":" in function else ":".join(function.rpartition(".")[::2])
    check: Callable[[DictConfig], object] = imported("hydra.launcher.validate", path)
    refused: dict[str, str] = {}  # by message, the first job that it refuses
    for job in jobs:
        try:
            check(task_config(job.config))
        except (ValueError, TypeError, OmegaConfBaseException) as error:
            refused.setdefault(str(error), " ".join(job.identity.overrides) or "the only job")
    if refused:
        lines = [f"{overrides}: {text}" for text, overrides in refused.items()]
        more = len(lines) - MESSAGES_SHOWN
        tail = [f"... and {more} more"] if more > 0 else []
        raise ConfigError("\n".join([*lines[:MESSAGES_SHOWN], *tail]))


def numbered(
    composed: Sequence[Job],
    nums: Sequence[int],
    swept: Collection[str],
    sweep_dir: str | None,
    gpus: Sequence[str],
) -> list[Job]:
    """Sets the jobs' labels and directories, in `sweep_dir` or else as their configs say.

    Refuses a job that cannot use its directory or get the GPUs that it needs.
    """
    jobs: dict[str, Job] = {}
    for job, num in zip(composed, nums, strict=True):
        config, identity = job.config, job.identity._replace(num=num)
        with read_write(config), open_dict(config):
            config.hydra.job.id, config.hydra.job.num = str(num), num
            if sweep_dir is not None:
                config.hydra.sweep.dir = sweep_dir
        with hydra_config(config):
            sweep = Path(str(config.hydra.sweep.dir))
            directory = sweep / str(config.hydra.sweep.subdir)
        label = job_label(identity.overrides, swept)
        fault = directory_fault(directory)
        # A new attempt moves what it finds there, which would be the sweep's own files.
        if Path(os.path.abspath(sweep)).is_relative_to(os.path.abspath(directory)):
            fault = f"{directory} holds the sweep; give hydra.sweep.subdir=${{hydra.job.num}}"
        if fault:
            raise ConfigError(f"#{num} ({label}) cannot have its directory: {fault}")
        job = job._replace(label=label, directory=directory, identity=identity)
        other = jobs.setdefault(os.path.abspath(directory), job)
        if other is not job:
            raise ConfigError(
                f"#{other.num} ({other.label}) and #{num} ({label}) would both write to "
                f"{directory}: give hydra.sweep.subdir something that differs, such as "
                "${hydra.job.num}"
            )
        device = str(config.get("device")) if job.need.gpus else ""
        if device and not gpus:
            raise ConfigError(
                f"#{num} ({label}) asks for a GPU with device={device}, and the sweep has none: "
                "use device=cpu, or name them in hydra.launcher.gpus (for workers ask with "
                "hydra.launcher.slurm.gpus=1 or hydra.launcher.ray.gpus=1)"
            )
        if ":" in device:
            raise ConfigError(
                f"#{num} ({label}) names device={device}, but the launcher hands out the GPUs, and "
                "a job sees only its own: use device=cuda"
            )
    for path, job in jobs.items():
        if outer := next((jobs[str(p)] for p in Path(path).parents if str(p) in jobs), None):
            raise ConfigError(
                f"#{job.num} ({job.label}) would write to {job.directory}, inside the directory of "
                f"#{outer.num} ({outer.label}): give hydra.sweep.subdir=${{hydra.job.num}}"
            )
    return list(jobs.values())


class ChoiceSettings:
    """Settings of single choices of a group: `ppo.clip=0.1` in a sweep over `algo=ppo,a2c`.

    Such an override becomes `algo.clip=0.1` in the jobs with algo=ppo, and is dropped from all
    others. Records, hashes and figures therefore hold only a job's final settings.
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
        keys = {*map(str, master)} - added
        self._choices = set(group_options(self._loader, master, group)) - keys
        of_group = (override for override in requested if override.key_or_group == group)
        values = " ".join(str(override.input_line).partition("=")[2] for override in of_group)
        self._requested = set(re.findall(r"[\w-]+", values))

    def resolved(self, overrides: Sequence[str]) -> list[str]:
        """A job's overrides, with the settings of its option (`ppo.clip`) renamed (`algo.clip`)."""
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


def without_new_keys(known: Sequence[Identity], jobs: Sequence[Job]) -> list[Job]:
    """Drops keys with null, [] or {} that the known job, or any, lacks: a later version added them.

    The known job is the one with the same overrides.
    """
    every, kept = {path for job in known for path in job.config}, []
    by_overrides = {frozenset(job.overrides): job.config for job in known}
    for job in jobs:
        old = by_overrides.get(frozenset(job.identity.overrides), every)
        given = job.identity.config.items()
        flat = {k: v for k, v in given if not known or k in old or v not in (None, [], {})}
        identity = job.identity._replace(config=flat, config_hash=config_hash(flat))
        kept.append(job._replace(identity=identity))
    return kept


def assign_numbers(
    known: Sequence[Identity], wanted: Sequence[Identity], first_free: int = 0
) -> list[int]:
    """Gives every wanted job the number of the known job that it equals, or a new number."""
    by_hash = {job.config_hash: job for job in known}
    by_overrides = {frozenset(job.overrides): job for job in known}
    free = max([first_free - 1, *(job.num for job in known)]) + 1
    numbers: dict[int, None] = {}
    for job in wanted:
        equal = by_overrides.get(frozenset(job.overrides), by_hash.get(job.config_hash))
        if equal is not None and equal.config_hash != job.config_hash:
            what = f"job {equal.num} ({' '.join(job.overrides)})"
            raise config_changed(equal.config, job.config, what)
        if equal is None or equal.num in numbers:
            numbers[free] = None
            free += 1
        else:
            numbers[equal.num] = None
    return list(numbers)


def refuse_other_base(
    known: Sequence[Identity],
    wanted: Sequence[Identity],
    swept: Collection[str],
    groups: Collection[str] = (),
) -> None:
    """Raises `ConfigError` if a key that is not swept has changed.

    `swept` names the overrides along which the sweep's jobs differ, now or earlier. Jobs are
    compared with those of the same choices of `groups`: a search may ask for the first job of a
    choice, such as algo=dqn, alone.
    """

    def chosen(job: Identity) -> frozenset[str]:
        return frozenset(x for x in job.overrides if x.lstrip("+").partition("=")[0] in groups)

    for choice in {chosen(job) for job in wanted}:
        parts = [[job for job in jobs if chosen(job) == choice] for jobs in (known, wanted)]
        if not parts[0]:
            continue
        common = [common_part([job.config for job in jobs]) for jobs in parts]
        paths = {path for jobs in parts for job in jobs for path in job.config}
        # A swept key, every key of a swept group, and what follows from one of them may change.
        fixed = {x for x in paths if not any(f"{x}.".startswith(f"{key}.") for key in swept)}
        for jobs, part in zip(parts, common, strict=True):
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
    """Whether the job is not completed, and has a checkpoint of a run of its configuration."""
    status = read_status(job.directory)
    if status.get("config_hash") != job.identity.config_hash or status.get("state") == "completed":
        return False
    return has_checkpoint(job.directory)


def quoted(text: str) -> str:
    """The text as the value of an override, quoted where Hydra needs it."""
    return text if PLAIN.fullmatch(text) else QuotedString(text, Quote.single).with_quotes()


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


def compares_times(jobs: Sequence[Job], swept: Collection[str]) -> bool:
    """Whether the jobs differ in a key of speed, also where a group sets it."""
    configs = [flatten(job.values) for job in jobs]
    return any(
        key in swept or len({as_json(config.get(key)) for config in configs}) > 1
        for key in KEYS_OF_SPEED
    )


def side_by_side(jobs: Sequence[Job], swept: Collection[str], cores: int) -> str | None:
    """How jobs that take all cores, but do not measure time, could run side by side."""
    lag = any(flatten(job.values).get("sampler.max_lag", 0) != 0 for job in jobs)
    large = all(job.need.cores is None or 2 * job.need.cores > cores for job in jobs)
    possible = len(jobs) > 1 and 2 * (1 + lag) <= cores and not any(job.need.gpus for job in jobs)
    if not (large and possible) or compares_times(jobs, swept):
        return None
    small = {"sampler": {"n": 1, "max_lag": int(lag)}}
    threads = any(2 * (need({**job.values, **small}).cores or cores) > cores for job in jobs)
    return (
        "each job takes most cores, so they run one at a time, though this sweep does not measure "
        f"time; to run them side by side add {'' if lag else 'sampler=serial or '}sampler.n=1"
        f"{', learner.n=1 and learner.threads=1' if threads else ''}"
    )


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
    blocks = {number: [i for i in indices if repeats[i] == number] for number in set(repeats)}
    if order == "blocks":
        blocks = {number: shuffled(jobs, number) for number, jobs in blocks.items()}
    return [index for number in sorted(blocks) for index in blocks[number]]
