import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco import mujoco_env
from gymnasium.spaces import Box, Dict, MultiBinary

from tests.toy_spaces import Toy
from walle.envs import EnvSpec, make_lanes
from walle.envs.gymnasium_lanes import GymnasiumLanes
from walle.errors import ConfigError, RolloutError
from walle.streams import env_seed

COUNTER = "tests.toy:Counter-v0"


def test_lanes_agree_with_the_environment_itself():
    lanes = GymnasiumLanes(EnvSpec("Hopper-v5"), [3, 5], seed=1)
    obs = lanes.reset().copy()
    alone = gym.make("Hopper-v5")
    expected, _ = alone.reset(seed=env_seed(1, 5))
    np.testing.assert_array_equal(obs[1], expected)
    rng = np.random.default_rng(0)
    for _ in range(200):
        action = rng.uniform(-1, 1, (2, 3)).astype(np.float32)
        step = lanes.step(action)
        expected, reward, terminated, truncated, _ = alone.step(action[1])
        assert (reward, terminated, truncated) == (
            step.reward[1],
            step.terminated[1],
            step.truncated[1],
        )
        if terminated or truncated:
            np.testing.assert_array_equal(step.final_obs[1], expected)
            expected, _ = alone.reset()
        np.testing.assert_array_equal(step.obs[1], expected)
    lanes.close()


def test_frame_skip_repeats_the_action_and_adds_rewards():
    lanes = make_lanes(EnvSpec(COUNTER, {"limit": 5}, frame_skip=2, action="raw"), [0], 0)
    lanes.reset()
    action = np.array([[1.5]], np.float32)
    steps = [(s.obs[0, 0], s.reward[0], s.terminated[0]) for s in map(lanes.step, [action] * 2)]
    assert steps == [(2, 3.0, False), (4, 3.0, False)]
    last = lanes.step(action)  # the episode ends within the repetition
    assert (last.reward[0], last.terminated[0], last.final_obs[0, 0]) == (1.5, True, 5)


def test_episode_limit_truncates():
    lanes = make_lanes(EnvSpec(COUNTER, {"limit": 99}, episode_limit=4), [0], 0)
    lanes.reset()
    ends = [lanes.step(np.zeros((1, 1), np.float32)).truncated[0] for _ in range(8)]
    assert ends == [False, False, False, True] * 2


@pytest.mark.parametrize(
    ("kind", "drawn", "applied"),
    [("raw", 5.0, 5.0), ("clip", 5.0, 4.0), ("clip", 0.5, 0.5), ("rescale", 0.5, 2.5),
     ("rescale", -3.0, -2.0)],
)  # fmt: skip
def test_actions(kind, drawn, applied):
    lanes = make_lanes(EnvSpec(COUNTER, action=kind), [0], 0)
    lanes.reset()
    assert lanes.step(np.array([[drawn]], np.float32)).reward[0] == applied


def test_time_feature_counts_the_share_of_the_episode():
    lanes = make_lanes(EnvSpec(COUNTER, {"limit": 99}, episode_limit=4, time_feature=True), [0], 0)
    assert lanes.observation_space.shape == (3,)
    assert lanes.reset()[0, 2] == 0
    zero = np.zeros((1, 1), np.float32)
    steps = [lanes.step(zero) for _ in range(4)]
    assert steps[2].obs[0, 2] == 0.75
    assert steps[3].final_obs[0, 2] == 1.0
    assert steps[3].obs[0, 2] == 0.0


def test_a_module_is_imported_by_its_id():
    assert make_lanes(EnvSpec("walle.envs.slow:Slow-v0", {"step_ms": 0}), [0], 0).episode_limit


