"""A single environment gives what a lane gives."""

from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from walle.envs import EnvSpec, make_lanes
from walle.envs.mujoco.registry import TASKS
from walle.envs.single import RobotEnv, make_single
from walle.errors import ConfigError

MUJOCO = sorted(
    entry.id for entry in gym.registry.values() if entry.entry_point in TASKS and "v5" in entry.id
)
SCOOTER = "examples.scooter:SCOOTER"


@pytest.mark.parametrize("name", [*MUJOCO, SCOOTER, "CartPole-v1", "FrozenLake-v1"])
def test_observations_rewards_and_ends_are_a_lane_s(name):
    spec = EnvSpec(name, frame_skip=2, episode_limit=24, time_feature=True, action="raw")
    env, lanes = make_single(spec), make_lanes(spec, [0], 0)
    with closing(env), closing(lanes):
        env.action_space.seed(0)
        (obs, _), expected = env.reset(seed=9), lanes.reset([9])
        assert env.observation_space.shape == lanes.observation_space.shape
        ends = 0
        for _ in range(40):
            np.testing.assert_array_equal(obs, expected[0])
            action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            step = lanes.step(np.asarray(action)[None])
            assert reward == pytest.approx(step.reward[0], rel=1e-12)  # sums in another order
            assert (terminated, truncated) == (step.terminated[0], step.truncated[0])
            expected = step.obs
            if step.final_obs is not None:
                ends += 1
                np.testing.assert_array_equal(obs, step.final_obs[0])
                obs, _ = env.reset()
        assert ends


def test_there_are_eleven_mujoco_tasks():
    assert len(MUJOCO) == len(TASKS) == 11


def test_a_robot_is_a_gymnasium_environment():
    env = make_single(EnvSpec(SCOOTER), render_mode="rgb_array", width=64, height=48)
    assert isinstance(env, RobotEnv)
    check_env(env, skip_render_check=True)
    first = [env.reset(seed=1)[0].tobytes() for _ in range(2)]
    assert first[0] == first[1] != env.reset()[0].tobytes()
    unseeded = [make_single(EnvSpec(SCOOTER)).reset()[0].tobytes() for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_further_arguments_reach_the_environment():
    env = make_single(EnvSpec("HalfCheetah-v5"), reset_noise_scale=0.0)
    obs, _ = env.reset(seed=0)
    assert not obs.any()
    robot = make_single(EnvSpec(SCOOTER), episode_limit=7)
    assert robot.episode_limit == 7
    with pytest.raises(ConfigError, match="has no such argument"):
        make_single(EnvSpec(SCOOTER), episode_limits=7)
