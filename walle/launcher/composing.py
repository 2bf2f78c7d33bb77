"""The jobs before they run: composed, checked, put into directories and in order."""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, cast

import cloudpickle
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from walle.errors import directory_fault
from walle.launcher.allocation import Need, need
from walle.launcher.identity import Identity, same
from walle.launcher.overrides.quick_loader import quick_loader
from walle.system.identity import as_json, comparable_leaves, config_hash, flatten

MESSAGES_SHOWN = 10


class PlanError(ValueError):
    """A job cannot run with its config; found before any job started."""


class Composed(NamedTuple):
    """A job before it has a number.

    Attributes:
        config: the composed config with its `hydra` node.
        values: the task's part of the config, resolved, as plain dictionaries and lists.
        identity: what identifies the job; its number is missing.
    """

    config: DictConfig
    values: dict[str, Any]
    identity: Identity


class Job(NamedTuple):
    """One job of this launch.

    Attributes:
        label: the overrides that distinguish the job from the others, for people.
        config: the composed config with its `hydra` node.
        directory: where the job writes.
        identity: what identifies the job.
        need: cores and GPUs.
        block: the number of its block, from 0; None where the sweep has no blocks.
    """

    label: str
    config: DictConfig
    directory: Path
    identity: Identity
    need: Need
    block: int | None = None

    @property
    def num(self) -> int:
        """The job's number in the sweep, which names its directory."""
        return self.identity.num


def compose(
    context: HydraContext, master: DictConfig, overrides: Sequence[str], ignore: Sequence[str]
) -> Composed:
    """Composes a job's config.

    Args:
        context: holds Hydra's loader.
        master: the sweep's config.
        overrides: the job's overrides.
        ignore: keys that do not belong to a job's identity.
    """
    config = quick_loader(context).take(master, overrides)
    written = _written(config)
    values = comparable_values(config) if "${" in as_json(written) else written
    flat = comparable_leaves(values, written, ignore)
    return Composed(config, values, Identity(-1, tuple(overrides), config_hash(flat), flat))


def _written(config: DictConfig) -> dict[str, Any]:
    """The task's config as it is written, with its interpolations."""
    content = OmegaConf.to_container(config, resolve=False, enum_to_str=True)
    return {key: value for key, value in cast(dict[str, Any], content).items() if key != "hydra"}


def comparable_values(config: DictConfig, num: int = 0) -> dict[str, Any]:
    """The task's config, resolved to the same values in every launch.

    Directories are empty, and `${now:...}` gives its pattern. A config that can only be resolved
    inside the job, because it reads a variable that the job sets, keeps its interpolations.

    Args:
        config: of the job.
        num: the value of `${hydra:job.num}`.
    """
    config = deepcopy(config)
    OmegaConf.clear_cache(config)
    with read_write(config), open_dict(config):
        config.hydra.sweep.dir = config.hydra.sweep.subdir = config.hydra.run.dir = ""
        config.hydra.runtime.output_dir = config.hydra.runtime.cwd = ""
        config.hydra.job.id = config.hydra.job.num = num
    task = task_config(config)
    with _hydra_config(config):
        OmegaConf.register_new_resolver("now", str, replace=True)
        try:
            values = OmegaConf.to_container(task, resolve=True, enum_to_str=True)
        except OmegaConfBaseException:
            values = OmegaConf.to_container(task, resolve=False, enum_to_str=True)
        finally:
            setup_globals()  # registers Hydra's own `now` again
    return cast(dict[str, Any], values)


class Distinct(NamedTuple):
    """The jobs of a sweep without those that repeat another job's config.

    Attributes:
        jobs: in the order given by the sweeper.
        places: for each job of the sweeper, the index in `jobs` of the job with its config.
    """

    jobs: list[Composed]
    places: list[int]


def distinct(asked: Sequence[Composed]) -> Distinct:
    """Keeps the first of the jobs with the same config.

    Two jobs are never the same if they differ in a setting of Hydra, or if their config contains
    the job's number.
    """
    first: dict[tuple[str, ...], int] = {}
    jobs: list[Composed] = []
    places: list[int] = []
    for job in asked:
        place = first.setdefault(_content(job), len(jobs))
        if place < len(jobs) and _contains_number(job):
            place = len(jobs)
        if place == len(jobs):
            jobs.append(job)
        places.append(place)
    return Distinct(jobs, places)


