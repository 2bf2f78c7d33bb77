"""The sweeper's settings: every key of `hydra.sweeper`, and which values it may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional  # noqa: UP035  OmegaConf reads these spellings only

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
    params: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    # Trials of the study in all, over all launchers that share it.
    n_trials: int = 20
    # Trials side by side, as many as the launcher has cores for.
    n_jobs: int = 1
    # Seeds of each trial, [1,2,3] or how many, from `seed` upwards; the trial's value is the median
    # over them. null: one job with `seed` as it is.
    seeds: Any = None
    # maximize or minimize the jobs' results; null: maximize, except for objective=wall_s.
    direction: Optional[str] = None  # noqa: UP045
    # Optuna's sampler: tpe, random, gp, cmaes, qmc, grid, bruteforce, nsgaii, or with options as
    # {name: tpe, multivariate: true}, or any class as {_target_: module.Class, ...}.
    sampler: Any = "tpe"
    # Optuna's pruner: median, percentile, successivehalving, hyperband, patient, threshold,
    # wilcoxon, in the same forms; null: all trials run to their ends.
    pruner: Any = None
    # Seed of the sampler; null: different numbers in every search.
    seed: Optional[int] = 0  # noqa: UP045
    # No trial starts after so many seconds; null: no limit.
    timeout_s: Optional[float] = None  # noqa: UP045
    # The study's journal, a file; null: study.journal in the sweep's directory.
    storage: Optional[str] = None  # noqa: UP045
    # The study's name in the journal, which can hold several.
    study_name: str = "study"


def check_settings(settings: WalleOptunaConf) -> None:
    """Refuses impossible values.

    Raises:
        ConfigError: with the key, its value and its possible values.
    """
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


def seeds_of(asked: Any, first: int) -> list[int] | None:
    """The seeds of every trial; None for jobs with the seed that their config has.

    Args:
        asked: the setting `seeds`: a list, how many, or None.
        first: the first seed where only their number is given.

    Raises:
        ConfigError: it is none of these, or a seed stands there twice.
    """
    if asked is None:
        return None
    if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
        return list(range(first, first + asked))
    listed = asked if isinstance(asked, list) else []
    whole = [seed for seed in listed if isinstance(seed, int) and not isinstance(seed, bool)]
    if not whole or len(set(whole)) < len(listed):
        raise ConfigError(
            f"hydra.sweeper.seeds={asked}: give a list of different whole numbers, as in [1,2,3], "
            "or how many"
        )
    return whole
