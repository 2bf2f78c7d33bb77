"""Optuna's samplers and pruners by their names."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
from hydra.utils import get_class
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler

from walle.errors import ConfigError, nearest

# Their sequence of points is one for the whole study.
ONE_SEQUENCE = ("QMCSampler", "GridSampler")


def make_sampler(
    asked: Any, seed: int | None, number: int, space: Mapping[str, BaseDistribution]
) -> BaseSampler:
    """Makes the sampler for one trial.

    A trial's random numbers follow from the seed and the trial's number. So a search that was
    broken off goes on with the trials that it would have had, and no two launchers that share a
    study draw the same numbers.

    Args:
        asked: the setting `sampler`.
        seed: the setting `seed`.
        number: of the trial.
        space: the search space.

    Raises:
        ConfigError: there is no such sampler or option, or it needs another package.
    """
    kind, options = _class(asked, "sampler")
    parameters = inspect.signature(kind).parameters
    if "search_space" in parameters and "search_space" not in options:
        options["search_space"] = {key: _all_values(key, one) for key, one in space.items()}
    if "seed" in parameters:
        base = options.get("seed", seed)
        of_trial = None if base is None else _mixed(base, number)
        options["seed"] = base if kind.__name__ in ONE_SEQUENCE else of_trial
    made: BaseSampler = _made(kind, options, f"hydra.sweeper.sampler={asked}")
    return made


def make_pruner(asked: Any) -> BasePruner:
    """Makes the pruner; one that prunes nothing for None.

    Raises:
        ConfigError: there is no such pruner or option.
    """
    if asked is None:
        return NopPruner()
    kind, options = _class(asked, "pruner")
    if isinstance(options.get("wrapped_pruner"), str | dict):
        options["wrapped_pruner"] = make_pruner(options["wrapped_pruner"])
    made: BasePruner = _made(kind, options, f"hydra.sweeper.pruner={asked}")
    return made


def _mixed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _class(asked: Any, what: str) -> tuple[type[Any], dict[str, Any]]:
    """The class and its options, from `name`, `{name: ..., ...}` or `{_target_: ..., ...}`."""
    options = {"name": asked} if isinstance(asked, str) else dict(asked or {})
    if "_target_" in options:
        target = options.pop("_target_")
        try:
            return get_class(target), options
        except Exception as error:
            example = (
                "optuna.samplers.TPESampler" if what == "sampler" else "optuna.pruners.NopPruner"
            )
            raise ConfigError(
                f"hydra.sweeper.{what}._target_={target} cannot be imported ({error}); name a "
                f"class, such as optuna.{example}"
            ) from error
    name, found = str(options.pop("name", "")), _classes(what)
    if name not in found:
        raise ConfigError(f"hydra.sweeper.{what}={asked} is unknown; {nearest(name, found)}")
    return found[name], options


def _classes(what: str) -> dict[str, type[Any]]:
    """Optuna's own classes: `tpe` for TPESampler, `median` for MedianPruner."""
    module, ending = getattr(optuna, f"{what}s"), what.capitalize()
    names = [name for name in module.__all__ if name.endswith(ending) and name[:4] != "Base"]
    return {name.removesuffix(ending).lower(): getattr(module, name) for name in names}


def _made(kind: type[Any], options: dict[str, Any], asked: str) -> Any:
    known = inspect.signature(kind).parameters
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(
            f"{asked}: {kind.__name__} has no option {unknown[0]!r}; {nearest(unknown[0], known)}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return kind(**options)
    except ImportError as error:
        missing = error.name or "the package it needs"
        raise ConfigError(f"{asked} needs {missing}: pip install {missing}") from error
    except (TypeError, ValueError) as error:
        form = f"{{name: {kind.__name__.removesuffix('Pruner').lower()}, OPTION: VALUE}}"
        raise ConfigError(f"{asked}: {error}; options are given as in {form}") from error


def _all_values(key: str, one: BaseDistribution) -> list[Any]:
    """All values of a setting, for a grid.

    Raises:
        ConfigError: there is no end of them.
    """
    if isinstance(one, CategoricalDistribution):
        return list(one.choices)
    if isinstance(one, IntDistribution) and not one.log:
        return list(range(one.low, one.high + 1, one.step))
    if isinstance(one, FloatDistribution) and one.step is not None:
        count = round((one.high - one.low) / one.step) + 1
        return [one.low + i * one.step for i in range(count)]
    raise ConfigError(
        f"hydra.sweeper.sampler=grid with an interval for {key}, which has no end of values; give "
        "choice(...) or range(...)"
    )
