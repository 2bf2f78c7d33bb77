"""The settings of a resumed run: those of the run, with the few changes that may be asked for."""

import json
from dataclasses import asdict
from functools import cache

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from walle.config import compose, config_directory
from walle.config.loading import MAY_CHANGE, resumed_config, stored_config
from walle.errors import ConfigError

RUN = (
    "env=hopper",
    "sampler.n=2",
    "algo.clip=0.3",
    "seed=5",
    "batch_size=1024",
    "learner.shards=2",
)


@cache
def stored_by(*overrides):
    """The settings that a run with these overrides writes into run.json."""
    return json.dumps(asdict(compose(overrides)))


def resumed(typed, run=RUN):
    stored = json.loads(stored_by(*run))
    overrides = ["resume=somewhere", *typed]
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        composed = hydra_compose("config", overrides=overrides)
    return resumed_config(stored, composed, overrides)


def test_the_settings_come_from_the_run():
    found = resumed([])
    assert asdict(found) == json.loads(stored_by(*RUN))
    assert (found.env.id, found.seed, found.algo.clip) == ("Hopper-v5", 5, 0.3)


def test_what_leaves_no_trace_in_the_numbers_may_change():
    changes = {
        "callbacks": ["tests.agent.callbacks.test_callbacks:Early"],
        "total_steps": 2_000_000,
        "schedule_steps": 1_000_000,
        "sampler.n": 4,
        "sampler.pin": True,
        "sampler.balance": False,
        "sampler.restarts": 9,
        "sampler.timeout_s": 7.5,
        "learner.n": 2,
        "learner.threads": 1,
        "learner.restarts": 0,
        "checkpoint.every": 5000,
        "device": "cpu",
        "env.on_error": "reset",
        "logger.progress": "quiet",
        "logger.print_every_s": 3.0,
        "logger.video_every": 9000,
        "logger.video_steps": 90,
        "name": "again",
        "objective": "best",
    }
    of_a_cluster = {f"sampler.{name}" for name in ("address", "mismatch", "nodes", "per_node")}
    assert changes.keys() == set(MAY_CHANGE) - of_a_cluster
    expected = OmegaConf.create(json.loads(stored_by(*RUN)))
    for key, value in changes.items():
        OmegaConf.update(expected, key, value)
    found = resumed([f"{key}={value}" for key, value in changes.items()])
    assert asdict(found) == OmegaConf.to_container(expected)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=6", "seed=6 contradicts the run, which has seed=5"),
        ("algo.clip=0.2", "algo.clip=0.2 contradicts the run, which has algo.clip=0.3"),
        ("batch_size=2048", "batch_size=2048 contradicts the run, which has batch_size=1024"),
        ("env=ant", "env=ant contradicts the run, which has env=hopper"),
        ("env.id=Ant-v5", "env.id=Ant-v5 contradicts the run, which has env.id=Hopper-v5"),
        ("+env.kwargs.frame_skip=2", "env.kwargs.frame_skip=2 contradicts the run"),
        ("env.backend=gymnasium", "env.backend=gymnasium contradicts the run"),
        ("env.wrappers=[ClipAction]", r"env.wrappers=\[.ClipAction.\] contradicts the run"),
        ("+experiment=ppo_cartpole", "experiment=ppo_cartpole is for new runs; drop it"),
        ("env/tuned=ant-ppo", "env/tuned=ant-ppo is for new runs; drop it"),
        ("algo=trpo", "algo=trpo contradicts the run, which has algo=ppo"),
        ("net=gru", "net=gru contradicts the run, which has net=mlp"),
        ("net.policy_hidden=[8]", r"net.policy_hidden=\[8\] contradicts the run"),
        ("sampler.lanes=16", "sampler.lanes=16 contradicts the run, which has sampler.lanes=64"),
        ("sampler.max_lag=1", "sampler.max_lag=1 contradicts the run, which has sampler.max_lag=0"),
        ("sampler.collect=episodes", "sampler.collect=episodes contradicts the run"),
        ("eval.every=1000", "eval.every=1000 contradicts the run, which has eval.every=250000"),
        ("trace=true", "trace=True contradicts the run, which has trace=False"),
        ("~algo.clip", "algo.clip=None contradicts the run, which has algo.clip=0.3"),
    ],
)
def test_a_contradiction_is_refused_by_name(override, message):
    with pytest.raises(ConfigError, match=message) as error:
        resumed([override])
    assert "drop it, or start a new run" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "typed", [RUN, ["env=hopper", "algo=ppo", "net=mlp", "sampler=process", "total_steps=1e6"]]
)
def test_what_the_run_has_may_be_typed_again(typed):
    assert asdict(resumed(typed)) == json.loads(stored_by(*RUN))


