"""Jobs before they run: composed, checked, placed and put in order."""

from __future__ import annotations

import importlib
import os
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from hydra_plugins.walle_launcher._cores import Need, need
from hydra_plugins.walle_launcher._identity import Known, config_hash, flatten

SHUFFLE_SEED = 0
MESSAGES_SHOWN = 10


class PlanError(ValueError):
    """A job cannot run as it was asked for; found before any job started."""


class Job(NamedTuple):
    """One job of this launch.

    Attributes:
        num: its number in the sweep, which names its directory.
        label: what sets it apart from the others, for people.
        config: composed, `hydra` node included.
        directory: where it writes.
        known: what identifies it.
        need: cores and GPUs.
    """

    num: int
    label: str
    config: DictConfig
    directory: Path
    known: Known
    need: Need


class Composed(NamedTuple):
    """A job before it has a number.

    Attributes:
        overrides: what sets it apart.
        config: composed, `hydra` node included.
        values: the task's part, resolved, as plain dictionaries and lists.
        known: what identifies it, but for the number.
    """

    overrides: tuple[str, ...]
    config: DictConfig
    values: dict[str, Any]
    known: Known


def compose(
    context: HydraContext,
    master: DictConfig,
    overrides: Sequence[Sequence[str]],
    ignore: Sequence[str],
) -> list[Composed]:
    """Composes every job's config.

    Args:
        context: holds Hydra's loader.
        master: the sweep's config.
        overrides: of each job.
        ignore: keys that do not count for a job's identity.
    """
    return [_compose(context, master, tuple(job), ignore) for job in overrides]


def _compose(
    context: HydraContext, master: DictConfig, overrides: tuple[str, ...], ignore: Sequence[str]
) -> Composed:
    config = context.config_loader.load_sweep_config(master, list(overrides))
    values = placeless_values(config)
    flat = flatten(values, ignore)
    return Composed(overrides, config, values, Known(-1, overrides, config_hash(flat), flat))


def placeless_values(config: DictConfig) -> dict[str, Any]:
    """The task's config, resolved as if every run wrote to the same place at the same time.

    What cannot be resolved outside the job, as a variable that only the job sets, stays as written.
    """
    config = deepcopy(config)
    OmegaConf.clear_cache(config)
    with read_write(config), open_dict(config):
        config.hydra.sweep.dir = config.hydra.sweep.subdir = config.hydra.run.dir = ""
        config.hydra.runtime.output_dir = config.hydra.runtime.cwd = ""
        config.hydra.job.id = config.hydra.job.num = 0
    with _timeless(config):
        task = task_config(config)
        try:
            values = OmegaConf.to_container(task, resolve=True, enum_to_str=True)
        except OmegaConfBaseException:
            values = OmegaConf.to_container(task, resolve=False, enum_to_str=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def task_config(config: DictConfig) -> DictConfig:
    """The config without its `hydra` node: what the task's function gets."""
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


@contextmanager
def _timeless(config: DictConfig) -> Iterator[None]:
    """`${now:}` gives its pattern and `${hydra:}` reads `config`, for the length of the body."""
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)
    OmegaConf.register_new_resolver("now", str, replace=True)
    try:
        yield
    finally:
        setup_globals()
        HydraConfig.instance().cfg = before


def validate(jobs: Sequence[Composed], function: str | None) -> None:
    """Has the application refuse what it cannot run, before anything has started.

    Args:
        jobs: all of the launch.
        function: `module.function` that takes a job's config and raises; None to ask nobody.

    Raises:
        PlanError: some configs were refused; its text holds a line for each.
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
        return f"{' '.join(job.overrides) or 'the only job'}: {error}"
    return None


def place(job: Composed, num: int, label: str, sweep_dir: str | None) -> Job:
    """Gives a job its number and with it its directory.

    Args:
        job: composed.
        num: its number.
        label: how to call it.
        sweep_dir: the sweep's directory, where it is not what the config says.
    """
    config = job.config
    with read_write(config), open_dict(config):
        config.hydra.job.id = str(num)
        config.hydra.job.num = num
        if sweep_dir is not None:
            config.hydra.sweep.dir = sweep_dir
    directory = Path(
        _evaluated(config, "hydra.sweep.dir"), _evaluated(config, "hydra.sweep.subdir")
    )
    return Job(num, label, config, directory, job.known._replace(num=num), need(job.values))


def refuse_shared_directories(jobs: Sequence[Job]) -> None:
    """Checks that no two jobs write to one place.

    Raises:
        PlanError: two would.
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


def _evaluated(config: DictConfig, key: str) -> str:
    before = HydraConfig.instance().cfg
    HydraConfig.instance().set_config(config)
    try:
        return str(OmegaConf.select(config, key))
    finally:
        HydraConfig.instance().cfg = before


def swept_keys(
    context: HydraContext, master: DictConfig, jobs: Sequence[Sequence[str]]
) -> set[str]:
    """Names of the overrides along which the sweep's jobs differ.

    They are those given several values, here or in the sweeper's own settings, and those whose
    value differs between the jobs, as an adaptive sweeper chooses them.
    """
    asked = [str(override) for override in master.hydra.overrides.task]
    params = OmegaConf.select(master, "hydra.sweeper.params") or {}
    asked += [f"{key}={value}" for key, value in params.items()]
    parsed = OverridesParser.create(config_loader=context.config_loader).parse_overrides(asked)
    several = {str(one.key_or_group) for one in parsed if one.is_sweep_override()}
    return several | _differing(jobs)


def _differing(jobs: Sequence[Sequence[str]]) -> set[str]:
    """Names of the overrides that not all jobs have with the same value."""
    given = [dict(one.lstrip("+~").partition("=")[::2] for one in job) for job in jobs]
    names = {name for overrides in given for name in overrides}
    return {name for name in names if len({overrides.get(name) for overrides in given}) > 1}


def in_order(jobs: Sequence[Composed], order: str) -> list[int]:
    """Indices of the jobs in the order to run them.

    Args:
        jobs: as given.
        order: `given`; `interleaved`, all jobs of the first `seed`, then all of the second, so
            that the machine's drift meets every setting alike; `shuffled`, at random but always
            the same way.
    """
    indices = list(range(len(jobs)))
    if order == "shuffled":
        random.Random(SHUFFLE_SEED).shuffle(indices)
    if order == "interleaved":
        seeds = list(dict.fromkeys(repr(job.values.get("seed")) for job in jobs))
        indices.sort(key=lambda index: seeds.index(repr(jobs[index].values.get("seed"))))
    return indices


def compares_times(jobs: Sequence[Composed], swept: Collection[str]) -> bool:
    """True when the jobs differ in `sampler.n`: a sweep that measures time."""
    counts = {repr(flatten(job.values).get("sampler.n")) for job in jobs}
    return "sampler.n" in swept or len(counts) > 1
