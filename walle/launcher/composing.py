"""The jobs before they run: composed, checked, numbered and given their directories."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, cast

import cloudpickle
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from walle.errors import ConfigError, directory_fault
from walle.launcher.allocation import Need, need
from walle.launcher.records import Identity, job_label, same
from walle.system.identity import as_json, comparable_leaves, config_hash, flatten
from walle.system.importing import imported

MESSAGES_SHOWN = 10


class Composed(NamedTuple):
    """A job before it has a number."""

    config: DictConfig  # the composed config with its `hydra` node
    values: dict[str, Any]  # the task's part of it, resolved, as plain dictionaries and lists
    identity: Identity  # what identifies the job; its number is missing


class Job(NamedTuple):
    """One job of this launch."""

    label: str  # the overrides that distinguish the job from the others, for people
    config: DictConfig  # the composed config with its `hydra` node
    directory: Path  # where the job writes
    identity: Identity  # what identifies the job
    need: Need  # cores and GPUs
    block: int | None = None  # the number of its block, from 0; None where the sweep has no blocks

    @property
    def num(self) -> int:
        """The job's number in the sweep, which names its directory."""
        return self.identity.num


# Returns why a job need not run to its end; None while it must. A sweeper that prunes has such a
# rule. It is also called with `starts=False`, for jobs that still wait.
StopRule = Callable[..., str | None]


class FastLoader:
    """Hydra's loader with a quicker `load_sweep_config`, which returns the same configs.

    Hydra composes every job from its files, which takes a tenth of a second with walle's groups,
    and its sweeper composes each job once more to check it. Here Hydra composes every combination
    of groups once, and a job is a copy with its values set. Overrides that Hydra might handle
    differently, or reject, are composed by Hydra itself.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self._parser = OverridesParser.create()
        self._groups: dict[str, bool] = {}
        self._bases: dict[tuple[str, ...], bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Jobs get the loader without what it has composed."""
        return FastLoader, (self._loader,)

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        """The config of a job, for the caller alone."""
        master, overrides = master_config, sweep_overrides
        parsed = self._parser.parse_overrides(overrides)
        values = [override for override in parsed if self._sets_value(override)]
        others = [override for override in parsed if not self._sets_value(override)]
        if not all(self._is_group(override) for override in others):
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

    def _sets_value(self, override: Override) -> bool:
        """Whether the override sets a value of the task, on which no config file depends."""
        simple = override.type in (OverrideType.CHANGE, OverrideType.FORCE_ADD)
        of_hydra = override.key_or_group.partition(".")[0] == "hydra"
        return simple and override.package is None and not (of_hydra or self._is_group(override))

    def _is_group(self, override: Override) -> bool:
        """Whether it chooses an option of a group."""
        name = override.key_or_group
        if name not in self._groups:
            self._groups[name] = bool(self._loader.get_group_options(name, results_filter=None))
        return self._groups[name] and not isinstance(override.value(), dict)


def fast_loader(context: HydraContext) -> FastLoader:
    """Makes Hydra's own sweeper, and everything else, compose jobs quickly; returns the loader."""
    if not isinstance(context.config_loader, FastLoader):
        context.config_loader = cast(Any, FastLoader(context.config_loader))
    return cast(FastLoader, context.config_loader)


def compose(
    context: HydraContext, master: DictConfig, overrides: Sequence[str], ignore: Sequence[str]
) -> Composed:
    """Composes a job's config; `ignore` names the keys that do not belong to a job's identity."""
    config = fast_loader(context).load_sweep_config(master, list(overrides))
    written = written_values(config)
    values = comparable_values(config) if "${" in as_json(written) else written
    flat = comparable_leaves(values, written, ignore)
    return Composed(config, values, Identity(-1, tuple(overrides), config_hash(flat), flat))


def written_values(config: DictConfig) -> dict[str, Any]:
    """The task's part of a config as it is written, with its interpolations."""
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


def distinct(jobs: Sequence[Composed]) -> tuple[list[Composed], list[int]]:
    """Keeps the first of the jobs with the same config.

    Jobs are never the same if they differ in a setting of Hydra, or if their config contains the
    job's number. Also returns the index of the kept job with its config for each of `jobs`.
    """
    first: dict[tuple[str, ...], int] = {}
    kept: list[Composed] = []
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
    # With their references: reading an entry would resolve it.
    texts = list(cast(Any, OmegaConf.to_container(master.hydra.overrides.task, resolve=False)))
    params = OmegaConf.select(master, "hydra.sweeper.params") or {}
    texts += [f"{key}={value}" for key, value in params.items()]
    parser = OverridesParser.create(config_loader=context.config_loader)
    return list(parser.parse_overrides(texts))


def swept_keys(
    context: HydraContext, master: DictConfig, jobs: Sequence[Sequence[str]]
) -> set[str]:
    """Finds the names of the overrides along which the sweep's jobs differ.

    Those with several values on the command line or in the sweeper's settings, and those whose
    value differs between the jobs: an adaptive sweeper chooses the values by itself. A name that
    only one choice has, such as `ppo.clip`, counts as `algo.clip`, which the jobs have.
    """
    values = [dict(text.lstrip("+~").partition("=")[::2] for text in job) for job in jobs]
    names = {name for job in values for name in job}
    requested = requested_overrides(context, master)
    several = {str(key.key_or_group) for key in requested if key.is_sweep_override()}
    return (several & names) | {n for n in names if len({job.get(n) for job in values}) > 1}


def validate(jobs: Sequence[Composed], function: str | None) -> None:
    """Refuses the configs for which the application's check, `module.function`, raises an error."""
    if function is None:
        return
    module, _, name = function.rpartition(".")
    check: Callable[[DictConfig], object] = imported("hydra.launcher.validate", f"{module}:{name}")
    refused = []
    for job in jobs:
        try:
            check(task_config(job.config))
        except (ValueError, TypeError, OmegaConfBaseException) as error:
            refused.append(f"{' '.join(job.identity.overrides) or 'the only job'}: {error}")
    if refused:
        more = len(refused) - MESSAGES_SHOWN
        tail = [f"... and {more} more"] if more > 0 else []
        raise ConfigError("\n".join([*refused[:MESSAGES_SHOWN], *tail]))


def numbered(
    composed: Sequence[Composed],
    nums: Sequence[int],
    swept: Collection[str],
    sweep_dir: str | None,
    gpus: Sequence[str],
) -> list[Job]:
    """Gives the jobs their labels and directories: in `sweep_dir`, or in those of their configs.

    Refuses a job that cannot have its directory, or the GPUs that it needs.
    """
    jobs: dict[str, Job] = {}
    for (config, values, identity), num in zip(composed, nums, strict=True):
        with read_write(config), open_dict(config):
            config.hydra.job.id, config.hydra.job.num = str(num), num
            if sweep_dir is not None:
                config.hydra.sweep.dir = sweep_dir
        with hydra_config(config):
            directory = Path(str(config.hydra.sweep.dir), str(config.hydra.sweep.subdir))
        label = job_label(identity.overrides, swept)
        if fault := directory_fault(directory):
            raise ConfigError(f"#{num} ({label}) cannot have its directory: {fault}")
        job = Job(label, config, directory, identity._replace(num=num), need(values))
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
                "slurm.gpus=1 or ray.gpus=1)"
            )
        if ":" in device:
            raise ConfigError(
                f"#{num} ({label}) names device={device}, but the launcher hands out the GPUs, and "
                "a job sees only its own: use device=cuda"
            )
    return list(jobs.values())
