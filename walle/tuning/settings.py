"""The sweeper's settings: every key of `hydra.sweeper`, and which values it may have."""

# ruff: noqa: UP006, UP035, UP045  OmegaConf reads these spellings of types only

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional

from walle.errors import ConfigError

DIRECTIONS = (None, "maximize", "minimize")


@dataclass
class WalleOptunaConf:
    """Every key of `hydra.sweeper`, with its default."""

    _target_: str = "hydra_plugins.walle_optuna.sweeper.WalleOptuna"
    _recursive_: bool = False
    _convert_: str = "all"
    # The search space: settings with Hydra's choice(), range() and interval(); what is typed on the
    # command line wins. docs/tuning.md has the syntax.
    params: Dict[str, Any] = field(default_factory=dict)
    # Trials of the study in all, over all launchers that share it.
    n_trials: int = 20
    # Trials side by side, as many as the launcher has cores for.
    n_jobs: int = 1
    # Seeds of each trial, [1,2,3] or how many, from `seed` upwards; the trial's value is the median
    # over them. null: one job with `seed` as it is.
    seeds: Any = None
    # maximize or minimize the jobs' results; null: maximize, except for objective=wall_s.
    direction: Optional[str] = None
    # Optuna's sampler: tpe, random, gp, cmaes, qmc, grid, bruteforce, nsgaii, or with options as
    # {name: tpe, multivariate: true}, or any class as {_target_: module.Class, ...}.
    sampler: Any = "tpe"
    # Optuna's pruner: median, percentile, successivehalving, hyperband, patient, threshold,
    # wilcoxon, in the same forms; null: all trials run to their ends.
    pruner: Any = None
    # Seed of the sampler; null: different numbers in every search.
    seed: Optional[int] = 0
    # No trial starts after so many seconds; null: no limit.
    timeout_s: Optional[float] = None
    # The study's journal, a file; null: study.journal in the sweep's directory.
    storage: Optional[str] = None
    # The study's name in the journal, which can hold several.
    study_name: str = "study"


def check_settings(settings: WalleOptunaConf) -> None:
    """Raises `ConfigError` for impossible values."""
    for key in ("n_trials", "n_jobs"):
        if getattr(settings, key) < 1:
            raise ConfigError(f"hydra.sweeper.{key}={getattr(settings, key)}: it must be 1 or more")
    if settings.timeout_s is not None and settings.timeout_s <= 0:
        raise ConfigError(f"hydra.sweeper.timeout_s={settings.timeout_s}: it must be above 0")
    if settings.direction not in DIRECTIONS:
        raise ConfigError(
            f"hydra.sweeper.direction={settings.direction}: choose one of null, maximize, minimize"
        )
    seeds_of(settings.seeds, 0)


def seeds_of(setting: Any, first: int) -> list[int] | None:
    """The seeds of every trial, from a list or their number; None for the seed of the config."""
    if setting is None:
        return None
    if isinstance(setting, int) and not isinstance(setting, bool) and setting > 0:
        return list(range(first, first + setting))
    listed = setting if isinstance(setting, list) else []
    whole = [seed for seed in listed if isinstance(seed, int) and not isinstance(seed, bool)]
    if not whole or len(set(whole)) < len(listed):
        raise ConfigError(
            f"hydra.sweeper.seeds={setting}: give a list of different whole numbers, as in "
            "[1,2,3], or how many"
        )
    return whole