def test_structured_observations_are_flattened():
    lanes = make_lanes(EnvSpec("Blackjack-v1"), [0], 0)
    assert len(lanes.observation_space.shape) == 1
    assert lanes.reset().shape == (1, *lanes.observation_space.shape)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (EnvSpec("HalfCheeta-v5"), "HalfCheetah"),
        (EnvSpec("no.such.module:X-v0"), "there is no module no in this directory"),
        (EnvSpec("HalfCheetah-v5", {"nonsense": 1}), "nonsense"),
        (EnvSpec("tests.toy:Tupled-v0"), r"actions Tuple\("),
    ],
)
def test_what_cannot_be_built_says_why(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_lanes(spec, [0], 0)


class Tour(gym.Env):
    """Keeps and changes the argument that it gets, as environments with a `config` do."""

    opened = 0

    def __init__(self, config, breaks_at=99):
        self.goals = config.pop("goals")
        Tour.opened += 1
        if Tour.opened == breaks_at:
            raise ValueError("no room for another world")
        self.observation_space = Box(0, 9, (5,), np.float32)
        self.action_space = gym.spaces.MultiDiscrete([2, 3], dtype=np.int32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.np_random.shuffle(self.goals)
        return np.array(self.goals, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.array(self.goals, np.float32), 0.0, False, False, {}

    def close(self):
        Tour.opened -= 1


TOUR = f"{__name__}:Tour"


def tour(**more):
    Tour.opened = 0
    return EnvSpec(TOUR, {"config": {"goals": [1, 2, 3, 4, 5]}, **more})


def test_every_environment_has_its_own_arguments():
    alone, both = (make_lanes(tour(), numbers, 0).reset() for numbers in ([1], [0, 1]))
    assert alone[0].tolist() == both[1].tolist()


def test_actions_have_the_dtype_of_their_space():
    lanes = make_lanes(tour(), [0], 0)
    lanes.reset()
    lanes.step(np.array([[1, 2]]))
    assert lanes.action_space.dtype == np.int32


def test_refused_lanes_are_closed():
    with pytest.raises(ValueError, match="no room"):
        make_lanes(tour(breaks_at=3), [0, 1, 2], 0)
    assert Tour.opened == 1  # the third is open only in part
    with pytest.raises(ConfigError, match=r"actions Tuple"):
        make_lanes(EnvSpec("tests.toy:Tupled-v0"), [0], 0)


def test_actions_that_cannot_change_are_refused(tmp_path):
    """An actuator without a ctrlrange has the bounds [0, 0] in Gymnasium's MuJoCo tasks."""
    folder = Path(mujoco_env.__file__).parent / "assets"
    text = (folder / "inverted_pendulum.xml").read_text()
    (tmp_path / "p.xml").write_text(re.sub(r' ctrl(limited|range)="[^"]*"', "", text))
    spec = EnvSpec("InvertedPendulum-v5", {"xml_file": str(tmp_path / "p.xml")})
    with pytest.raises(ConfigError, match=r"actions that cannot change, Box\(0.0, 0.0.*ctrlrange"):
        make_lanes(spec, [0], 0)


def test_no_mujoco_noise(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_lanes(EnvSpec("HalfCheetah-v5"), [0, 1], 0).close()
    assert capfd.readouterr().err == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("old reset", r"reset\(\) must return \(observation, info\)"),
        ("reset raises", "stuck"),
        ("reset is wider", r"shape \(3,\) in lane 4 .* observation_space has shape \(2,\)"),
        ("scalar observation", r"shape \(\) in lane 4 .* observation_space has shape \(2,\)"),
        ("array reward", r"a reward of array\(\[1\., 1\.\]\): return a real number"),
        ("no reward", "a reward of None: return a real number"),
        ("text reward", "a reward of '1.0': return a real number"),
        ("complex reward", r"a reward of .*2j.*: return a real number"),
        ("complex observation", r"a complex observation in lane 4 at step 1: return real numbers"),
        ("complex entry", "a complex observation: return real numbers"),
        ("wrong number", r"returned -1 in an observation, which is not in its Discrete\(5\)"),
        ("wrong dial", r"returned \[0 3\] in an observation, which is not in its MultiDiscrete"),
    ],
)
def test_a_broken_promise_is_told_with_the_lane(how, message):
    lanes = GymnasiumLanes(EnvSpec("tests.toy:Rude-v0", {"how": how}), [4], 0)

    def begin():
        lanes.reset()
        lanes.step(np.zeros(1, np.int64))

    with pytest.raises(Exception, match=message) as caught:
        begin()
    told = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert re.search(r"in lane 4 at step \d", "\n".join(told))


IMAGE, PIXELS = Box(0, 255, (36, 36), np.uint8), np.zeros((36, 36), np.uint8)


@pytest.mark.parametrize("kind", ["alone", "in a dict", "beside an image"])
@pytest.mark.parametrize(
    ("space", "given", "lost"),
    [
        (Box(-9, 9, (2,), np.int64), np.array([1.0, 0.5]), "0.5"),
        (Box(-9, 9, (2,), np.int64), np.array([np.nan, 1]), "nan"),
        (Box(0, 255, (2,), np.uint8), np.array([1, 300]), "300"),
        (MultiBinary(2), [0.0, 0.5], "0.5"),
        (Box(0, 255, (2,), np.uint8), np.array([1.0, 255.0]), None),
    ],
)
def test_numbers_that_an_integer_space_would_cut_off_are_refused(
    monkeypatch, kind, space, given, lost
):
    if kind != "alone":
        space, given = Dict(n=space), {"n": given}
    if kind == "beside an image":
        space, given = Dict(image=IMAGE, **space), {"image": PIXELS, **given}
    monkeypatch.setattr(Toy, "observation_space", space)
    monkeypatch.setattr(Toy, "observe", lambda _: given)
    lanes = make_lanes(EnvSpec("tests.toy_spaces:Toy"), [0], 0)
    if lost is None:
        lanes.reset()
    else:
        with pytest.raises(RolloutError, match=f"observation with {lost}.* observation_space has"):
            lanes.reset()
