"""What the MuJoCo lanes promise beyond equality with Gymnasium: streams, repetition, bad input."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from walle.envs import EnvSpec, make_lanes
from walle.envs.gymnasium_lanes import GymnasiumLanes
from walle.envs.mujoco import physics
from walle.envs.mujoco.lanes import MujocoLanes
from walle.envs.mujoco.registry import TASKS, make_mujoco_lanes, why_not
from walle.envs.mujoco.tasks import HalfCheetah, Hopper
from walle.errors import ConfigError


def actions(lanes, steps, seed=0):
    space = lanes.action_space
    shape = (steps, len(lanes), *space.shape)
    return np.random.default_rng(seed).uniform(space.low, space.high, shape).astype(np.float32)


def assert_same_steps(ours, theirs, steps=120):
    ends = 0
    for action in actions(ours, steps):
        a, b = ours.step(action), theirs.step(action)
        np.testing.assert_array_equal(a.terminated, b.terminated)
        np.testing.assert_array_equal(a.truncated, b.truncated)
        np.testing.assert_allclose(a.reward, b.reward, rtol=0, atol=1e-10)
        np.testing.assert_allclose(a.obs, b.obs, rtol=0, atol=1e-10)
        ended = a.terminated | a.truncated
        ends += ended.sum()
        if ended.any():
            np.testing.assert_allclose(a.final_obs[ended], b.final_obs[ended], rtol=0, atol=1e-10)
    return ends


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Ant-v5"])
def test_repeated_actions_stop_where_the_episode_does(env_id):
    spec = EnvSpec(env_id, frame_skip=3, episode_limit=40)
    ours, theirs = make_mujoco_lanes(spec, range(4), 7), GymnasiumLanes(spec, range(4), 7)
    np.testing.assert_allclose(ours.reset(), theirs.reset(), rtol=0, atol=1e-10)
    assert assert_same_steps(ours, theirs) > 8


def test_a_second_reset_goes_on_with_the_streams():
    spec = EnvSpec("InvertedPendulum-v5")
    ours, theirs = make_mujoco_lanes(spec, range(3), 7), GymnasiumLanes(spec, range(3), 7)
    for _ in range(2):
        np.testing.assert_allclose(ours.reset(), theirs.reset(), rtol=0, atol=1e-10)
        assert_same_steps(ours, theirs, steps=30)


@pytest.mark.parametrize("some", [[6], [4, 5, 6, 7]])
@pytest.mark.parametrize("env_id", [f"{task.__name__}-v5" for task in TASKS.values()])
def test_a_lane_does_not_depend_on_its_neighbours(env_id, some):
    together = make_mujoco_lanes(EnvSpec(env_id), range(11), 3)
    apart = make_mujoco_lanes(EnvSpec(env_id), some, 3)
    np.testing.assert_array_equal(together.reset()[some], apart.reset())
    for action in actions(together, 60):
        a, b = together.step(action), apart.step(action[some])
        np.testing.assert_array_equal(a.obs[some], b.obs)
        np.testing.assert_array_equal(a.reward[some], b.reward)
        np.testing.assert_array_equal(a.terminated[some], b.terminated)


def test_training_and_evaluation_begin_differently():
    first, second = (
        make_mujoco_lanes(EnvSpec("Hopper-v5"), [0], 0, role).reset()
        for role in ("train", "evaluate")
    )
    assert not np.array_equal(first, second)


@pytest.mark.skipif(
    not physics.batch_available(), reason="this MuJoCo has no batch engine to compare"
)
def test_both_engines_give_the_same_bits():
    model = Hopper().model
    fields = ("qpos", "qvel", "xpos", "qfrc_constraint", "cinert")
    engines = [engine(model, 3, fields) for engine in (physics.BatchPhysics, physics.LoopPhysics)]
    random = np.random.default_rng(0)
    for round_ in range(6):
        lanes = np.array([0, 1, 2] if round_ == 0 else [0, 2])
        qpos = model.qpos0 + random.uniform(-0.01, 0.01, (len(lanes), model.nq))
        qvel = random.uniform(-1, 1, (len(lanes), model.nv))
        for engine in engines:
            engine.reset(lanes, qpos, qvel)
        for step in range(30):
            action = random.uniform(-1, 1, (3, model.nu))
            chosen = np.array([1, 2]) if step == 7 else None
            for engine in engines:
                engine.step(action, 4, chosen)
            for name in fields:
                batch, loop = (getattr(engine.fields, name) for engine in engines)
                np.testing.assert_array_equal(batch, loop, err_msg=name)


def test_contact_forces_choose_the_engine_that_computes_them():
    model = Hopper().model
    assert isinstance(physics.make_physics(model, 1, ("qpos", "cfrc_ext")), physics.LoopPhysics)


def test_the_fastest_backend_with_equal_results_is_chosen():
    def backend(spec):
        lanes = make_lanes(EnvSpec(**{"action": "raw", **spec}), [0], 0)
        return type(lanes)

    assert backend({"id": "HalfCheetah-v5"}) is MujocoLanes
    assert backend({"id": "HalfCheetah-v5", "backend": "gymnasium"}) is GymnasiumLanes
    assert backend({"id": "HalfCheetah-v4"}) is GymnasiumLanes
    assert backend({"id": "CartPole-v1"}) is GymnasiumLanes
    drawing = {"id": "HalfCheetah-v5", "kwargs": {"width": 64}}
    assert backend(drawing) is GymnasiumLanes


def test_an_id_registered_anew_keeps_its_arguments_and_its_limit():
    entry_point = "gymnasium.envs.mujoco.hopper_v5:HopperEnv"
    kwargs = {"healthy_reward": 5.0}
    gym.register("ShortHop-v0", entry_point=entry_point, max_episode_steps=7, kwargs=kwargs)
    try:
        ours = make_mujoco_lanes(EnvSpec("ShortHop-v0"), range(2), 0)
        theirs = GymnasiumLanes(EnvSpec("ShortHop-v0"), range(2), 0)
        assert ours.episode_limit == 7
        ours.reset()
        theirs.reset()
        assert_same_steps(ours, theirs, steps=40)
    finally:
        del gym.registry["ShortHop-v0"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"forward_rewardweight": 2}, "did you mean 'forward_reward_weight'"),
        ({"xml_file": "./nowhere.xml"}, "there is no file at .*nowhere.xml"),
        ({"xml_file": "half_cheeta.xml"}, "did you mean 'half_cheetah.xml'.*begins with '/'"),
        ({"frame_skip": 0}, "frame_skip=0"),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        make_mujoco_lanes(EnvSpec("HalfCheetah-v5", kwargs), [0], 0)


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("<mujoco><nonsense/></mujoco>", "does not load.*nonsense"),
        ("<mujoco/>", "has no actuators"),
    ],
)
def test_bad_models_are_named(tmp_path, xml, message):
    path = tmp_path / "model.xml"
    path.write_text(xml)
    with pytest.raises(ConfigError, match=message):
        make_mujoco_lanes(EnvSpec("HalfCheetah-v5", {"xml_file": str(path)}), [0], 0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"id": "CartPole-v1"}, "neither a walle Robot nor one of Ant-v5, HalfCheetah-v5"),
        ({"id": "Hopper-v5", "kwargs": {"render_mode": "human"}}, "do not draw.*render_mode"),
        ({"id": "Hoper-v5"}, "Hoper"),
        ({"id": "no.such.module:X-v0"}, "there is no module no in this directory"),
    ],
)
def test_what_the_backend_cannot_run_is_refused_with_the_reason(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_mujoco_lanes(EnvSpec(**spec), [0], 0)


def test_wrapped_registrations_are_left_to_gymnasium():
    wrapper = gym.wrappers.TransformReward.wrapper_spec(func=abs)
    entry_point = "gymnasium.envs.mujoco.hopper_v5:HopperEnv"
    gym.register("Wrapped-v0", entry_point=entry_point, additional_wrappers=(wrapper,))
    try:
        assert "wrappers" in why_not(EnvSpec("Wrapped-v0"))
    finally:
        del gym.registry["Wrapped-v0"]


def test_actions_of_another_shape_are_refused():
    lanes = make_mujoco_lanes(EnvSpec("HalfCheetah-v5"), range(3), 0)
    lanes.reset()
    with pytest.raises(ValueError, match=r"\(3, 5\), but 3 lanes of 6 actuators need \(3, 6\)"):
        lanes.step(np.zeros((3, 5)))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("qposs", "did you mean 'qpos'"),
        ("efc_force", "changes its size with the contacts"),
        ("sensordata", "no entries"),
        ("qfrc_inverse", "not computed"),
    ],
)
def test_fields_that_cannot_be_read_are_refused(field, message):
    with pytest.raises(ConfigError, match=message):
        physics.make_physics(HalfCheetah().model, 1, ("qpos", field))


def test_half_cheetah_compiles_in_silence(tmp_path):
    code = (
        "from walle.envs import EnvSpec, make_lanes\n"
        "for backend in ('mujoco', 'gymnasium'):\n"
        "    make_lanes(EnvSpec('HalfCheetah-v5', backend=backend), range(2), 0).reset()\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not any(tmp_path.iterdir())
