"""The MuJoCo lanes against Gymnasium, step by step, from the same seeds with the same actions."""

import dataclasses
import inspect

import gymnasium as gym
import numpy as np
import pytest

from walle.envs.lanes import EnvSpec
from walle.envs.mujoco.physics import catch_mujoco_warnings, issue_mujoco_warnings
from walle.envs.mujoco.registry import TASKS, make_mujoco_lanes
from walle.streams import env_seed

LANES = (3, 4)
SEEDS = [env_seed(0, lane) for lane in LANES]

# id, constructor arguments, the episode limit (None: the registered one), steps
DEFAULTS = [
    ("HalfCheetah-v5", {}, None, 2000),
    ("Hopper-v5", {}, None, 2000),
    ("Walker2d-v5", {}, None, 2000),
    ("Swimmer-v5", {}, None, 2000),
    ("Reacher-v5", {}, None, 2000),
    ("Pusher-v5", {}, None, 2000),
    pytest.param("Ant-v5", {}, None, 2000, marks=pytest.mark.slow),
    pytest.param("Humanoid-v5", {}, None, 2000, marks=pytest.mark.slow),
    pytest.param("HumanoidStandup-v5", {}, None, 2000, marks=pytest.mark.slow),
    ("InvertedPendulum-v5", {}, None, 2000),
    ("InvertedDoublePendulum-v5", {}, None, 2000),
]
SHOW_ALL = {"exclude_current_positions_from_observation": False}
VARIED = [
    ("HalfCheetah-v5", {"forward_reward_weight": 0.3, "ctrl_cost_weight": 0.7, **SHOW_ALL}),
    ("HalfCheetah-v5", {"frame_skip": 2, "reset_noise_scale": 0.4}),
    ("Hopper-v5", {"healthy_z_range": (0.9, 1.3), "healthy_reward": 2.0, **SHOW_ALL}),
    ("Hopper-v5", {"healthy_state_range": (-1.5, 1.2), "frame_skip": 2, "ctrl_cost_weight": 0.1}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_angle_range": (-0.1, 0.3)}),
    ("Walker2d-v5", {"healthy_z_range": (1.0, 1.4), "healthy_angle_range": (-0.1, 0.3)}),
    ("Walker2d-v5", {"terminate_when_unhealthy": False, "forward_reward_weight": 3.0, **SHOW_ALL}),
    ("Walker2d-v5", {"xml_file": "walker2d.xml", "reset_noise_scale": 0.05}),
    ("Swimmer-v5", {"forward_reward_weight": 2.5, "ctrl_cost_weight": 0.2, **SHOW_ALL}),
    ("Swimmer-v5", {"frame_skip": 7, "reset_noise_scale": 0.3}),
    ("Reacher-v5", {"reward_dist_weight": 2.0, "reward_control_weight": 0.3, "frame_skip": 4}),
    ("Pusher-v5", {"reward_near_weight": 2.0, "reward_dist_weight": 0.5, "frame_skip": 3}),
    ("Pusher-v5", {"xml_file": "pusher.xml", "reward_control_weight": 0.4}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0, **SHOW_ALL}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "main_body": "front_left_leg"}),
    ("Ant-v5", {"contact_force_range": (-0.2, 0.3), "contact_cost_weight": 0.05, "frame_skip": 3}),
    ("Ant-v5", {"healthy_z_range": (0.4, 0.9), "healthy_reward": 0.2, "reset_noise_scale": 0.2}),
    ("Ant-v5", {"terminate_when_unhealthy": False, "ctrl_cost_weight": 2.0}),
    ("Humanoid-v5", {"include_cinert_in_observation": False, "frame_skip": 3, **SHOW_ALL}),
    ("Humanoid-v5", {"contact_cost_weight": 0.1, "contact_cost_range": (1.0, 3.0)}),
    ("Humanoid-v5", {"contact_cost_weight": 0, "contact_cost_range": (1.0, 3.0)}),
    (
        "Humanoid-v5",
        {
            "include_cvel_in_observation": False,
            "include_qfrc_actuator_in_observation": False,
            "include_cfrc_ext_in_observation": False,
            "contact_cost_weight": 0,
        },
    ),
    ("Humanoid-v5", {"terminate_when_unhealthy": False, "healthy_z_range": (1.2, 1.5)}),
    ("HumanoidStandup-v5", {"impact_cost_weight": 0.01, "impact_cost_range": (0.5, 4.0)}),
    (
        "HumanoidStandup-v5",
        {"impact_cost_weight": 0, "include_cfrc_ext_in_observation": False, **SHOW_ALL},
    ),
    ("HumanoidStandup-v5", {"uph_cost_weight": 5.0, "ctrl_cost_weight": 1.0, "frame_skip": 2}),
    ("InvertedPendulum-v5", {"reset_noise_scale": 0.15, "frame_skip": 1}),
    ("InvertedDoublePendulum-v5", {"healthy_reward": 3.0, "reset_noise_scale": 0.3}),
    ("InvertedDoublePendulum-v5", {"frame_skip": 2}),
]


