"""A policy whose configuration names foreign code: none of it is imported or called unasked."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from omegaconf import OmegaConf

import walle
from tests.policy.conftest import SMALL_NET, TINY, settings
from walle.__main__ import main
from walle.agent import checkpoint
from walle.agent.callbacks import make_callbacks
from walle.config.loading import resumed_config
from walle.envs import EnvSpec
from walle.envs.mujoco.registry import find_maker

# A module that leaves a file where it is imported, and holds one object of every kind.
EVIL = """
import os, pathlib
pathlib.Path({mark!r}).touch()
import gymnasium as gym
import torch
import walle
from walle.algos.on_policy.ppo import PPO

class Env(gym.make("CartPole-v1").unwrapped.__class__):
    pass

class Net(torch.nn.Module):
    features = 4
    def __init__(self, settings, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, 4)
    def forward(self, obs):
        return self.layer(obs)

class Stop(walle.Callback):
    pass
"""
USE = """
import sys
import walle
from walle.policy.export import export
from walle.policy.video import film

for run in sys.argv[1:]:
    policy = walle.load(run, "last")
    policy.act([0.0] * 4)
    export(policy, run + "/policy.pt2")
    for use in (lambda: walle.evaluate(policy, 1), lambda: film([policy])):
        try:
            use()
        except walle.ConfigError as error:
            print(error)
