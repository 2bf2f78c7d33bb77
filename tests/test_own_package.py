"""examples/own_package: an environment, a net, an algorithm and a callback outside of walle."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import walle
from tests.conftest import read
from walle import algos
from walle.agent import checkpoint
from walle.config import compose
from walle.envs import EnvSpec, make_lanes
from walle.errors import ConfigError
from walle.system.run_files import read_status
from walle.training import make_algorithm, make_problem, train

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "examples" / "own_package"
OWN = (
    "env=gym",
    "env.id=corridor.environment:Corridor",
    "env.episode_limit=50",
    "net=own",
    "net.name=corridor.net:Waves",
    "algo=own",
    "algo.name=corridor.algorithm:WeightedRegression",
)
SIZE = ("batch_size=256", "sampler.lanes=8", "logger.progress=quiet", "eval.episodes=2")


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    """The package as a module beside the user."""
    monkeypatch.syspath_prepend(PACKAGE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a run of two rounds, in two sampler processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PACKAGE)
        directory = tmp_path_factory.mktemp("own") / "run"
        config = compose([*OWN, *SIZE, "sampler.n=2", "total_steps=512", "eval.every=256"])
        train(config, directory)
    return directory


def test_all_parts_of_ones_own_train_in_sampler_processes(trained):
    rows = read(trained / "iterations.csv")
    assert [row["env_steps"] for row in rows] == ["256", "512"]
    assert all(float(row["weight_max"]) > 1 for row in rows)
    assert len(read(trained / "eval.csv")) == 2
    config = json.loads((trained / "run.json").read_text())["config"]
    assert config["algo"]["temperature"] == 1.0  # the dataclass's default
    assert config["net"]["waves"] == 16


def test_they_do_not_depend_on_the_number_of_samplers(trained, tmp_path):
    train(compose([*OWN, *SIZE, "sampler=serial", "total_steps=512", "eval.every=256"]), tmp_path)
    for name in ("episodes", "eval"):
        ours, theirs = (
            [{k: r[k] for k in r if "return" in k} for r in read(d / f"{name}.csv")]
            for d in (trained, tmp_path)
        )
        assert ours == theirs


def test_the_policy_is_loaded_and_evaluated(trained):
    policy = walle.load(trained, which="last", trust=True)
    assert policy.act(np.zeros(1)) in (0, 1)
    found = walle.evaluate(policy, episodes=4)
    assert len(found.returns) == 4
    assert policy.env().reset(seed=0)[0].shape == (1,)


def test_a_resumed_run_ends_with_the_same_numbers(trained, tmp_path):
    settings = [*OWN, *SIZE, "sampler=serial", "eval.every=256"]
    train(compose([*settings, "total_steps=768"]), tmp_path / "whole")
    shutil.copytree(trained, tmp_path / "run")
    state = checkpoint.load(tmp_path / "run" / "checkpoints" / "last.pt")
    train(compose([*settings, "total_steps=768"]), tmp_path / "run", resumed=state)
    ends = [checkpoint.load(tmp_path / d / "checkpoints" / "last.pt") for d in ("whole", "run")]
    assert (ends[0]["algorithm"]["vector"] == ends[1]["algorithm"]["vector"]).all()


def test_an_on_policy_algorithm_of_walle_takes_the_net(tmp_path):
    settings = ["env=cartpole", "net=own", "net.name=corridor.net:Waves", "+net.waves=4"]
    config = compose([*settings, *SIZE, "sampler=serial", "total_steps=256", "eval.episodes=0"])
    algorithm = make_algorithm(config, make_problem(config)[0])
    shapes = algorithm.policy.layout.shapes
    assert shapes["policy.encoder.weight"] == (4, 4)
    assert shapes["policy.0.weight"] == (64, 8)
    train(config, tmp_path)


@pytest.mark.slow
def test_an_off_policy_algorithm_takes_the_net_and_resumes(tmp_path):
    net = ["net=own", "net.name=corridor.net:Waves", "+net.waves=8"]
    early = ["algo.learning_starts=64", "algo.updates_per_step=0.1", "algo.minibatch_size=32"]
    settings = ["algo=sac", "env=pendulum", *net, *early, *SIZE, "batch_size=64", "eval.episodes=0"]
    train(compose([*settings, "sampler.n=2", "total_steps=128"]), tmp_path / "run")
    state = checkpoint.load(tmp_path / "run" / "checkpoints" / "last.pt")
    further = compose([*settings, "sampler=serial", "total_steps=192"])
    train(further, tmp_path / "run", resumed=state)
    train(further, tmp_path / "whole")
    ends = [walle.load(tmp_path / d, "last", trust=True).snapshot.vector for d in ("run", "whole")]
    assert (ends[0] == ends[1]).all()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("+algo.temprature=2",), r"algo.temprature is not a setting; did you mean 'algo.temp"),
        (("algo.temperature=2",), r"one of your own class needs a plus: \+algo.temperature=\.\.\."),
        (("net.waves=2",), r"one of your own class needs a plus: \+net.waves=\.\.\."),
        (("+algo.temperature=0",), r"algo.temperature=0.* must be positive"),
        (("+algo.gamma=2",), r"algo.gamma=2.* must lie in \[0, 1\]"),
        (("+net.wave=2",), r"net.wave is not a setting; did you mean 'net.waves'"),
        (("+net.frequency=-1",), r"net.frequency=-1.* must be positive"),
        (("sampler.max_lag=1",), r"it imitates the newest policy's own actions only"),
        (("algo.name=corridor.algorithm:Weighted",), r"has no Weighted; did you mean"),
        (("algo.name=corridor.net:Waves",), r"Waves lacks capabilities, optimizers, warm_up, upd"),
        (("net.name=corridor.callback:Solved",), r"Solved lacks init"),
        (("net.name=mpl",), r"net.name='mpl' is unknown; did you mean 'mlp'\?.*module:Class"),
        (("algo.name=pop",), r"not registered; did you mean 'ppo'\?.*module:Class"),
    ],
)
def test_a_wrong_setting_or_name_is_refused_with_the_cure(typed, said):
    with pytest.raises(ConfigError, match=said):
        compose([*OWN, *typed])


def test_a_net_that_does_not_fit_is_refused_before_anything_starts(monkeypatch):
    from corridor.net import Waves

    monkeypatch.setattr(Waves, "__call__", lambda self, params, obs: obs)
    for algorithm in ("sac", "ppo"):
        settings = [f"algo={algorithm}", "env=pendulum", "net=own", "net.name=corridor.net:Waves"]
        config = compose(settings)
        problem = make_problem(config)[0]
        with pytest.raises(ConfigError, match=r"returns \(4, 3\) .*features=32 promises \(4, 32\)"):
            make_algorithm(config, problem)


@pytest.mark.parametrize("group", ["algo", "net"])
def test_a_name_is_needed(group):
    with pytest.raises(ConfigError, match=rf"{group}.name has no value; give one: {group}.name="):
        compose([f"{group}=own"])


def lane(name, **kwargs):
    return make_lanes(EnvSpec(name, kwargs), [0], 0)


def test_an_environment_by_class_takes_arguments_and_a_function_does_too():
    assert lane("corridor.environment:Corridor", length=5).reset().shape == (1, 1)
    assert lane("tests.test_own_package:short_corridor", length=5).reset().shape == (1, 1)


def short_corridor(length) -> gym.Env:
    from corridor.environment import Corridor

    return Corridor(length)


class Ant:
    """Not Gymnasium's."""

    def reset(self):
        pass


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests.test_own_package:Ant", r"it is not called: derive Ant from gymnasium.Env$"),
        ("no_such_module:Ant", "there is no module no_such_module in this directory"),
        ("corridor.environment:Coridor", "environment has no Coridor; did you mean 'Corridor'"),
        ("tests.test_own_package:Nothing", "tests.test_own_package has no Nothing; "),
        ("corridor.environment:Corridor-v7", "Environment `Corridor` doesn't exist.$"),
        ("Pong-v5", r"`Pong` doesn't exist.*prefix, as in env\.id=ALE/Pong-v5$"),
        ("CartPol-v1", r"Did you mean: `CartPole`\?$"),
        (":Corridor", r"env\.id=':Corridor' must be module:Name"),
    ],
)
def test_what_is_no_environment_is_refused(name, said):
    with pytest.raises(ConfigError, match=said):
        lane(name)