class Reference:
    """Gymnasium environments stepped one by one, reset as lanes are."""

    def __init__(self, env_id: str, kwargs: dict, limit: int | None):
        extra = {} if limit is None else {"max_episode_steps": limit}
        self.envs = [gym.make(env_id, **kwargs, **extra) for _ in SEEDS]
        issue_mujoco_warnings("reference")

    def reset(self):
        return np.stack([e.reset(seed=s)[0] for e, s in zip(self.envs, SEEDS, strict=True)])

    def step(self, action):
        rows = [e.step(a) for e, a in zip(self.envs, action, strict=True)]
        final = np.stack([row[0] for row in rows])
        reward, terminated, truncated = (np.array([row[i] for row in rows]) for i in (1, 2, 3))
        ended = terminated | truncated
        obs = [
            e.reset()[0] if end else f for e, end, f in zip(self.envs, ended, final, strict=True)
        ]
        return np.stack(obs), reward, terminated, truncated, final

    def close(self):
        for env in self.envs:
            env.close()


def assert_parity(env_id, kwargs, limit, steps):
    catch_mujoco_warnings()
    reference = Reference(env_id, kwargs, limit)
    lanes = make_mujoco_lanes(EnvSpec(env_id, kwargs, episode_limit=limit), LANES, 0)
    assert lanes.action_space == reference.envs[0].action_space
    assert lanes.observation_space == reference.envs[0].observation_space
    np.testing.assert_allclose(lanes.reset(), reference.reset(), rtol=0, atol=1e-10)
    random = np.random.default_rng(0)
    space = lanes.action_space
    exact, close, finals = [], [], []
    for _ in range(steps):
        action = random.uniform(space.low, space.high, (len(SEEDS), *space.shape))
        action = action.astype(np.float32)
        got = lanes.step(action)
        obs, reward, terminated, truncated, final = reference.step(action)
        ended = terminated | truncated
        exact.append((got.terminated.copy(), terminated, got.truncated.copy(), truncated))
        close.append((got.obs.copy(), obs, got.reward.copy(), reward))
        if ended.any():
            finals.append((got.final_obs[ended], final[ended]))
        else:
            assert got.final_obs is None
    ours, theirs, our_cuts, their_cuts = (np.stack(each) for each in zip(*exact, strict=True))
    np.testing.assert_array_equal(ours, theirs)  # by step and lane
    np.testing.assert_array_equal(our_cuts, their_cuts)
    episodes = (theirs | their_cuts).sum()
    obs, their_obs, reward, their_reward = (np.stack(each) for each in zip(*close, strict=True))
    np.testing.assert_allclose(reward, their_reward, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(obs, their_obs, rtol=1e-10, atol=1e-10)
    for final, their_final in finals:
        np.testing.assert_allclose(final, their_final, rtol=0, atol=1e-10)
    reference.close()
    assert episodes >= 4


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "kwargs", "limit", "steps"), DEFAULTS, ids=lambda v: str(v))
def test_lockstep_with_gymnasium(env_id, kwargs, limit, steps):
    assert_parity(env_id, kwargs, limit, steps)


@pytest.mark.parametrize(("env_id", "kwargs"), VARIED, ids=lambda v: str(v))
def test_lockstep_with_other_arguments(env_id, kwargs):
    assert_parity(env_id, kwargs, 50, 200)


@pytest.mark.parametrize(("entry_point", "task"), TASKS.items(), ids=lambda v: str(v))
def test_arguments_and_their_defaults_are_gymnasiums(entry_point, task):
    module, name = entry_point.split(":")
    theirs = inspect.signature(getattr(__import__(module, fromlist=[name]), name)).parameters
    theirs = {n: p.default for n, p in theirs.items() if p.kind is not p.VAR_KEYWORD}
    theirs.pop("default_camera_config")
    ours = {field.name: field.default for field in dataclasses.fields(task)}
    assert ours == theirs
