"""A policy is made from plain values, without the algorithm that learned it."""

import json
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest

import walle
from tests.policy.conftest import OFF_POLICY, RUNS, SMALL_NET, TINY
from walle.agent import checkpoint
from walle.envs.observations import space_from, space_values

MOST_MODULES = 25
HEAVY = ("hydra", "matplotlib", "mujoco", "omegaconf", "pandas", "scipy")
ACT = """
import json, os, sys
import numpy as np
import torch
import walle

for run in sys.argv[1:]:
    if os.fork():  # each run in a process of its own, which has loaded torch alone
        assert os.wait()[1] == 0
        continue
    policy = walle.load(run, "last")
    obs = np.zeros(policy.obs_dim, policy.obs_layout.dtype)
    for deterministic in (True, False):
        policy.act(obs, policy.initial_state(), deterministic)
    print(json.dumps([name for name in sys.modules]), flush=True)
    break
"""


@pytest.mark.slow
def test_acting_imports_little(trained):
    runs = [str(trained(each)) for each in ("ppo", "sac", "td3", "dqn", "memory", "state_scale")]
    ran = subprocess.run(
        [sys.executable, "-c", ACT, *runs], capture_output=True, text=True, check=True
    )
    lines = ran.stdout.splitlines()
    assert len(lines) == len(runs)
    for line in lines:
        modules = json.loads(line)
        walles = [module for module in modules if module.partition(".")[0] == "walle"]
        assert len(walles) <= MOST_MODULES, walles
        rooms = {module.split(".")[1] for module in walles if "." in module}
        assert not rooms & {"algos", "config", "learning", "analysis"}
        assert not {module.partition(".")[0] for module in modules} & set(HEAVY)


TRAIN = """
import sys
import walle

walle.train(walle.compose(sys.argv[2:]), sys.argv[1])
walle.evaluate(sys.argv[1], 3)
print(*{name.partition(".")[0] for name in sys.modules})
"""


@pytest.mark.slow
def test_training_and_evaluating_import_no_library_of_figures(tmp_path):
    overrides = [*TINY, *SMALL_NET, *RUNS["ppo"]]
    ran = subprocess.run(
        [sys.executable, "-c", TRAIN, str(tmp_path), *overrides],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = ran.stdout.split()
    assert "torch" in loaded
    assert not {"matplotlib", "pandas", "scipy"} & set(loaded)


@pytest.mark.parametrize("name", RUNS)
def test_a_checkpoint_without_the_plain_values_gives_the_same_policy(trained, tmp_path, name):
    """As versions up to 0.2.0 wrote them."""
    state = checkpoint.load(trained(name) / "checkpoints" / "last.pt")
    assert state.pop("policy")["kind"] == {
        **dict.fromkeys(RUNS, "stochastic"),
        **dict.fromkeys(OFF_POLICY, "deterministic"),
        **dict.fromkeys(("sac", "xqc", "own_net"), "squashed"),
        **dict.fromkeys(("dqn", "pqn"), "epsilon_greedy"),
    }.get(name)
    checkpoint.save(tmp_path / "c" / "old.pt", state)
    new, old = (
        walle.load(path, which, trust=True)
        for path, which in ((trained(name), "last"), (tmp_path / "c" / "old.pt", None))
    )
    assert (old.spec, old.obs_clip) == (new.spec, new.obs_clip)
    assert old.spaces.action == new.spaces.action
    assert old.spaces.observation.shape == new.spaces.observation.shape
    obs = np.random.default_rng(0).normal(size=(6, new.obs_dim)).astype(np.float32)
    states = new.initial_state(6)
    for deterministic in (True, False):
        np.testing.assert_array_equal(
            new.act(obs, states, deterministic)[0], old.act(obs, states, deterministic)[0]
        )


def test_the_environment_is_needed_only_to_make_one(trained, tmp_path):
    state = checkpoint.load(trained("ppo") / "checkpoints" / "last.pt")
    state["config"]["env"]["id"] = "nowhere:Lost-v0"
    checkpoint.save(tmp_path / "c" / "lost.pt", state)
    lost, obs = walle.load(tmp_path / "c" / "lost.pt"), np.zeros(3)
    assert lost.act(obs) == walle.load(trained("ppo"), "last").act(obs)
    with pytest.raises(walle.ConfigError, match="nowhere"):
        lost.env()


BOX = gym.spaces.Box(np.float32([-1, 0]), np.float32([np.inf, 2]))
PICTURE = gym.spaces.Box(0, 255, (40, 40, 3), np.uint8)


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        PICTURE,
        gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
        gym.spaces.Discrete(4, start=-1),
        gym.spaces.MultiDiscrete([3, 2], start=[1, 0]),
        gym.spaces.MultiBinary(5),
        gym.spaces.Dict([("b", PICTURE), ("a", gym.spaces.Tuple([BOX, gym.spaces.Discrete(2)]))]),
    ],
)
def test_a_space_survives_a_checkpoint(tmp_path, space):
    checkpoint.save(tmp_path / "space.pt", {"space": space_values(space)})
    loaded = space_from(checkpoint.load(tmp_path / "space.pt")["space"])
    assert loaded == space
    assert loaded.dtype == space.dtype
    if isinstance(space, gym.spaces.Dict):
        assert list(loaded.spaces) == list(space.spaces)


def test_a_space_of_another_kind_is_not_stored():
    with pytest.raises(TypeError, match="cannot be stored"):
        space_values(gym.spaces.Text(3))
