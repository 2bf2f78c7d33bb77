"""The scooter of `scooter.py` as a Gymnasium environment, which simulates one scooter."""

from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np

TARGET_SPEED = 1.0
MAX_LEAN = 0.6


class ScooterEnv(gym.Env):
    """One scooter."""

    frame_skip = 5

    def __init__(self):
        self.model = mujoco.MjModel.from_xml_path(str(Path(__file__).with_name("scooter.xml")))
        self.data = mujoco.MjData(self.model)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (6,), np.float64)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        """Begins with a small lean and a random speed."""
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self.data.joint("lean").qpos = self.np_random.uniform(-0.1, 0.1)
        self.data.joint("x").qvel = self.np_random.uniform(-0.5, 0.5)
        mujoco.mj_forward(self.model, self.data)
        return self._observation(), {}

    def step(self, action):
        """Drives the wheel for five physics steps."""
        lean_before = self._lean()
        self.data.ctrl[:] = action
        mujoco.mj_step(self.model, self.data, self.frame_skip)
        slip = self.data.joint("x").qvel[0] - TARGET_SPEED
        swing = self._lean() - lean_before
        reward = 1.0 - slip**2 - 0.5 * swing**2 - 0.01 * np.sum(action**2)
        return self._observation(), reward, bool(abs(self._lean()) > MAX_LEAN), False, {}

    def _lean(self):
        return self.data.joint("lean").qpos[0]

    def _observation(self):
        return np.concatenate([self.data.qpos[1:3], self.data.qvel])


gym.register("Scooter-v0", entry_point=ScooterEnv, max_episode_steps=500)