class Lambda:
    """An algorithm whose policy no sampler can get."""

    def __init__(self, *arguments):
        from corridor.algorithm import WeightedRegression

        whole = WeightedRegression(*arguments)
        self.policy_factory, self.obs_clip = (lambda: whole.policy), 10.0
        self.replay = None

    def _unused(self):
        raise AssertionError("called, though its policy is refused before")

    optimizers = warm_up = update = snapshot = state_dict = load_state_dict = _unused


class Bare(Lambda):
    def __init__(self, *_):
        pass


def test_an_algorithm_that_no_worker_can_use_is_refused():
    from corridor.algorithm import WeightedRegression

    Lambda.capabilities = WeightedRegression.capabilities
    for name, said in (("Lambda", "cannot be sent to worker"), ("Bare", "lack policy_factory, ob")):
        config = compose([*OWN, f"algo.name=tests.test_own_package:{name}"])
        with pytest.raises(ConfigError, match=said):
            make_algorithm(config, make_problem(config)[0])
    Lambda.capabilities = None
    with pytest.raises(ConfigError, match=r"capabilities must be walle.algos.base.Capabilities"):
        algos.load("tests.test_own_package:Lambda")


@pytest.mark.slow
def test_a_net_of_ones_own_is_compiled(tmp_path):
    settings = ["env=cartpole", "net=own", "net.name=corridor.net:Waves", "algo.compile=true"]
    config = compose([*settings, *SIZE, "sampler=serial", "total_steps=512", "eval.episodes=0"])
    train(config, tmp_path / "compiled")
    config.algo.compile = "false"
    train(config, tmp_path / "eager")
    compiled, eager = (read(tmp_path / d / "iterations.csv") for d in ("compiled", "eager"))
    for one, other in zip(compiled, eager, strict=True):
        assert float(one["policy_loss"]) == pytest.approx(float(other["policy_loss"]), abs=1e-3)


