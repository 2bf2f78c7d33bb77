"""Checks of a search: its settings before its first job, and each job before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.types import HydraContext
from omegaconf import DictConfig
from optuna.pruners import BasePruner

from walle.errors import ConfigError
from walle.launcher.composing import Composed, PlanError, compose, validate
from walle.tuning.optimizers import make_pruner, make_sampler
from walle.tuning.settings import WalleOptunaConf, seeds_of
from walle.tuning.space import Space

BY_EVALUATION = (None, "eval", "best")  # values of `objective` that evaluations tell in advance


def read_seeds(settings: WalleOptunaConf, space: Space, config: DictConfig) -> list[int] | None:
    """The seeds of each trial; None for jobs with the seed that they have.

    Raises:
        ConfigError: `seed` is searched, or given besides a list of seeds.
    """
    if "seed" in space.distributions:
        raise ConfigError(
            f"seed={space.written['seed']}: the best seed says nothing about settings; for the "
            "median over seeds give hydra.sweeper.seeds=[1,2,3]"
        )
    given = [one for one in space.fixed if one.lstrip("+").startswith("seed=")]
    if given and isinstance(settings.seeds, list):
        raise ConfigError(
            f"{given[0]} contradicts hydra.sweeper.seeds={settings.seeds}: drop one of the two"
        )
    return seeds_of(settings.seeds, int(config.get("seed") or 0))


def checked_pruner(
    settings: WalleOptunaConf, space: Space, launcher: Any, config: DictConfig
) -> BasePruner:
    """Makes the pruner; makes a sampler too, to find wrong options.

    Raises:
        ConfigError: an option is wrong, the launcher cannot stop jobs, or evaluations do not tell
            the objective.
    """
    make_sampler(settings.sampler, 0, 0, space.distributions)
    pruner = make_pruner(settings.pruner)
    if settings.pruner is None:
        return pruner
    what = f"hydra.sweeper.pruner={settings.pruner}"
    if not hasattr(launcher, "watch"):
        raise ConfigError(
            f"{what}: {type(launcher).__name__} cannot stop jobs; use hydra/launcher=walle, or "
            "leave the pruner out"
        )
    if (objective := config.get("objective")) not in BY_EVALUATION:
        raise ConfigError(
            f"{what} compares evaluations, which say nothing of objective={objective}; leave the "
            "pruner out"
        )
    return pruner


def check_ends(
    context: HydraContext, config: DictConfig, space: Space, *, prunes: bool = False
) -> None:
    """Composes a job at each end of the search space.

    Raises:
        ConfigError: none of them is a possible configuration, or there is a pruner and none has an
            evaluation before its end.
        HydraException: a key or an option does not exist.
    """
    jobs = [compose(context, config, space.overrides(point), ()) for point in space.ends()]
    refused = [_refusal(job, config) for job in jobs]
    if all(refused):
        raise ConfigError(f"no end of the search space can run: {refused[0]}")
    if prunes and not any(map(_evaluated_before_its_end, jobs)):
        settings = jobs[0].identity.config
        raise ConfigError(
            f"hydra.sweeper.pruner would prune nothing: the only evaluation of a job is at its end,"
            f" by eval.every={settings['eval.every']} and total_steps={settings['total_steps']};"
            " use a smaller eval.every, or leave the pruner out"
        )


def _evaluated_before_its_end(job: Composed) -> bool:
    """Whether a pruner will see an evaluation; another application's settings do not tell."""
    settings = job.identity.config
    if not {"eval.every", "total_steps"} <= settings.keys():
        return True
    every = settings["eval.every"]
    return every is not None and float(every) < float(settings["total_steps"])


def refusal(context: HydraContext, config: DictConfig, overrides: Sequence[str]) -> str | None:
    """Why the launcher's `validate` refuses a job with these overrides; None if it does not."""
    if not config.hydra.launcher.get("validate"):
        return None
    return _refusal(compose(context, config, overrides, ()), config)


def _refusal(job: Composed, config: DictConfig) -> str | None:
    try:
        validate([job], config.hydra.launcher.get("validate"))
    except PlanError as error:
        return str(error).removeprefix(f"{' '.join(job.identity.overrides)}: ")
    return None
