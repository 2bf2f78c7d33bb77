import json

import pytest

from walle.agent.sinks import Speed, describe, flat, section, settings, summary
from walle.system.run_files import update_status

CONFIG = {
    "name": "mine",
    "resume": None,
    "seed": 3,
    "schedule_steps": None,
    "algo": {"name": "ppo", "clip": 0.2},
    "env": {"name": "hopper", "kwargs": {}},
    "sampler": {"n": 2, "lanes": 64, "slots": 1, "max_lag": None},
    "logger": {"name": "wandb"},
}


def described(directory, *overrides, **status):
    (directory / "run.json").write_text(json.dumps({"overrides": overrides}))
    update_status(directory, state="running", **status)
    return describe(directory, CONFIG)


def test_a_job_of_a_sweep_is_named_after_what_varies(tmp_path):
    found = described(
        tmp_path, "sampler.n=2", "seed=3", "total_steps=10", label="sampler.n=2", sweep="a/b"
    )
    assert (found.name, found.sweep, found.tags) == ("sampler.n=2", "a/b", ("ppo", "hopper"))


def test_a_single_run_is_named_after_what_was_typed_about_the_experiment(tmp_path):
    typed = ("env=hopper", "+env.kwargs.a=1", "logger=wandb", "logger.mode=offline", "name=mine")
    found = described(tmp_path, *typed, "hydra.run.dir=x", "hydra/launcher=basic")
    assert (found.name, found.sweep) == ("env=hopper +env.kwargs.a=1", None)


def test_a_run_with_nothing_typed_is_named_after_algorithm_and_environment(tmp_path):
    assert described(tmp_path).name == "ppo hopper"
    assert describe(tmp_path / "elsewhere", CONFIG).name == "ppo hopper"


def test_settings_leave_out_what_follows_from_others_unless_it_was_typed():
    assert settings(CONFIG, []) == {
        "seed": 3,
        "algo": {"name": "ppo", "clip": 0.2},
        "env": {"name": "hopper", "kwargs": {}},
        "sampler": {"n": 2, "max_lag": None},
    }
    typed = settings(CONFIG, ["sampler.lanes=64", "name=mine"])
    assert typed["sampler"] == {"n": 2, "lanes": 64, "max_lag": None}
    assert "name" not in typed


def test_flat_settings_are_numbers_and_texts():
    assert flat({"a": {"b": [1, 2], "c": None}, "d": True}) == {
        "a.b": "[1, 2]",
        "a.c": "null",
        "d": True,
    }


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("collect_s", "time"),
        ("env_steps_per_s", "time"),
        ("learn_share", "time"),
        ("iteration", "time"),
        ("return_round_max", "return"),
        ("length_mean", "return"),
        ("episodes", "return"),
        ("lag_max", "lag"),
        ("policy_version", "lag"),
        ("dropped_steps", "lag"),
        ("clip_fraction", "loss"),
    ],
)
def test_every_column_has_a_section(column, expected):
    assert section(column) == expected


def row(iteration_s, collect_s, learn_s, steps, compile_s=0.0):
    return {
        "iteration_s": iteration_s,
        "collect_s": collect_s,
        "learn_s": learn_s,
        "compile_s": compile_s,
        "env_steps_per_s": steps / iteration_s,
    }


def test_the_summary_has_mean_times_without_the_iteration_that_compiled():
    speed = Speed()
    for each in (row(99.0, 1.0, 1.0, 100, 98.0), row(2.0, 1.0, 0.5, 100), row(3.0, 2.0, 0.5, 150)):
        speed.add(each)
    found = summary({"eval_mean": 7.0, "env_steps": 350, "return_mean": None, **speed.means()})
    assert found == pytest.approx(
        {
            "summary/eval_mean": 7.0,
            "summary/env_steps": 350,
            "summary/iteration_s": 2.5,
            "summary/collect_s": 1.5,
            "summary/learn_s": 0.5,
            "summary/collect_share": 0.6,
            "summary/learn_share": 0.2,
            "summary/env_steps_per_s": 50.0,
        }
    )


def test_a_run_that_only_compiled_has_no_speed():
    speed = Speed()
    speed.add(row(99.0, 1.0, 1.0, 100, 98.0))
    assert speed.means() == {}