assert not {"evil", "this", "antigravity"} & set(sys.modules)
"""


@pytest.fixture
def foreign(trained, tmp_path):
    """A function that writes a run whose checkpoint names other code, with evil.py beside it."""
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(tmp_path / "imported")))

    def _foreign(run="discrete", to="run", **changes):
        state = checkpoint.load(trained(run) / "checkpoints" / "last.pt")
        for key, value in changes.items():
            *groups, name = key.split("__")
            part = state
            for group in groups:
                part = part[group]
            part[name] = value
        (tmp_path / to / "checkpoints").mkdir(parents=True)
        checkpoint.save(tmp_path / to / "checkpoints" / "last.pt", state)
        return tmp_path / to

    return _foreign


def walle_command(directory, *words):
    return subprocess.run(
        [sys.executable, "-m", "walle", *words], cwd=directory, capture_output=True, text=True
    )


@pytest.mark.slow
def test_an_environment_is_not_imported_and_not_called(foreign, tmp_path):
    mark = str(tmp_path / "imported")
    named = {
        "os:system": {"command": f"touch {mark}"},
        "builtins:exec": {"source": f"open({mark!r}, 'w')"},
        "subprocess:Popen": {"args": ["touch", mark]},
        "this:c": {},  # importing it prints a poem
        "antigravity:geohash": {},  # importing it opens a browser
        "evil:Env": {},
        "evil:Id-v0": {},
    }
    for number, (name, kwargs) in enumerate(named.items()):
        foreign(to=f"run{number}", config__env__id=name, config__env__kwargs=kwargs)
    runs = [f"run{number}" for number in range(len(named))]
    command = [sys.executable, "-c", USE, *runs]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    refusals = ran.stdout.splitlines()
    assert len(refusals) == 2 * len(named)
    for name, evaluated, filmed in zip(named, refusals[::2], refusals[1::2], strict=True):
        assert evaluated.startswith(f"env.id={name!r}")
        assert filmed.startswith(evaluated)
    ran = walle_command(tmp_path, "eval", *runs, "episodes=1", "processes=1")
    assert ran.returncode == 1
    assert [name for name in named if f": env.id={name!r}" in ran.stderr] == list(named)
    assert "Traceback" not in ran.stderr
    refused = walle_command(tmp_path, "eval", "run5", "episodes=1", "video=v.gif")
    assert (refused.returncode, "use trust=True" in refused.stderr) == (2, True)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("name", ["os:system", "builtins:exec", "subprocess:Popen", "os:environ"])
def test_what_makes_no_environment_is_never_called(foreign, name):
    with pytest.raises(walle.ConfigError, match="neither an environment, nor a Robot"):
        walle.load(foreign(config__env__id=name), trust=True).env()
    with pytest.raises(walle.ConfigError, match="neither an environment, nor a Robot"):
        find_maker(name)


@pytest.mark.slow
def test_with_trust_a_module_beside_the_run_is_imported_and_named(foreign, tmp_path):
    foreign(config__env__id="evil:Env")
    ran = walle_command(tmp_path, "eval", "run", "episodes=1", "which=last", "trust=true")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "imported").exists()
    assert "env.id='evil:Env'" in ran.stderr
    assert f"imports evil ({tmp_path})" in ran.stderr


def test_wrappers_are_foreign_too(foreign, tmp_path, monkeypatch):
    run = foreign(config__env__wrappers=["TimeAwareObservation", {"name": "evil:Env"}])
    monkeypatch.syspath_prepend(tmp_path)
    refusal = rf"^env.wrappers='evil:Env' of {run}.*evil \({tmp_path}\) would run code"
    with pytest.raises(walle.ConfigError, match=f"{refusal}.*use trust=True"):
        walle.evaluate(walle.load(run), 1)
    config = checkpoint.load(run / "checkpoints" / "last.pt")["config"]
    composed = OmegaConf.create({**config, "resume": str(run)})
    with pytest.raises(walle.ConfigError, match=rf"{refusal}.*type env.wrappers again beside res"):
        resumed_config(config, composed, [f"resume={run}"])
    (tmp_path / "ale_py.py").write_text("")  # beside the run, in place of the package
    run = foreign(to="other", config__env__id="ALE/Pong-v5")
    with pytest.raises(walle.ConfigError, match=r"^env.id='ale_py:ALE/Pong-v5' of .*trust=True"):
        walle.evaluate(walle.load(run), 1)
    assert not {"evil", "ale_py"} & set(sys.modules)


NET = {"policy__net__own": {"path": "evil:Net", "settings": {}}}
OLD = {"policy": None}  # as versions up to 0.2.0 wrote it
LACKS = {
    "a net": (NET, "net.name='evil:Net'"),
    "a net of torch": (
        {"policy__net__own": {"path": "torch.nn:Flatten", "settings": {}}},
        "torch.nn",
    ),
    "an algorithm": ({**OLD, "config__algo__name": "evil:PPO"}, "algo.name='evil:PPO'"),
    "an old checkpoint": (OLD, "makes env.id='CartPole-v1'"),
    "spaces": ({"policy__spaces": None, "config__env__id": "evil:Env"}, "makes env.id='evil:Env'"),
}


@pytest.mark.parametrize("case", LACKS)
def test_loading_imports_nothing(foreign, tmp_path, monkeypatch, capsys, case):
    changes, said = LACKS[case]
    run = foreign(**changes)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        walle.ConfigError, match=r"use trust=True \(in a command line trust=true"
    ) as e:
        walle.load(run)
    assert said in str(e.value)
    assert "\n" not in str(e.value)
    assert "evil" not in sys.modules
    assert not (tmp_path / "imported").exists()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["walle", "export", "run", "out.pt2"])
    assert main() == 2
    assert said in capsys.readouterr().err
    assert "evil" not in sys.modules


def test_a_net_is_trusted_when_asked(trained, capsys):
    with pytest.raises(walle.ConfigError, match=r"net.name='tests.algos.test_own_nets:Module' of"):
        walle.load(trained("own_net"))
    policy = walle.load(trained("own_net"), trust=True)
    assert "imports tests.algos.test_own_nets (" in capsys.readouterr().err
    assert len(walle.evaluate(policy, 2).returns) == 2


@pytest.mark.slow
def test_ones_own_environment_needs_no_trust(tmp_path):
    """In the working directory, as the runs in outputs/ below it."""
    mark = str(tmp_path / "imported")
    (tmp_path / "mine.py").write_text(EVIL.format(mark=mark))
    words = ("env=gym", "env.id=mine:Env", "env.episode_limit=20", *TINY, *SMALL_NET)
    ran = walle_command(
        tmp_path, "run", *settings("ppo"), *words, "name=r", "hydra.run.dir=outputs/r"
    )
    assert ran.returncode == 0, ran.stderr
    ran = walle_command(tmp_path, "eval", "outputs/r", "episodes=2")
    assert ran.returncode == 0, ran.stderr
    (tmp_path / "outputs" / "r").rename(tmp_path / "r")  # now the module lies beside the run
    for words in (["eval", "r"], ["run", "resume=r", "total_steps=512"]):
        refused = walle_command(tmp_path, *words)
        assert refused.returncode == 2
        assert "env.id='mine:Env' of r" in refused.stderr
    ran = walle_command(tmp_path, "run", "resume=r", "total_steps=512", "env.id=mine:Env")
    assert ran.returncode == 0, ran.stderr


def plain():
    return gym.make("CartPole-v1")


def annotated() -> gym.Env:
    return gym.make("CartPole-v1")


def quoted() -> "gym.Env[np.ndarray, int]":
    return gym.make("CartPole-v1")


def unknown() -> "Nowhere":  # noqa: F821
    return gym.make("CartPole-v1")


def number() -> int:
    return 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("plain", "annotate the function plain"),
        ("number", "annotate the function number"),
        ("unknown", "name 'Nowhere' is not defined"),
        ("EVIL", "annotate"),
        ("pytest", "annotate"),
    ],
)
def test_a_function_must_promise_an_environment(name, said):
    with pytest.raises(walle.ConfigError, match=said):
        find_maker(f"{__name__}:{name}")
    spec = EnvSpec(f"{__name__}:{name}")
    with pytest.raises(walle.ConfigError, match=said):
        walle.envs.make_lanes(spec, [0], 0)


@pytest.mark.parametrize("name", ["annotated", "quoted"])
def test_a_function_that_promises_one_makes_lanes(name):
    lanes = walle.envs.make_lanes(EnvSpec(f"{__name__}:{name}"), [0, 1], 0)
    assert lanes.reset().shape == (2, 4)
    lanes.close()


class Any:
    """Has every attribute of a callback, a net and an algorithm."""

    def __getattr__(self, name):
        return lambda *_, **__: pytest.fail("called")

    def __call__(self, *_, **__):
        pytest.fail("called")


ANYTHING = Any()


def test_callbacks_nets_and_algorithms_are_of_their_kind():
    path = f"{__name__}:ANYTHING"
    with pytest.raises(walle.ConfigError, match=r"derive it from walle.Callback"):
        make_callbacks([path])
    for key, said in (("net", "name a class"), ("algo", "capabilities must be walle.algos.base")):
        with pytest.raises(walle.ConfigError, match=said):
            walle.compose([f"{key}=own", f"{key}.name={path}"])
