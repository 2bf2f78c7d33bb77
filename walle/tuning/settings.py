"""The sweeper's settings: every key of `hydra.sweeper` and its allowed values."""

# ruff: noqa: UP006, UP035, UP045  OmegaConf reads these spellings of types only

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional

from walle.errors import not_negative, one_of, positive


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
    n_trials: int = positive(20)
    # Trials side by side, as far as the launcher has cores for them.
    n_jobs: int = positive(1)
    # Seeds of each trial: a list such as [1,2,3], or a number of seeds from `seed` upwards; the
    # trial's value is the median over them. null: one job with `seed` as it is.
    seeds: Any = None
    # maximize or minimize the jobs' results; null: maximize, except for objective=wall_s.
    direction: Optional[str] = one_of("maximize", "minimize", default=None)
    # Optuna's sampler: tpe, random, gp, cmaes, qmc, grid, bruteforce, nsgaii, or with options as
    # {name: tpe, multivariate: true}, or any class as {_target_: module.Class, ...}.
    sampler: Any = "tpe"
    # Optuna's pruner: median, percentile, successivehalving, hyperband, patient, threshold,
    # wilcoxon, in the same forms; null: all trials run to their ends.
    pruner: Any = None
    # Seed of the sampler; null: different numbers in every search.
    seed: Optional[int] = not_negative(0)
    # No trial starts after so many seconds; null: no limit.
    timeout_s: Optional[float] = positive(None)
    # The study's journal, a file; null: study.journal in the sweep's directory.
    storage: Optional[str] = None
    # The study's name in the journal, which can hold several.
    study_name: str = "study"
