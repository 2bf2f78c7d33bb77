"""Optuna's samplers and pruners by name, and a pruner's view of running jobs."""

from __future__ import annotations

import csv
import inspect
import statistics
import warnings
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
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
from optuna.trial import Trial

from walle.errors import ConfigError, nearest
from walle.launcher.planning import Job, StopRule
from walle.launcher.records import finite_number

# These samplers have a single sequence of points for the whole study.
ONE_SEQUENCE = ("QMCSampler", "GridSampler")


def make_sampler(
    setting: Any, seed: int | None, number: int, space: Mapping[str, BaseDistribution]
) -> BaseSampler:
    """Makes the sampler for one trial.

    Its random numbers depend on the seed and on the trial's number (`ONE_SEQUENCE`: on the seed
    alone). An interrupted search therefore resumes with the numbers that it would have drawn, and
    launchers that share a study never draw the same numbers.
    """
    sampler, options = _class(setting, "sampler")
    parameters = inspect.signature(sampler).parameters
    takes_values = "search_space" in parameters and "search_space" not in options
    if takes_values or issubclass(sampler, optuna.samplers.BruteForceSampler):
        every = {key: _all_values(setting, key, values) for key, values in space.items()}
        options |= {"search_space": every} if takes_values else {}
    if "seed" in parameters:
        base = options.get("seed", seed)
        if base is not None and not (isinstance(base, int) and base >= 0):
            raise ConfigError(f"hydra.sweeper.sampler: seed={base} must be a whole number >= 0")
        if base is not None and sampler.__name__ not in ONE_SEQUENCE:
            base = int(np.random.SeedSequence([base, number]).generate_state(1)[0])
        options["seed"] = base
    made: BaseSampler = _made(sampler, options, f"hydra.sweeper.sampler={setting}")
    return made


def make_pruner(setting: Any) -> BasePruner:
    """Makes the pruner of the setting `pruner`; without one nothing is pruned."""
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


def _all_values(sampler: Any, key: str, values: BaseDistribution) -> list[Any]:
    """All values of a setting, for a sampler that tries each of them."""
    if isinstance(values, CategoricalDistribution):
        return list(values.choices)
    if isinstance(values, IntDistribution):
        return list(range(values.low, values.high + 1, values.step))
    if isinstance(values, FloatDistribution) and values.step is not None:
        low, high, step = (Decimal(str(x)) for x in (values.low, values.high, values.step))
        return [float(low + i * step) for i in range(int((high - low) / step) + 1)]
    raise ConfigError(
        f"hydra.sweeper.sampler={sampler} with an interval for {key}, which has infinitely many "
        "values; give choice(...) or range(...)"
    )


def trial_stop_rule(trials: Mapping[tuple[str, ...], Trial]) -> StopRule:
    """The rule by which the launcher prunes `trials`, {overrides of a job: its trial}.

    The value of a trial at an evaluation is the median over the seeds that have started, once all
    of these have reached the evaluation. New values are reported to Optuna, and the pruner is asked
    after each of them. The last evaluation is the result itself and cannot prune.
    """
    jobs: dict[int, dict[int, Job]] = {trial.number: {} for trial in trials.values()}
    # An earlier launch may have reported some evaluations of a trial.
    reported = {
        trial.number: {*trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values}
        for trial in trials.values()
    }
    pruned: dict[int, str] = {}

    def reason_to_stop(job: Job, *, starts: bool = True) -> str | None:
        trial = trials.get(job.identity.overrides)
        if trial is None:
            return None
        number = trial.number
        if not starts or number in pruned:
            return pruned.get(number)
        jobs[number][job.num] = job
        values = [evaluations(seed_job) for seed_job in jobs[number].values()]
        for step in sorted(set.intersection(*map(set, values)) - reported[number]):
            value = statistics.median(by_step[step] for by_step in values)
            trial.report(value, step)
            reported[number].add(step)
            if trial.should_prune():
                reason = f"was pruned after evaluation {step} with {value:.4g}"
                pruned[number] = f"trial {number} {reason}"
                break
        return pruned.get(number)

    return reason_to_stop


def evaluations(job: Job) -> dict[int, float]:
    """The mean returns of a job's evaluations so far, by their numbers, without the last one.

    With the key `eval.every`, an evaluation's number counts the intervals passed: runs with
    different round lengths are compared at the same point. Otherwise its number is that of its row,
    from 1.
    """
    config = job.identity.config
    return read_evaluations(job.directory, config.get("eval.every"), config.get("total_steps"))


def read_evaluations(job: Path, interval: Any, until: Any = None) -> dict[int, float]:
    """The mean returns of the evaluations before step `until`, by number, from a directory."""
    file = job / "eval.csv"
    if not file.exists():
        return {}
    text = file.read_text(encoding="utf-8", errors="replace")
    every, total = finite_number(interval), finite_number(until)
    values: dict[int, float] = {}
    rows = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    for row, cells in enumerate(rows, start=1):
        value, steps = (finite_number(cells.get(key)) for key in ("return_mean", "env_steps"))
        if value is None or (total is not None and steps is not None and steps >= total):
            continue
        values.setdefault(row if not every or steps is None else int(steps // every), value)
    return values
