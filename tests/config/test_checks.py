"""What a user who made a mistake sees: one message, an exit code, and no traceback."""

import re
import subprocess
import sys

import pytest

from walle.algos.off_policy.base import OffPolicy
from walle.config import compose
from walle.config.checks import default_parts
from walle.errors import ConfigError, RolloutError
from walle.training import make_problem, train

COUNTER = ("env=gym", "env.id=tests.toy:Counter-v0", "eval.episodes=0", "sampler.lanes=4")


def walle(directory, *overrides):
    command = [sys.executable, "-m", "walle.run", *overrides, f"hydra.run.dir={directory}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan_at", r"the environment gave a reward of nan in lane [02] at step 8 of the rollout"),
        pytest.param(
            "blind_at",
            r"a last observation of an episode of \[nan nan\] in lane [02] at step 8",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "grow_at",
            r"an observation of shape \(1,\) in lane [02] at step 9",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_environment_at_fault_is_one_message_with_lane_and_step(tmp_path, fault, message):
    found = walle(tmp_path, *COUNTER, "sampler.n=2", f"+env.kwargs.{fault}=9")
    assert found.returncode == 1
    assert re.search(message, found.stderr)  # whichever of the two samplers is heard first
    assert "Traceback" not in found.stderr
    assert "\nresume with: " in found.stderr
    assert found.stderr.count("\n") <= 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("env.id=tests.toy:Tupled-v0",), "walle takes Discrete, MultiDiscrete"),
        (("env.id=tests.toy:Dialled-v0",), "and Box actions of real numbers"),
        (
            ("env.id=tests.toy:Counter-v0", "+env.kwargs.raise_at=1"),
            "ValueError: the gearbox broke",
        ),
        (("env.id=Hopper-v5", "+env.kwargs.xml_file={tmp}/bad.xml"), "does not load as a MuJoCo"),
        (("env.id=Hopper-v5", "+env.kwargs.xml_file={tmp}/none.xml"), "there is no file at"),
    ],
)
def test_an_environment_that_cannot_work_is_refused_before_anything_starts(
    tmp_path, command, capsys, overrides, message
):
    (tmp_path / "bad.xml").write_text("<mujoco><worldbody><geom/></worldbody></mujoco>")
    asked = (o.format(tmp=tmp_path) for o in overrides)
    with pytest.raises(SystemExit) as ended:
        command("env=gym", *asked, "sampler=serial", f"hydra.run.dir={tmp_path / 'run'}")
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert message in said


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan_at=9", r"a reward of nan in lane 0 at step 8 "),
        ("blind_at=8", r"an observation of \[nan nan\] in lane 0 at step 8 "),
    ],
)
def test_a_serial_sampler_says_the_same(tmp_path, fault, message):
    config = compose([*COUNTER, "sampler=serial", f"+env.kwargs.{fault}"])
    with pytest.raises(RolloutError, match=message):
        train(config, tmp_path)


@pytest.mark.parametrize(
    ("env", "argument"),
    [
        ("hopper", "healthy_z_range=3"),
        ("hopper", "reset_noise_scale=-1"),
        ("halfcheetah", "frame_skip=2.5"),
        ("halfcheetah", "frame_skip=abc"),
        ("halfcheetah", "xml_file=5"),
        ("lunar_lander", "gravity=5"),
    ],
)
def test_what_an_environment_cannot_take_is_refused_with_its_arguments(env, argument):
    config = compose([f"env={env}", f"+env.kwargs.{argument}"])
    name, value = argument.split("=")
    with pytest.raises(ConfigError, match=rf"{name}.*{value}|{value}.*{name}"):
        make_problem(config)


@pytest.mark.parametrize(
    ("argument", "message"), [("observed", "has empty observations"), ("acted", "cannot change")]
)
def test_empty_observations_and_actions_are_refused(argument, message):
    config = compose(["env=gym", "env.id=tests.toy:Wide-v0", f"+env.kwargs.{argument}=0"])
    with pytest.raises(ConfigError, match=message):
        make_problem(config)


@pytest.mark.parametrize(
    ("minibatch", "shards"), [(64, 1), (1000, 1), (1024, 2), (4096, 8), (1536, 2), (65536, 16)]
)
def test_shards_follow_from_the_minibatch_alone(minibatch, shards):
    assert default_parts(minibatch, most=16, least=512) == shards


@pytest.mark.parametrize(
    ("asked", "shards"),
    [
        (["algo.minibatch_size=4096", "batch_size=8192"], 8),
        (["net=gru", "net.sequence=16", "algo.minibatch_size=1040", "batch_size=16384"], 1),
        (["algo=trpo", "algo.value_minibatch_size=4096"], 8),
        (["algo=sac", "algo.minibatch_size=4096"], 1),
    ],
)
def test_shards_that_nobody_asked_for_fit_every_algorithm(asked, shards):
    assert compose(asked).shards == shards


def test_the_best_evaluation_of_a_run_without_evaluations_is_refused():
    with pytest.raises(ConfigError, match=r"objective=best with eval\.episodes=0: .*=return"):
        compose(["objective=best", "eval.episodes=0"])
    assert compose(["objective=best", "eval.every=null"]).eval.every is None  # one at the end


def test_shards_of_an_algorithm_that_divides_nothing_are_refused(monkeypatch):
    monkeypatch.delattr(OffPolicy, "join")
    with pytest.raises(ConfigError, match=r"learner\.shards=2 with algo=sac, whose updates"):
        compose(["algo=sac", "learner.shards=2"])


def test_a_replay_buffers_minibatches_have_shards_on_request():
    assert compose(["algo=sac", "learner.shards=4", "learner.n=2"]).shards == 4


def test_a_group_without_a_choice_is_explained():
    with pytest.raises(ConfigError, match=r"^algo=null: give algo one of its options: a2c, a3c, "):
        compose(["algo=null"])


def test_a_cpu_quota_limits_the_threads_of_a_learner(monkeypatch):
    monkeypatch.setattr("walle.config.checks.core_quota", lambda: 3)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert compose(["learner.threads=3"]).learner.threads == 3
    with pytest.raises(ConfigError, match=r"learner.threads=4 is more .* use at most 3$"):
        compose(["learner.threads=4"])


@pytest.mark.parametrize("key", ["+env.kwargs.map={0:a}", "env.wrappers=[{name:W,map:[{0:a}]}]"])
def test_keys_that_are_no_texts_are_refused(key):
    """JSON has none, so that a resumed run would have others."""
    with pytest.raises(ConfigError, match=r"has the key 0 of type int, and the files of a run"):
        compose(["env=gym", "env.id=CartPole-v1", key])
