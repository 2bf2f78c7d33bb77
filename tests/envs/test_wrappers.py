"""Wrappers by name, in order and with arguments; the modules of ids."""

import re
import sys
from importlib import metadata
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation, TimeAwareObservation

import walle
from tests.conftest import read
from tests.test_resume import assert_same_run, killed_run, resume
from tests.test_training import learned
from walle.config import compose
from walle.envs import EnvSpec, make_lanes
from walle.envs.probe import probe
from walle.envs.single import make_single
from walle.errors import ConfigError
from walle.policy.export import export
from walle.training import train

ROOT = Path(__file__).resolve().parents[2]
STACKED = ["TimeAwareObservation", {"name": "FrameStackObservation", "stack_size": 3}]


class Scaled(gym.RewardWrapper):
    def __init__(self, env, factor, names=()):
        super().__init__(env)
        self.factor = factor

    def reward(self, reward):
        return self.factor * reward


def shorter(env: gym.Env, steps: int = 5) -> gym.Env:
    return gym.wrappers.TimeLimit(env, steps)


def unannotated(env):
    return env


def broken(env) -> gym.Env:
    raise AssertionError("at least two cameras")


def returning_nothing(env) -> gym.Env:
    return None


@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v5"])
def test_lanes_and_a_single_environment_are_wrapped_in_order(name):
    spec = EnvSpec(name, wrappers=STACKED, action="raw")
    expected = FrameStackObservation(TimeAwareObservation(gym.make(name)), 3)
    lanes, alone = make_lanes(spec, [0], 0), make_single(spec)
    space = expected.observation_space
    assert lanes.observation_space.shape == alone.observation_space.shape == (np.prod(space.shape),)
    obs = [lanes.reset([4])[0].copy(), alone.reset(seed=4)[0], expected.reset(seed=4)[0].ravel()]
    for _ in range(3):
        np.testing.assert_array_equal(obs[0], obs[2])
        np.testing.assert_array_equal(obs[1], obs[2])
        action = expected.action_space.sample()
        obs = [alone.step(action)[0], expected.step(action)[0].ravel()]
        obs.insert(0, lanes.step(np.asarray(action)[None]).obs[0].copy())
    assert obs[2].reshape(space.shape)[-1, -1] == 3  # the clock


def test_wrappers_of_one_s_own_take_arguments():
    own = [{"name": f"{__name__}:Scaled", "factor": 7.0}, f"{__name__}:shorter"]
    lanes = make_lanes(EnvSpec("CartPole-v1", wrappers=own), [0], 0)
    lanes.reset()
    steps = [lanes.step(np.array([i % 2])) for i in range(5)]
    assert (steps[-1].reward[0], bool(steps[-1].truncated[0]), lanes.episode_limit) == (7, True, 5)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("TimeAwareObservatio", r"TimeAwareObservatio is no wrapper of .* mean 'TimeAwareObs"),
        ("NoSuchThing", r"NoSuchThing is no wrapper of .*choose one of: .*module:Name"),
        ({"stack_size": 4}, r"\{'stack_size': 4\} must be a name or a mapping"),
        (3, "3 must be a name or a mapping"),
        (
            {"name": "FrameStackObservation", "stack": 4},
            "no argument .stack.; did you mean",
        ),
        ({"name": "FrameStackObservation"}, "FrameStackObservation: TypeError: .*'stack_size'"),
        ({"name": "FrameStackObservation", "stack_size": 0}, "FrameStackObservation: "),
        ({"name": f"{__name__}:Scaled", "factr": 4}, "Scaled has no argument 'factr'; .*'factor'"),
        (f"{__name__}:Scale", "has no Scale; did you mean 'Scaled'"),
        ("no_such_module:Scaled", "there is no module no_such_module"),
        (f"{__name__}:unannotated", "neither a wrapper, nor .* annotate the function unannotated"),
        ("os:system", "neither a wrapper, nor a function"),
        ("gymnasium.envs.classic_control:CartPoleEnv", "derive CartPoleEnv from gymnasium.Wrapper"),
        (f"{__name__}:broken", "broken: AssertionError: at least two cameras"),
        (f"{__name__}:returning_nothing", "returned None, which is no gymnasium.Env"),
    ],
)
def test_a_wrong_entry_is_refused_in_one_line(entry, said):
    with pytest.raises(ConfigError, match=rf"^env\.wrappers\b.*{said}") as refused:
        make_lanes(EnvSpec("CartPole-v1", wrappers=[entry]), [0], 0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("id", "backend", "said"),
    [
        ("HalfCheetah-v5", "mujoco", "env.wrappers need env.backend=gymnasium"),
        ("examples.scooter:SCOOTER", "auto", "the Robot .*SCOOTER: change its functions"),
    ],
)
def test_simulations_of_many_lanes_refuse_them(id, backend, said):
    with pytest.raises(ConfigError, match=said):
        make_lanes(EnvSpec(id, wrappers=["TimeAwareObservation"], backend=backend), [0], 0)


