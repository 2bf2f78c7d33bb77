"""Optuna's samplers and pruners by their names."""

from contextlib import suppress

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from walle.errors import ConfigError
from walle.tuning.optimizers import make_pruner, make_sampler

SPACE = {"x": FloatDistribution(0, 1), "n": IntDistribution(1, 8)}


@pytest.mark.parametrize("name", ["tpe", "random", "gp", "cmaes", "qmc", "nsgaii", "nsgaiii"])
def test_every_sampler_finds_values(name):
    study = optuna.create_study()
    for number in range(13 if name != "gp" else 3):
        study.sampler = make_sampler(name, 0, number, SPACE)
        trial = study.ask(SPACE)
        study.tell(trial, float(trial.params["n"]))
    assert study.best_value >= 1
    assert len({each.params["x"] for each in study.trials}) == len(study.trials)


@pytest.mark.parametrize("name", ["grid", "bruteforce"])
def test_what_tries_every_value_needs_an_end(name):
    with pytest.raises(ConfigError, match=f"sampler={name} with an interval for x"):
        make_sampler(name, 0, 0, SPACE)


@pytest.mark.parametrize("name", ["grid", "bruteforce"])
def test_every_value_is_tried_as_written(name):
    space = {"x": FloatDistribution(0, 0.9, step=0.3), "n": IntDistribution(1, 2, log=True)}
    study = optuna.create_study()
    for number in range(8):
        study.sampler = make_sampler(name, 0, number, space)
        trial = study.ask(space)
        with suppress(RuntimeError):  # raised by the last value of a sampler that stops a study
            study.tell(trial, 0.0)
    tried = sorted((trial.params["x"], trial.params["n"]) for trial in study.trials)
    assert tried == [(x, n) for x in (0, 0.3, 0.6, 0.9) for n in (1, 2)]


def test_a_trial_draws_by_its_number_alone():
    def drawn(number, seed=0):
        study = optuna.create_study()
        study.sampler = make_sampler("random", seed, number, SPACE)
        return study.ask(SPACE).params["x"]

    assert drawn(3) == drawn(3)
    assert len({drawn(3), drawn(4), drawn(3, seed=1)}) == 3
    assert make_sampler("random", None, 0, SPACE)  # no seed: other numbers every time


def test_options_and_classes():
    options = {"name": "tpe", "n_startup_trials": 3}
    assert make_sampler(options, 0, 0, SPACE)._n_startup_trials == 3
    named = {"_target_": "optuna.samplers.RandomSampler", "seed": 4}
    assert isinstance(make_sampler(named, 0, 0, SPACE), optuna.samplers.RandomSampler)
    assert isinstance(make_pruner("median"), optuna.pruners.MedianPruner)
    assert isinstance(make_pruner(None), optuna.pruners.NopPruner)
    patient = make_pruner({"name": "patient", "wrapped_pruner": "median", "patience": 2})
    assert isinstance(patient, optuna.pruners.PatientPruner)
    for name in ("percentile", "hyperband", "successivehalving", "threshold", "wilcoxon"):
        extra = {"percentile": {"percentile": 25.0}, "threshold": {"lower": 1.0}}.get(name, {})
        make_pruner({"name": name} | extra)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("tpee", "did you mean 'tpe'?"),
        ({"name": "tpe", "seed": -1}, "seed=-1 must be a whole number >= 0"),
        ({"name": "tpe", "n_startup": 1}, "TPESampler has no option 'n_startup'; did you mean"),
        ({"_target_": "optuna.samplers.Nope"}, "cannot be imported"),
        ({"_target_": "nope.Nope"}, "cannot be imported"),
        ({}, "choose one of: "),
    ],
)
def test_what_does_not_exist_is_refused(asked, message):
    with pytest.raises(ConfigError) as error:
        make_sampler(asked, 0, 0, SPACE)
    assert message in str(error.value)


def test_a_pruner_without_its_options_says_what_it_lacks():
    with pytest.raises(ConfigError, match="percentile"):
        make_pruner("percentile")


def test_a_missing_package_is_named(monkeypatch):
    class CmaEsSampler:
        def __init__(self):
            raise ModuleNotFoundError("No module named 'cmaes'", name="cmaes")

    monkeypatch.setattr(optuna.samplers, "CmaEsSampler", CmaEsSampler)
    with pytest.raises(ConfigError, match="pip install cmaes"):
        make_sampler("cmaes", 0, 0, SPACE)