def test_one_process_may_go_on_for_many_and_many_for_one():
    serial = resumed(["sampler=serial"])
    assert (serial.sampler.name, serial.n, serial.lanes) == ("serial", 1, 64)
    many = resumed(["sampler=process", "sampler.n=3"], [*RUN[:1], *RUN[2:], "sampler=serial"])
    assert (many.sampler.name, many.n, many.lanes) == ("process", 3, 64)


def test_a_sampler_without_processes_cannot_go_on_with_a_lag():
    with pytest.raises(ConfigError, match=r"sampler.max_lag=1 contradicts .* sampler.max_lag=0;"):
        resumed(["sampler=process", "sampler.max_lag=1"], [*RUN[:1], *RUN[2:], "sampler=serial"])
    with pytest.raises(ConfigError, match=r"sampler=serial.*cannot overlap"):
        resumed(["sampler=serial"], [*RUN, "sampler.max_lag=1"])


def test_a_lag_and_its_slots_stay():
    found = resumed(["sampler.n=4"], [*RUN, "sampler.max_lag=3"])
    assert (found.sampler.max_lag, found.slots) == (3, 4)


def test_lanes_that_were_chosen_for_the_machine_stay():
    run = ("batch_size=20000", "sampler.n=33", "sampler.lanes=40")
    assert resumed(["sampler.n=1"], run).lanes == 40


def test_another_logger_may_follow():
    found = resumed(
        ["logger=tensorboard", "logger.progress=lines"], [*RUN, "logger.return_window=7"]
    )
    assert (found.logger.name, found.logger.progress) == ("tensorboard", "lines")
    assert found.logger.return_window == 7
    assert resumed(["logger.mode=offline", "logger=wandb"]).logger.mode == "offline"
    both = "logger=[tensorboard,wandb]", "logger.mode=offline"
    for run in (RUN, [*RUN, "logger=tensorboard"], [*RUN, *both]):
        assert resumed(both, run).logger.names == ["tensorboard", "wandb"]


def test_changes_that_cannot_work_are_refused_as_ever():
    with pytest.raises(ConfigError, match=r"sampler.n=65 is more than sampler.lanes=64"):
        resumed(["sampler.n=65"])
    with pytest.raises(ConfigError, match=r"total_steps=-1 must be positive"):
        resumed(["total_steps=-1"])


@pytest.mark.parametrize(
    "overrides",
    [
        ("env=slow", "env.step_ms=7"),
        ("env.wrappers=[ClipAction,{name:TimeLimit,max_episode_steps:9}]",),
        ("env=gym", "env.id=LunarLander-v3", "+env.kwargs.enable_wind=true"),
        ("net=gru", "net.sequence=8"),
        ("net=mlp256", "net.scale=state"),
        ("algo=sac", "env=pendulum"),
        ("algo=trpo", "sampler.collect=episodes", "env=cartpole"),
        ("algo=a3c", "env=cartpole"),
        ("algo=ppo_kl", "sampler.max_lag=1"),
        ("logger=wandb", "logger.mode=offline"),
        ("logger=tensorboard",),
        ("logger=[tensorboard,wandb]", "logger.mode=offline"),
        ("sampler=serial",),
    ],
)
def test_what_run_json_holds_is_read_as_it_was(overrides):
    stored = json.loads(stored_by(*overrides))
    assert asdict(resumed(overrides, overrides)) == stored


def test_a_checkpoint_file_is_no_directory_of_a_run(tmp_path):
    file = tmp_path / "last.pt"
    file.touch()
    with pytest.raises(ConfigError, match=r"last.pt: this is a file; give the run's directory"):
        stored_config(file)


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"resume=.*no run has been here \(no run.json\); give a"):
        stored_config(tmp_path)
    with pytest.raises(ConfigError, match="no run has been here"):
        stored_config(tmp_path / "typo")


@pytest.mark.parametrize(
    "content", ["", "{", '{"seed": 1}', "[1]", "null", '{"config": 3}', "\xff"]
)
def test_a_damaged_run_json_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"run\.json is damaged: ") as error:
        stored_config(tmp_path)
    assert "\n" not in str(error.value)
