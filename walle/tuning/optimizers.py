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
    setting: Any, seed: int | None, number: int, space: Mapping[str, BaseDistribution]
) -> BaseSampler:
    """Makes the sampler for one trial.

    A trial's random numbers follow from the seed and the trial's number. A search that was
    interrupted therefore resumes with the trials that it would have had, and no two launchers that
    share a study draw the same numbers.
    """
    sampler, options = _class(setting, "sampler")
    parameters = inspect.signature(sampler).parameters
    if "search_space" in parameters and "search_space" not in options:
        options["search_space"] = {key: _all_values(key, values) for key, values in space.items()}
    if "seed" in parameters:
        base = options.get("seed", seed)
        if base is not None and sampler.__name__ not in ONE_SEQUENCE:
            base = int(np.random.SeedSequence([base, number]).generate_state(1)[0])
        options["seed"] = base
    made: BaseSampler = _made(sampler, options, f"hydra.sweeper.sampler={setting}")
    return made


def make_pruner(setting: Any) -> BasePruner:
    """Makes the pruner of the setting `pruner`; one that prunes nothing for None."""
    if setting is None:
        return NopPruner()
    pruner, options = _class(setting, "pruner")
    if isinstance(options.get("wrapped_pruner"), str | dict):
        options["wrapped_pruner"] = make_pruner(options["wrapped_pruner"])
    made: BasePruner = _made(pruner, options, f"hydra.sweeper.pruner={setting}")
    return made


def _class(setting: Any, what: str) -> tuple[type[Any], dict[str, Any]]:
    """The class and its options, from `name`, `{name: ..., ...}` or `{_target_: ..., ...}`."""
    options = {"name": setting} if isinstance(setting, str) else dict(setting or {})
    if "_target_" in options:
        target = options.pop("_target_")
        try:
            return get_class(target), options
        except Exception as error:
            example = "samplers.TPESampler" if what == "sampler" else "pruners.NopPruner"
            raise ConfigError(
                f"hydra.sweeper.{what}._target_={target} cannot be imported ({error}); name a "
                f"class, such as optuna.{example}"
            ) from error
    # Optuna's own classes: `tpe` for TPESampler, `median` for MedianPruner.
    module, ending = getattr(optuna, f"{what}s"), what.capitalize()
    classes = {
        name.removesuffix(ending).lower(): getattr(module, name)
        for name in module.__all__
        if name.endswith(ending) and name[:4] != "Base"
    }
    name = str(options.pop("name", ""))
    if name not in classes:
        raise ConfigError(f"hydra.sweeper.{what}={setting} is unknown; {nearest(name, classes)}")
    return classes[name], options


def _made(made: type[Any], options: dict[str, Any], shown: str) -> Any:
    known = inspect.signature(made).parameters
    if unknown := [name for name in options if name not in known]:
        raise ConfigError(
            f"{shown}: {made.__name__} has no option {unknown[0]!r}; {nearest(unknown[0], known)}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return made(**options)
    except ImportError as error:
        missing = error.name or "the package it needs"
        raise ConfigError(f"{shown} needs {missing}: pip install {missing}") from error
    except (TypeError, ValueError) as error:
        form = f"{{name: {made.__name__.removesuffix('Pruner').lower()}, OPTION: VALUE}}"
        raise ConfigError(f"{shown}: {error}; options are given as in {form}") from error


def _all_values(key: str, values: BaseDistribution) -> list[Any]:
    """All values of a setting, for a grid."""
    if isinstance(values, CategoricalDistribution):
        return list(values.choices)
    if isinstance(values, IntDistribution) and not values.log:
        return list(range(values.low, values.high + 1, values.step))
    if isinstance(values, FloatDistribution) and values.step is not None:
        count = round((values.high - values.low) / values.step) + 1
        return [values.low + i * values.step for i in range(count)]
    raise ConfigError(
        f"hydra.sweeper.sampler=grid with an interval for {key}, which has infinitely many values; "
        "give choice(...) or range(...)"
    )