@pytest.fixture
def elsewhere(tmp_path):
    """A copy of the package, in no repository."""
    shutil.copytree(PACKAGE, tmp_path / "package")
    return tmp_path / "package"


@pytest.mark.slow
def test_the_commands_of_the_package_train_sweep_resume_and_stop(elsewhere):
    """As a user types them."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    def walle_run(*typed):
        command = [sys.executable, "-m", "walle", "run", *typed, *SIZE]
        ran = subprocess.run(
            command, cwd=elsewhere, env=environ, capture_output=True, text=True, timeout=500
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    chosen = ("env=corridor", "net=waves", "algo=weighted", "callbacks=[corridor.callback:Solved]")
    eager = ("eval.every=1024", "total_steps=20480")
    out = walle_run("-m", *chosen, "sampler.n=1,2", "name=own", *eager)
    assert "2 of 2 jobs are complete" in out
    for number in ("0", "1"):
        status = read_status(elsewhere / "multirun" / "own" / number)
        assert status["reason"] == "stopped by callback corridor.callback:Solved"
    assert "2 done already" in walle_run("-m", *chosen, "sampler.n=1,2", "name=own", *eager)
    steps = int(read(elsewhere / "multirun" / "own" / "0" / "iterations.csv")[-1]["env_steps"])
    further = f"total_steps={steps + 512}"
    command = [sys.executable, "-m", "walle", "run", "resume=multirun/own/0", "callbacks=[]"]
    subprocess.run([*command, further], cwd=elsewhere, env=environ, check=True, timeout=500)
    rows = read(elsewhere / "multirun" / "own" / "0" / "iterations.csv")
    assert int(rows[-1]["env_steps"]) == steps + 512


def test_the_package_can_be_installed():
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    (package,) = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert (PACKAGE / package / "__init__.py").exists()
    assert project["project"]["dependencies"] == ["walle"]