def _content(job: Composed) -> tuple[str, ...]:
    """Equal for two jobs with the same values and the same settings of Hydra."""
    hydras = (one for one in job.identity.overrides if one.lstrip("+~").startswith("hydra"))
    return (config_hash(flatten(job.values)), *sorted(hydras))


def _contains_number(job: Composed) -> bool:
    return not same(job.values, comparable_values(job.config, num=1))


def task_config(config: DictConfig) -> DictConfig:
    """The config without its `hydra` node, as the task's function gets it."""
    task: DictConfig = pickle.loads(cloudpickle.dumps(config))  # quicker than any other copy
    with read_write(task), open_dict(task):
        task.pop("hydra", None)
    return task


@contextmanager
def _hydra_config(config: DictConfig) -> Iterator[None]:
    """Makes `${hydra:...}` read `config` in the body."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().cfg = cast(Any, config)  # `set_config` would copy it
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


def validate(jobs: Sequence[Composed], function: str | None) -> None:
    """Calls the application's check of a config for every job, before any job starts.

    Args:
        jobs: all jobs of the launch.
        function: `module.function` that takes a job's config and raises; None without a check.

    Raises:
        PlanError: some configs were refused; the text has a line for each.
    """
    check = _import(function) if function else None
    refused = [line for job in jobs if check and (line := _refusal(job, check))]
    if refused:
        more = len(refused) - MESSAGES_SHOWN
        tail = [f"... and {more} more"] if more > 0 else []
        raise PlanError("\n".join([*refused[:MESSAGES_SHOWN], *tail]))


def _import(path: str) -> Callable[[DictConfig], object]:
    module, _, name = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise PlanError(
            f"hydra.launcher.validate={path} cannot be imported ({error}): name a function as "
            "package.module.function"
        ) from error
    return cast(Callable[[DictConfig], object], function)


def _refusal(job: Composed, check: Callable[[DictConfig], object]) -> str | None:
    try:
        check(task_config(job.config))
    except (ValueError, TypeError, OmegaConfBaseException) as error:
        return f"{' '.join(job.identity.overrides) or 'the only job'}: {error}"
    return None


def place(job: Composed, num: int, label: str, sweep_dir: str | None) -> Job:
    """Gives a job its number and its directory.

    Args:
        job: the composed job.
        num: its number.
        label: its name for people.
        sweep_dir: the sweep's directory; None for the one in the job's config.

    Raises:
        PlanError: no directory can have the name that the job's directory would have.
    """
    config = job.config
    with read_write(config), open_dict(config):
        config.hydra.job.id = str(num)
        config.hydra.job.num = num
        if sweep_dir is not None:
            config.hydra.sweep.dir = sweep_dir
    with _hydra_config(config):
        directory = Path(str(config.hydra.sweep.dir), str(config.hydra.sweep.subdir))
    if fault := directory_fault(directory):
        raise PlanError(f"#{num} ({label}) cannot have its directory: {fault}")
    return Job(label, config, directory, job.identity._replace(num=num), need(job.values))


def refuse_shared_directories(jobs: Sequence[Job]) -> None:
    """Checks that no two jobs write to the same directory.

    Raises:
        PlanError: two jobs do.
    """
    owners: dict[str, Job] = {}
    for job in jobs:
        other = owners.setdefault(os.path.abspath(job.directory), job)
        if other is not job:
            raise PlanError(
                f"#{other.num} ({other.label}) and #{job.num} ({job.label}) would both write to "
                f"{job.directory}: give hydra.sweep.subdir something that differs, such as "
                "${hydra.job.num}"
            )


def check_gpus(jobs: Sequence[Job], gpus: Sequence[str]) -> None:
    """Checks that the jobs can have the GPUs that they need.

    Raises:
        PlanError: the sweep has none, or a job names a certain GPU.
    """
    for job in jobs:
        device = str(job.config.get("device"))
        if job.need.gpus and not gpus:
            raise PlanError(
                f"#{job.num} ({job.label}) asks for a GPU with device={device}, and the sweep has "
                "none: use device=cpu, or name them in hydra.launcher.gpus (for workers ask "
                "with slurm.gpus=1 or ray.gpus=1)"
            )
        if job.need.gpus and ":" in device:
            raise PlanError(
                f"#{job.num} ({job.label}) names device={device}, but the launcher hands out the "
                "GPUs, and a job sees only its own: use device=cuda"
            )