def test_an_argument_from_a_variable_is_in_no_file(monkeypatch):
    monkeypatch.setenv("TOY_FACTOR", "hush")
    name = f"{__name__}:Scaled"
    entry = f"{{name:'{name}',factor:1,names:['${{oc.env:TOY_FACTOR}}']}}"
    config = compose(["env=cartpole", f"env.wrappers=[{entry}]"])
    assert config.env.wrappers[0]["names"] == ["${oc.env:TOY_FACTOR}"]
    from walle.config.loading import with_variables

    spec = EnvSpec.of(config.env, "mlp", with_variables)
    assert spec.wrappers == [{"name": name, "factor": 1, "names": ["hush"]}]
    assert spec.hidden == {}


SMALL = (
    *("env=cartpole", "algo.epochs=1", "batch_size=64", "sampler.lanes=4", "total_steps=384"),
    *("net.policy_hidden=[8]", "net.critic_hidden=[8]", "eval.every=128", "eval.episodes=2"),
    *("algo.compile=false", "logger.progress=quiet", "checkpoint.every=null"),
    "env.wrappers=[TimeAwareObservation,{name:FrameStackObservation,stack_size:3},"
    f"{{name:'{__name__}:Scaled',factor:2}}]",
)


@pytest.mark.slow
def test_a_run_with_wrappers_is_the_same_for_two_samplers_and_resumed_and_its_policy_sees_them(
    tmp_path,
):
    train(compose([*SMALL, "sampler=serial"]), tmp_path / "whole")
    train(compose([*SMALL, "sampler.n=2"]), tmp_path / "two")
    assert learned(tmp_path / "whole") == learned(tmp_path / "two")
    killed_run([*SMALL, "sampler=serial"], tmp_path / "resumed")
    resume([*SMALL, "sampler=serial"], tmp_path / "resumed")
    assert_same_run(tmp_path / "whole", tmp_path / "resumed", samplers=True)
    policy = walle.load(tmp_path / "whole")
    obs, _ = policy.env().reset(seed=0)
    assert obs.shape == (15,)
    policy.act(obs)
    evaluated = walle.evaluate(policy, 2)
    assert list(evaluated.returns) == [2.0 * steps for steps in evaluated.lengths]
    assert float(read(tmp_path / "whole" / "eval.csv")[-1]["return_mean"]) >= 2 * 8
    export(policy, tmp_path / "policy.pt2")


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("Taxi-v3", "env.id='Taxi-v3': .*; use env.id=Taxi-v4$"),
        ("CartPole-v7", "; use env.id=CartPole-v1$"),
        ("tests.toy:Counter-v8", "; use env.id=tests.toy:Counter-v0$"),
        ("tests.toy.Counter", "A class or function of your own is .*: env.id=tests.toy:Counter$"),
        ("ALE/Pong-v5", "'ale_py:ALE/Pong-v5' needs a package: pip install ale-py"),
        ("dm_control/walker-walk-v0", r"pip install 'shimmy\[dm-control\]'"),
        ("BabyAI-GoToRedBall-v0", "pip install minigrid"),
        ("HandReach-v3", "pip install gymnasium-robotics"),
    ],
)
def test_an_id_that_is_not_registered_names_what_to_type_or_to_install(id, said, monkeypatch):
    for module in ("ale_py", "shimmy", "minigrid", "gymnasium_robotics"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it was not installed
    with pytest.raises(ConfigError, match=said) as refused:
        make_lanes(EnvSpec(id), [0], 0)
    assert "\n" not in str(refused.value)


REGISTER = "import gymnasium\n\n\ndef register():\n    gymnasium.register({id!r}, {entry!r})\n"


def test_the_ids_of_known_packages_are_found(tmp_path, monkeypatch):
    """MinAtar registers nothing when it is imported: its distribution names a function."""
    cart = "gymnasium.envs.classic_control:CartPoleEnv"
    monkeypatch.syspath_prepend(tmp_path)
    for module, name in (("metaworld", "Meta-World/Toy-v0"), ("minatar", "MinAtar/Toy-v1")):
        monkeypatch.delitem(sys.modules, module, raising=False)
        (tmp_path / f"{module}.py").write_text(REGISTER.format(id=name, entry=cart))
    with (tmp_path / "metaworld.py").open("a") as file:
        file.write("\n\nregister()\n")
    (tmp_path / "minatar-9.dist-info").mkdir()
    (tmp_path / "minatar-9.dist-info" / "METADATA").write_text("Name: minatar\nVersion: 9\n")
    (tmp_path / "minatar-9.dist-info" / "entry_points.txt").write_text(
        "[gymnasium.envs]\n__root__ = minatar:register\n"
    )
    for name in ("Meta-World/Toy-v0", "MinAtar/Toy-v1", "minatar:MinAtar/Toy-v1"):
        lanes = make_lanes(EnvSpec(name), [0], 0)
        assert lanes.reset().shape == (1, 4)
        gym.registry.pop(name, None)


def test_a_package_that_fails_beside_the_newest_mujoco_names_the_older_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shimmy", raising=False)
    (tmp_path / "shimmy.py").write_text(
        "import gymnasium\n\n\ndef make(**_):\n    raise AttributeError('cam_orthographic')\n\n\n"
        "gymnasium.register('dm_control/toy-v0', make)\n"
    )
    monkeypatch.setattr(metadata, "version", lambda _: "4.0.0")
    with pytest.raises(ConfigError, match=r"AttributeError: cam_.*MuJoCo 4.0.0: .*'mujoco<4'$"):
        probe(EnvSpec("dm_control/toy-v0"), 0)
    gym.registry.pop("dm_control/toy-v0")


def test_the_wrapper_of_the_page_works_as_it_is_typed_there_and_in_its_file(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "environments.md").read_text()
    blocks = dict(re.findall(r"^```(python|yaml)\n(.*?)^```", page, re.M | re.S))
    (tmp_path / "rewards.py").write_text(blocks["python"])
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "careful.yaml").write_text(blocks["yaml"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    typed = re.search(r"walle run env=cartpole '(env.wrappers=.*)'", page)[1]
    for words in (["env=cartpole", typed], ["env=careful", f"hydra.searchpath=[{tmp_path}/conf]"]):
        lanes = make_lanes(EnvSpec.of(compose(words).env, "mlp"), [0], 0)
        assert lanes.reset().shape == (1, 5)
        assert lanes.step(np.array([0])).reward == [0.5]


def test_a_game_of_atari_is_four_grey_images():
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    spec = EnvSpec.of(compose(["env=atari", "env.id=ALE/Breakout-v5"]).env, "cnn")
    obs, _ = make_single(spec, pack=False).reset(seed=0)
    assert (obs.shape, obs.dtype) == ((4, 84, 84), np.uint8)
    lanes = make_lanes(spec, [0, 1], 0)
    assert lanes.reset().shape == (2, 4 * 84 * 84)
    assert lanes.step(np.array([0, 3])).reward.tolist() == [0, 0]
