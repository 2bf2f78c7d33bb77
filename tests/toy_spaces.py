"""Environments with unusual spaces; their ids begin with `tests.toy_spaces:`."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

LARGEST = float(np.finfo(np.float32).max)


class Toy(gym.Env):
    """Two numbers in [0, 1), episodes of 8 steps, a reward of 1."""

    observation_space = Box(0, 1, (2,), np.float64)
    action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def observe(self):
        return self.np_random.random(2)

    def step(self, action):
        self.t += 1
        return self.observe(), self.reward(action), False, self.t >= 8, {}

    def reward(self, action):
        return 1.0


ACTIONS = {
    "box": Box(np.array([[0, -100], [10, -1]]), np.array([[0.1, 100], [12, -0.5]]), dtype=float),
    "number": Box(-2, 4, (), np.float32),
    "dials": MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, -3]]),
    "switches": MultiBinary((2, 2)),
    "row of dials": MultiDiscrete([3, 3]),
    "row of switches": MultiBinary(2),
    "free": Box(-np.inf, np.inf, (1, 2), np.float32),
    "half": Box(0, np.inf, (2,), np.float64),
    "ends": Box(-LARGEST, LARGEST, (2,), np.float32),
    "wide": Box(-np.finfo(float).max, np.finfo(float).max, (2,), float),
}


class Shaped(Toy):
    """The reward is the sum of the action, which must be one of the space that `actions` names."""

    def __init__(self, actions):
        self.action_space = ACTIONS[actions]

    def reward(self, action):
        assert isinstance(action, np.ndarray)
        assert self.action_space.contains(action), action
        return float(np.sum(action))


class Shifts(Toy):
    """Subtracts 1 from its action in place and observes the result; rewards the action's sum.

    With `handle` it cannot be pickled.
    """

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, actions="half", handle=False):
        self.action_space, self.action = ACTIONS[actions], np.zeros(2)
        self.handle = iter(()) if handle else None

    def observe(self):
        return self.action + self.np_random.random()

    def step(self, action):
        reward, self.action = float(np.sum(action)), action
        action -= 1
        obs, _, *rest = super().step(action)
        return obs, reward, *rest


class Stamped(Toy):
    """Observes a time in seconds, as `of` has it, and a draw; the reward is the action's sign.

    An action is right if it is positive at odd seconds and negative at even ones.
    """

    START = 1.7e9

    def __init__(self, of="row"):
        time, draw = Box(0, np.inf, (1,), np.float64), Box(0, 1, (1,), np.float32)
        self.of = of
        if of == "ticks":
            self.observation_space = Box(0, 2**40, (2,), np.int64)
        elif of == "rounded":
            self.observation_space = Box(0, np.inf, (2,), np.float32)
        elif of == "camera":
            image = Box(0, 255, (36, 36), np.uint8)
            self.observation_space = Dict(image=image, time=time, draw=draw)
            self.action_space = Discrete(2)
        else:
            self.observation_space = Box(0, np.inf, (2,), np.float64)

    def observe(self):
        time, draw = self.START + self.t % 2, self.np_random.random()
        if self.of == "camera":
            image = np.full((36, 36), self.t, np.uint8)
            return {"image": image, "time": np.array([time]), "draw": np.array([draw], np.float32)}
        return np.array([time, draw]).astype(self.observation_space.dtype)

    def reward(self, action):
        signed = 2 * action - 1 if self.of == "camera" else action[0]
        return float(np.sign(signed) * (1 if self.t % 2 else -1))


class Gives(Toy):
    """Gives a reward, and ends, in the way that `how` names."""

    def __init__(self, how):
        self.how = how

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.how == "assertion":
            assert self.t < 1
        reward = None if self.how == "none" else np.array([[0.5]], np.float32)
        return obs, reward, np.array([terminated]), np.array([[truncated]]), info


class Without(Toy):
    """Lacks a space."""

    def __init__(self, name):
        setattr(self, name, None)
