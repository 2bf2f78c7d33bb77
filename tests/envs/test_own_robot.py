"""A user's own robot: equal to the same robot in Gymnasium, and helpful where it is wrong."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.scooter import SCOOTER
from walle.envs import EnvSpec, make_lanes
from walle.envs.gymnasium_lanes import GymnasiumLanes
from walle.envs.mujoco.lanes import MujocoLanes
from walle.envs.mujoco.registry import make_mujoco_lanes
from walle.envs.mujoco.robot import RobotTask, indices
from walle.errors import ConfigError, RolloutError

ROOT = Path(__file__).parents[2]


def lanes_of(lanes=3, **changes):
    task = RobotTask(dataclasses.replace(SCOOTER, **changes))
    return MujocoLanes(task, range(lanes), numbers=range(10, 10 + lanes))


def push(lanes):
    return lanes.step(np.zeros((len(lanes), 1), dtype=np.float32))


def test_the_example_equals_its_gymnasium_twin():
    robot = EnvSpec("examples.scooter:SCOOTER", episode_limit=30)
    twin = EnvSpec("examples.scooter_gymnasium:Scooter-v0", episode_limit=30)
    ours, theirs = make_mujoco_lanes(robot, range(4), 5), GymnasiumLanes(twin, range(4), 5)
    assert ours.action_space == theirs.action_space
    assert ours.observation_space == theirs.observation_space
    np.testing.assert_allclose(ours.reset(), theirs.reset(), rtol=0, atol=1e-10)
    random = np.random.default_rng(0)
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(500):
        action = random.uniform(-0.3, 0.3, (4, 1)).astype(np.float32)
        a, b = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(a.terminated, b.terminated)
        np.testing.assert_array_equal(a.truncated, b.truncated)
        np.testing.assert_allclose(a.obs, b.obs, rtol=0, atol=1e-10)
        np.testing.assert_allclose(a.reward, b.reward, rtol=0, atol=1e-10)
        ends["terminated"] += a.terminated.sum()
        ends["truncated"] += a.truncated.sum()
    assert min(ends.values()) > 5


def test_the_example_runs():
    command = [sys.executable, "-W", "error", "-m", "examples.scooter"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("32000 steps")


def test_arguments_change_the_robot():
    spec = EnvSpec("examples.scooter:SCOOTER", {"episode_limit": 9, "terminated": None})
    lanes = make_lanes(spec, [0], 0)
    assert lanes.episode_limit == 9
    with pytest.raises(ConfigError, match="did you mean 'frame_skip'"):
        make_lanes(EnvSpec("examples.scooter:SCOOTER", {"frameskip": 9}), [0], 0)


def test_without_begin_episodes_start_near_the_models_own_state():
    task = RobotTask(dataclasses.replace(SCOOTER, begin=None, reset_noise_scale=0.01))
    qpos, qvel = task.begin(np.random.default_rng(0))
    assert 0 < np.abs(qpos - task.model.qpos0).max() < 0.01
    assert 0 < np.abs(qvel).max() < 0.01


def test_actuators_without_limits_have_infinite_bounds(tmp_path):
    xml = SCOOTER.xml_file.read_text().replace('ctrlrange="-1 1" ctrllimited="true"', "")
    (tmp_path / "free.xml").write_text(xml)
    space = lanes_of(xml_file=tmp_path / "free.xml").action_space
    assert space.low == -np.inf
    assert space.high == np.inf


def test_an_observation_of_changing_shape_names_step_and_lanes():
    shapes = iter([(1, 4), (3, 4), (3, 4), (3, 5)])
    lanes = lanes_of(observe=lambda now: np.zeros(next(shapes)))
    lanes.reset()
    push(lanes)
    message = r"observe.*\(3, 5\) where \(3, 4\) is needed.*step 2 of lanes 10 to 12"
    with pytest.raises(RolloutError, match=message):
        push(lanes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": lambda before, action, now: 1.0}, r"reward.*\(\) where \(3,\) is needed"),
        ({"terminated": lambda now: np.zeros((3, 1), bool)}, r"terminated.*\(3, 1\)"),
        ({"terminated": lambda now: np.zeros(3)}, "terminated.* returned float64, not booleans"),
    ],
)
def test_wrong_results_name_the_function_and_the_step(changes, message):
    lanes = lanes_of(**changes)
    lanes.reset()
    with pytest.raises(RolloutError, match=message + ".*step 1"):
        push(lanes)


@pytest.mark.parametrize("name", ["reward", "observe"])
def test_complex_numbers_are_refused_with_lane_and_step(name):
    def function(*arguments):
        values = np.zeros((3, 4) if name == "observe" else 3, complex)
        values[2] = 1j * lanes_have_begun
        return values if lanes_have_begun else np.zeros((len(arguments[0].qpos), 4))

    lanes_have_begun = False
    lanes = lanes_of(**{name: function})
    lanes.reset()
    lanes_have_begun = True
    message = rf"{name} returned complex numbers: return real ones.*\(step 1, lane 12\)"
    with pytest.raises(RolloutError, match=message):
        push(lanes)


def test_complex_numbers_are_refused_at_once_where_nothing_has_begun():
    with pytest.raises(RolloutError, match="observe returned complex numbers"):
        lanes_of(observe=lambda now: now.qpos * 1j)
    with pytest.raises(RolloutError, match="begin's qvel returned complex numbers"):
        lanes_of(begin=lambda random, qpos, qvel: (qpos, qvel * 1j))


def test_observations_without_lanes_are_refused_at_once():
    with pytest.raises(ConfigError, match=r"observe\(\) returned shape \(4,\) for one lane"):
        lanes_of(observe=lambda now: now.qpos[0])


def test_fields_that_were_not_asked_for_say_how_to_ask():
    with pytest.raises(AttributeError, match=r"'xpos' is not among.*qpos, qvel.*fields"):
        lanes_of(observe=lambda now: now.xpos[:, 0])
    lanes = lanes_of(fields=("qpos", "qvel", "xpos"), observe=lambda now: now.xpos[:, 1])
    assert lanes.reset().shape == (3, 3)


def test_the_simulation_cannot_be_changed_by_accident():
    def observe(now):
        now.qpos[:, 0] = 0
        return now.qpos

    with pytest.raises(ValueError, match="read-only"):
        lanes_of(observe=observe)


def test_a_reward_may_change_its_action_in_place():
    def reward(before, action, now):
        action += 1
        return action[:, 0]

    lanes, action = lanes_of(reward=reward), np.zeros((3, 1), np.float32)
    lanes.reset()
    assert lanes.step(action).reward.tolist() == [1, 1, 1]
    assert not action.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"remembers": ("xpos",)}, "needs xpos in fields"),
        ({"reset_noise_scale": 0.1}, "no effect when `begin` is given"),
    ],
)
def test_contradictory_robots_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(SCOOTER, **changes)


def test_a_wrong_initial_state_is_refused():
    with pytest.raises(RolloutError, match=r"begin's qpos has shape \(2,\) where \(4,\)"):
        lanes_of(begin=lambda random, qpos, qvel: (qpos[:2], qvel))


def test_an_unstable_lane_warns_and_goes_on():
    def begin(random, qpos, qvel):
        return qpos, qvel + (1e12 if random.random() < 0.5 else 0)

    lanes = lanes_of(8, begin=begin)
    with pytest.warns(RuntimeWarning, match="MuJoCo: .*unstable") as caught:
        obs = lanes.reset() + push(lanes).obs
    assert np.isfinite(obs).all()
    draws = [np.random.default_rng(seed).random() < 0.5 for seed in range(8)]
    names = ", ".join(str(10 + lane) for lane in np.flatnonzero(draws))
    assert re.match(rf"step \d, lane {names}: MuJoCo", str(caught[0].message))


@pytest.mark.parametrize("backend", ["mujoco", "gymnasium"])
def test_a_warning_made_an_error_does_not_kill_the_process(backend):
    code = (
        "from walle.envs import EnvSpec, make_lanes\n"
        "import numpy as np\n"
        f"spec = EnvSpec('Hopper-v5', {{'reset_noise_scale': 1e12}}, backend={backend!r})\n"
        "lanes = make_lanes(spec, [3], 0)\n"
        "try:\n"
        "    lanes.reset()\n"
        "    lanes.step(np.zeros((1, 3)))\n"
        "except RuntimeWarning as warning:\n"
        "    print(warning)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "lane 3: MuJoCo: Nan, Inf or huge value" in done.stdout


PARTS = """<mujoco><worldbody>
  <body name="ball"><freejoint name="free"/><geom size="1"/>
    <site name="top"/><site name="tip"/></body>
  <body name="arm"><joint name="elbow"/><geom name="fist" size="1"/></body>
