"""Environments with images or several discrete actions; ids begin with `tests.toy_images:`."""

import gymnasium as gym
import numpy as np

SIDE = 36
EPISODE = 8


def several(actions):
    """Two dials, the first of which is counted from 1, or three switches."""
    if actions == "switches":
        return gym.spaces.MultiBinary(3)
    return gym.spaces.MultiDiscrete([3, 2], start=[1, 0])


class Look(gym.Env):
    """The left or the right half of the picture is bright: 1 for naming the half.

    `layout` says how the picture lies: "hwc", "chw" or "hw".
    """

    def __init__(self, layout="hwc", render_mode=None):
        shape = {"hwc": (SIDE, SIDE + 4, 1), "chw": (1, SIDE, SIDE + 4), "hw": (SIDE, SIDE + 4)}
        self.observation_space = gym.spaces.Box(0, 255, shape[layout], np.uint8)
        self.action_space = gym.spaces.Discrete(2, start=3)
        self.render_mode = render_mode
        self._t = self._right = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self._draw(), {}

    def _draw(self):
        self._right = int(self.np_random.integers(2))
        picture = self.np_random.integers(0, 60, (SIDE, SIDE + 4)).astype(np.uint8)
        half = slice(SIDE // 2 + 2, None) if self._right else slice(0, SIDE // 2 + 2)
        picture[:, half] += 150
        return picture.reshape(self.observation_space.shape)

    def step(self, action):
        reward = float(action - 3 == self._right)
        self._t += 1
        return self._draw(), reward, False, self._t == EPISODE, {}


class Seen(gym.Env):
    """An environment that counts its steps in `_t` and shows what `_see` returns."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self._see(), {}


class Mixed(Seen):
    """A picture, a vector and a number; the actions are three switches and dials.

    `actions` is "dials" (3 and 2 positions, the first counted from 1) or "switches" (3). `nan_at`
    is the step with a speed that is no number.
    """

    def __init__(self, actions="dials", nan_at=None):
        self.observation_space = gym.spaces.Dict(
            {
                "speed": gym.spaces.Box(-10, 10, (2,), np.float64),
                "camera": gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
                "gear": gym.spaces.Discrete(3),
            }
        )
        self.action_space = several(actions)
        self._t, self._nan_at = 0, nan_at

    def _see(self):
        camera = self.np_random.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
        speed = self.np_random.uniform(-10, 10, 2)
        if self._t == self._nan_at:
            speed[1] = np.nan
        return {"speed": speed, "camera": camera, "gear": int(self.np_random.integers(3))}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, self.action_space.dtype))
        self._t += 1
        return self._see(), float(np.sum(action)), False, self._t == EPISODE, {}


class Levers(Seen):
    """A vector names the positions of the levers, which earn 1 each: `actions` as in `Mixed`."""

    def __init__(self, actions="dials"):
        self._counts = [3, 2] if actions == "dials" else [2, 2, 2]
        self._start = [1, 0] if actions == "dials" else [0, 0, 0]
        self.observation_space = gym.spaces.Box(0, 1, (sum(self._counts),), np.float32)
        self.action_space = several(actions)
        self._t = 0

    def _see(self):
        self._asked = [int(self.np_random.integers(count)) for count in self._counts]
        return np.concatenate(
            [
                np.eye(count, dtype=np.float32)[i]
                for count, i in zip(self._counts, self._asked, strict=True)
            ]
        )

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, self.action_space.dtype))
        reward = float(np.sum(np.asarray(action) - self._start == self._asked))
        self._t += 1
        return self._see(), reward, False, self._t == EPISODE, {}


for _kind in (Look, Mixed, Levers):
    gym.register(f"{_kind.__name__}-v0", entry_point=_kind)
