"""Which trials are stopped, from the eval.csv of their jobs."""

from types import SimpleNamespace

import optuna
import pytest

from walle.tuning.optimizers import evaluations, trial_stop_rule

HEAD = "env_steps,wall_s,episodes,return_mean\n"


def job(directory, num=0, every=100, total=400, overrides=("x=1",)):
    place = directory / str(num)
    place.mkdir(exist_ok=True)
    config = {"eval.every": every, "total_steps": total}
    identity = SimpleNamespace(overrides=overrides, config=config)
    return SimpleNamespace(directory=place, identity=identity, num=num)


def write(job, *rows, tail=""):
    text = "".join(f"{steps},1.0,10,{value}\n" for steps, value in rows)
    (job.directory / "eval.csv").write_text(HEAD + text + tail)


def test_evaluations_are_numbered_by_their_cadence(tmp_path):
    one = job(tmp_path)
    assert evaluations(one) == {}
    write(one, (128, 1.5), (256, 2.5), (384, ""), (400, 9))
    assert evaluations(one) == {1: 1.5, 2: 2.5}  # without an empty cell, and without the last one
    write(one, (128, 1.5), tail="256,1.0,10,2")  # a row that is not yet whole
    assert evaluations(one) == {1: 1.5}
    other = job(tmp_path, num=1, every=None, total=None)
    write(other, (128, 1.5), (256, "inf"), (384, 3))
    assert evaluations(other) == {1: 1.5, 3: 3.0}  # by rows


@pytest.fixture
def study():
    """Five complete trials with the evaluations 10, 20, 30."""
    study = optuna.create_study(
        direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=1)
    )
    for _ in range(5):
        trial = study.ask()
        for step in (1, 2, 3):
            trial.report(10.0 * step, step)
        study.tell(trial, 40)
    return study


def test_a_trial_that_is_behind_is_stopped(study, tmp_path):
    trial = study.ask()
    one, two = job(tmp_path, 0), job(tmp_path, 1, overrides=("x=1", "seed=2"))
    later = job(tmp_path, 2, overrides=("x=1", "seed=3"))
    watch = trial_stop_rule({each.identity.overrides: trial for each in (one, two, later)})
    assert watch(one) is None
    assert watch(two) is None
    write(one, (100, 1))
    assert watch(one) is None  # the second seed has not come so far
    assert watch(later, starts=False) is None  # it waits, so that nobody waits for it
    write(two, (100, 5))
    assert watch(one) == "trial 5 was pruned after evaluation 1 with 3"
    assert watch(two) == watch(later) == watch(one)  # a seed that has not started never does
    assert study.trials[5].intermediate_values == {1: 3.0}


def test_a_trial_that_is_ahead_goes_on(study, tmp_path):
    trial, one = study.ask(), job(tmp_path)
    watch = trial_stop_rule({one.identity.overrides: trial})
    write(one, (100, 15))
    assert watch(one) is None
    write(one, (100, 15), (200, 25), (300, 35), (400, 1))
    assert watch(one) is None
    assert study.trials[5].intermediate_values == {1: 15.0, 2: 25.0, 3: 35.0}


def test_what_an_earlier_launch_reported_is_not_reported_again(study, tmp_path):
    trial, one = study.ask(), job(tmp_path)
    write(one, (100, 15))
    trial_stop_rule({one.identity.overrides: trial})(one)
    write(one, (100, 16), (200, 26))
    trial_stop_rule({one.identity.overrides: optuna.trial.Trial(study, trial._trial_id)})(one)
    assert study.trials[5].intermediate_values == {1: 15.0, 2: 26.0}


def test_jobs_of_others_are_left_alone(tmp_path):
    assert trial_stop_rule({})(job(tmp_path)) is None