</worldbody>
<actuator><motor name="pull" joint="elbow"/></actuator>
<sensor><jointpos joint="elbow"/><framepos name="place" objtype="site" objname="tip"/></sensor>
</mujoco>
"""


def test_parts_of_a_model_by_their_names(tmp_path):
    (tmp_path / "arm.xml").write_text(PARTS)
    names = ("site:tip", "body:arm", "geom:fist", "actuator:pull", "sensor:place", "qpos:elbow")
    found = indices(tmp_path / "arm.xml", *names, "qvel:elbow", "qpos:free", "qvel:free")
    assert found[:4] == [1, 2, 1, 0]
    assert found[4:7] == [slice(1, 4), slice(7, 8), slice(6, 7)]
    assert found[7:] == [slice(0, 7), slice(0, 6)]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("site:tipp", "has no such name; did you mean 'tip'?"),
        ("qvel:elbwo", "has no such name; did you mean 'elbow'?"),
        ("sensor:", "has no such name; choose one of: place"),
        ("sites:tip", "'sites:tip' is not KIND:NAME; did you mean 'site'?"),
        ("tip", "'tip' is not KIND:NAME; "),
    ],
)
def test_a_part_that_a_model_lacks_is_one_line(part, said, tmp_path):
    (tmp_path / "arm.xml").write_text(PARTS)
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        indices(tmp_path / "arm.xml", part)
    assert "\n" not in str(refused.value)
