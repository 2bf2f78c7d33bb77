"""Environments made for the tests; their ids begin with `tests.toy:`."""

import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time

import gymnasium as gym
import numpy as np
import torch


class Constant(gym.Env):
    """Always the same observation and a reward of 1; `ends` says how an episode of 8 steps ends."""

    def __init__(self, ends="truncated"):
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self._ends = ends
        self._t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return np.array([0.5, -0.5]), {}

    def step(self, action):
        self._t += 1
        ended = self._t == 8
        terminated = ended and self._ends == "terminated"
        truncated = ended and self._ends == "truncated"
        return np.array([0.5, -0.5]), 1.0, terminated, truncated, {}


class Restless(Constant):
    """Moves to the directory `to` at every reset; where it draws pictures it breaks at step 4."""

    def __init__(self, to, render_mode=None):
        super().__init__()
        self._to, self.render_mode = to, render_mode

    def reset(self, *, seed=None, options=None):
        os.chdir(self._to)
        return super().reset(seed=seed)

    def step(self, action):
        if self.render_mode and self._t == 3:
            raise RuntimeError("the gearbox broke")
        return super().step(action)

    def render(self):
        return np.full((36, 48, 3), 100, np.uint8)


class Aim(gym.Env):
    """A reward of 1 - 4 (a - 0.5)^2 for an action in [-2, 2], scaled to [-1, 1]; 8 steps.

    `ends` says how an episode ends.
    """

    def __init__(self, ends="truncated"):
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float64)
        self.action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
        self._ends = ends
        self._t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return np.array([0.5, -0.5]), {}

    def step(self, action):
        self._t += 1
        ended = self._t == 8
        reward = 1 - 4 * (float(action[0]) / 2 - 0.5) ** 2
        terminated = ended and self._ends == "terminated"
        return np.array([0.5, -0.5]), reward, terminated, ended and not terminated, {}


class Counter(gym.Env):
    """Observes the steps since the reset and a random draw; ends after `limit` steps."""

    def __init__(self, limit=3, nan_at=None, raise_at=None, grow_at=None, blind_at=None):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Box(-2.0, 4.0, (1,), np.float32)
        self._limit, self._nan_at, self._raise_at = limit, nan_at, raise_at
        self._grow_at, self._blind_at = grow_at, blind_at
        self._t = self._total = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        self._mark = float(self.np_random.random())
        return np.array([0.0, self._mark]), {}

    def step(self, action):
        self._t += 1
        self._total += 1
        if self._total == self._raise_at:
            raise ValueError("the gearbox broke")
        assert np.isfinite(action).all()
        reward = float("nan") if self._total == self._nan_at else float(action[0])
        obs = np.array([self._t, self._mark])
        if self._total == self._grow_at:
            obs = obs[:1]
        if self._total == self._blind_at:
            obs = obs * np.nan
        return obs, reward, self._t >= self._limit, False, {}


class Parking(Counter):
    """Parks if its random draw is below `options["room"]`, and reports it and its fuel."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        self._room = 0.5 if options is None else options["room"]
        self._limit = 2 + int(4 * self._mark)
        return obs, info

    def step(self, action):
        obs, _, ended, truncated, info = super().step(action)
        info = {"is_success": np.bool_(ended and self._mark < self._room), "place": [1, 2]}
        if self._mark < 0.75:  # no fuel is known in the longest episodes
            info["fuel"] = np.array([self._t / 2])
        return obs, -1.0, ended, truncated, info


class Keyed(Counter):
    """Works only with the `token` in the variable TOY_TOKEN, and keeps it as a client would."""

    def __init__(self, token, raise_at=None):
        super().__init__(raise_at=raise_at)
        if token != os.environ["TOY_TOKEN"]:
            raise ValueError("wrong token")
        self._token = token


class Scribe(Counter):
    """Begins to write a file in its 60th step, from when on its state cannot be pickled."""

    steps, file = 0, None

    def step(self, action):
        self.steps += 1
        if self.steps == 60:
            self.file = open(os.devnull, "w")  # noqa: SIM115 - until the end of its process
        return super().step(action)


class Dialled(gym.Env):
    """Its actions are whole numbers in a box."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Box(0, 10, (1,), np.int64)


class Sleepy(gym.Env):
    """Falls asleep before some steps, for up to `most_ms`, as its random stream will have it."""

    def __init__(self, chance=0.02, most_ms=20):
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._chance, self._most_s = chance, 1e-3 * most_ms

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if self.np_random.random() < self._chance:
            time.sleep(self.np_random.uniform(0, self._most_s))
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Diary(gym.Env):
    """Remembers `entry_bytes` of every step until the next episode."""

    def __init__(self, entry_bytes):
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._entry_bytes = entry_bytes

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._entries = []
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._entries.append(self.np_random.bytes(self._entry_bytes))
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Recall(gym.Env):
    """Shows a cue of -1 or 1, then zeros; the last of 6 actions earns 1 if it names the cue.

    The second entry is 1 when the question is asked. Whoever sees the last observation alone can
    but guess: 0.5 an episode.
    """

    def __init__(self):
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t, self._cue = 0, int(self.np_random.integers(2))
        return np.array([2 * self._cue - 1, 0], np.float32), {}

    def step(self, action):
        self._t += 1
        ended = self._t == 6
        reward = float(ended and action == self._cue)
        return np.array([0, self._t == 5], np.float32), reward, ended, False, {}


class Season(gym.Env):
    """Its episodes grow harder: the reward falls with the number of episodes since it was made."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self._episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._episodes += 1
        self._t, self._mark = 0, float(self.np_random.random())
        return np.array([0.0, self._mark]), {}

    def step(self, action):
        self._t += 1
        reward = float(action) - 0.01 * self._episodes
        return np.array([self._t, self._mark]), reward, self._t >= 7, False, {}


class Locked(gym.Env):
    """Cannot be pickled. From step `leaves` of an episode on it draws from a stream of its own.

    Writes `made` and `closed` into the file `told`.
    """

    def __init__(self, leaves=None, limit=60, told=None):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._limit, self._told = limit, told
        if told:
            self._tell("made")
        self._lock, self._leaves = threading.Lock(), leaves

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t, self._x = 0, float(self.np_random.random())
        return np.array([self._t, self._x]), {}

    def step(self, action):
        self._t += 1
        self._x = 0.9 * self._x + 0.1 * float(action[0])
        if self._leaves is not None and self._t >= self._leaves:
            self._x += random.random()
        return np.array([self._t, self._x]), -self._x, False, self._t >= self._limit, {}

    def close(self):
        if self._told:
            self._tell("closed")

    def _tell(self, what):
        with open(self._told, "a") as file:
            file.write(f"{what}\n")


class Tupled(gym.Env):
    """A kind of action that is not supported."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float64)
        self.action_space = gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Discrete(2)))


class Rude(gym.Env):
    """Keeps no promise: `how` says which one. Writes the file `closed` when it is closed."""

    def __init__(self, how, closed=None):
        if how == "exits in __init__":
            sys.exit(0)
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        if how == "complex entry":
            self.observation_space = gym.spaces.Dict(wave=self.observation_space)
        if how == "wrong number":
            self.observation_space = gym.spaces.Discrete(5)
        if how == "wrong dial":
            self.observation_space = gym.spaces.MultiDiscrete([3, 4], start=[1, 0])
        self.action_space = gym.spaces.Discrete(2)
        self._how, self._closed = how, closed

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self._how == "reset raises":
            raise RuntimeError("stuck")
        obs = np.zeros(3 if self._how == "reset is wider" else 2, np.float32)
        if self._how == "complex entry":
            obs = {"wave": obs}
        if self._how.startswith("wrong"):
            obs = 4 if self._how == "wrong number" else np.array([3, 3])
        return obs if self._how == "old reset" else (obs, {})

    def step(self, action):
        if self._how == "exits in step":
            sys.exit(0)
        wave = np.array([1, 2j], np.complex64)
        observations = {
            "scalar observation": 0.5,
            "complex observation": wave,
            "complex entry": {"wave": wave},
            "blind": np.array([np.nan, 0], np.float32),
            "wrong number": -1,
            "wrong dial": np.array([0, 3]),
        }
        obs = observations.get(self._how, np.zeros(2, np.float32))
        rewards = {"array reward": np.ones(2), "no reward": None, "complex reward": wave[1]}
        rewards |= {"infinite reward": np.inf, "text reward": "1.0"}
        reward = rewards.get(self._how, 1.0)
        return obs, reward, False, False, {}

    def close(self):
        if self._closed:
            with open(self._closed, "a") as file:
                file.write("closed\n")


class Keeper(gym.Env):
    """Starts two programs, and never ends them; one of them leaves its session and its parent.

    Their process ids are lines of the file `pids`. In a sampler process its steps hang if `hangs`.
    """

    def __init__(self, pids, hangs=False):
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._hangs = hangs and multiprocessing.parent_process() is not None
        program = subprocess.Popen(["sleep", "600"])
        daemon = "setsid sleep 600 >/dev/null 2>&1 & echo $!"
        found = subprocess.check_output(daemon, shell=True, text=True)
        with open(pids, "a") as file:
            file.write(f"{program.pid}\n{found}")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(600 if self._hangs else 0)
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Wide(gym.Env):
    """Observations, by default 40, which wander, and actions, whose squares cost; 8 steps."""

    def __init__(self, observed=40, acted=37):
        self.observation_space = gym.spaces.Box(-10, 10, (observed,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (acted,), np.float32)
        self._t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self.np_random.normal(size=self.observation_space.shape), {}

    def step(self, action):
        self._t += 1
        cost = float(np.square(action).sum())
        obs = self.np_random.normal(size=self.observation_space.shape)
        return obs, -cost, False, self._t == 8, {}


class Windy(gym.Env):
    """Each step earns the wind, which an episode of 8 steps keeps, less the distance to the target.

    The keys are drawn anew in every step but for `wind`, which only a critic might be shown. Places
    lie around `origin`.
    """

    def __init__(self, origin=0.0):
        sizes = {"noise": 2, "place": 3, "target": 2, "wind": 1}
        parts = {k: gym.spaces.Box(-np.inf, np.inf, (n,), np.float64) for k, n in sizes.items()}
        self.observation_space = gym.spaces.Dict(parts)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._origin = origin

    def _see(self):
        for key, space in self.observation_space.items():
            if key != "wind" or self._t == 0:
                self._obs[key] = self.np_random.uniform(-1, 1, space.shape)
        return {**self._obs, "place": self._obs["place"] + self._origin}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t, self._obs = 0, {}
        return self._see(), {}

    def step(self, action):
        reward = float(self._obs["wind"][0] - np.abs(action - self._obs["target"]).sum())
        self._t += 1
        return self._see(), reward, False, self._t == 8, {}


gym.register("Wide-v0", entry_point="tests.toy:Wide")
gym.register("Windy-v0", entry_point="tests.toy:Windy")
gym.register("Constant-v0", entry_point="tests.toy:Constant")
gym.register("Aim-v0", entry_point="tests.toy:Aim")
gym.register("Counter-v0", entry_point="tests.toy:Counter")
gym.register("Keyed-v0", entry_point="tests.toy:Keyed")
gym.register("Parking-v0", entry_point="tests.toy:Parking")
gym.register("Dialled-v0", entry_point="tests.toy:Dialled")
gym.register("Sleepy-v0", entry_point="tests.toy:Sleepy")
gym.register("Diary-v0", entry_point="tests.toy:Diary")
gym.register("Recall-v0", entry_point="tests.toy:Recall")
gym.register("Season-v0", entry_point="tests.toy:Season")
gym.register("Locked-v0", entry_point="tests.toy:Locked")
gym.register("Tupled-v0", entry_point="tests.toy:Tupled")
gym.register("Rude-v0", entry_point="tests.toy:Rude")
gym.register("Keeper-v0", entry_point="tests.toy:Keeper")


class Lottery(gym.Env):
    """Observes draws of the global generators: `random`, NumPy's and torch's; episodes of 7 steps.

    The reward is NumPy's. Before step `begins` of an episode it draws nothing.
    """

    def __init__(self, begins=0):
        self.observation_space = gym.spaces.Box(0, 1, (3,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self._begins = begins

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self._draw(), {}

    def step(self, action):
        self._t += 1
        obs = self._draw()
        return obs, float(obs[1]), False, self._t == 7, {}

    def _draw(self):
        if self._t < self._begins:
            return np.zeros(3)
        return np.array([random.random(), np.random.random(), float(torch.rand(()))])


gym.register("Lottery-v0", entry_point="tests.toy:Lottery")


class Numbered(gym.Env):
    """Observes how many of its kind this process has made."""

    made = 0

    def __init__(self):
        self.observation_space = gym.spaces.Box(0, np.inf, (1,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        Numbered.made += 1
        self._number = np.array([Numbered.made], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._number, {}

    def step(self, action):
        return self._number, 1.0, False, False, {}


gym.register("Numbered-v0", entry_point="tests.toy:Numbered")


class FailsOnce(gym.Env):
    """Counts steps; at step `at` of the environment's life fails as `how` says, but only once.

    The file `marker` tells that it has failed already; without a marker it fails every time.
    """

    def __init__(self, at=100, how="hang", marker=None):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Discrete(2)
        self._at, self._how, self._marker = at, how, marker
        self._t = self._total = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self.np_random.random(2), {}

    def step(self, action):
        self._t += 1
        self._total += 1
        if self._total == self._at and self._first():
            if self._how == "hang":
                time.sleep(10**6)
            os._exit(7)
        return self.np_random.random(2), float(action), self._t == 9, False, {}

    def _first(self):
        if self._marker is None:
            return True
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


gym.register("FailsOnce-v0", entry_point="tests.toy:FailsOnce")


class Stuck(gym.Env):
    """A step in the agent's process hangs, and touches the file `stuck`, once `begun` exists."""

    def __init__(self, begun, stuck):
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._begun, self._stuck = begun, stuck

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if multiprocessing.parent_process() is None and os.path.exists(self._begun):
            open(self._stuck, "w").close()
            time.sleep(10**6)
        return np.zeros(2, np.float32), 1.0, False, False, {}


gym.register("Stuck-v0", entry_point="tests.toy:Stuck")


class Fragile(gym.Env):
    """A drifting point whose step, or reset, fails now and then in the way that `how` names.

    It fails with `chance`, as its random stream will have it, and in every step number `every` of
    its life; its observations never depend on the actions.
    """

    def __init__(self, how="blind", every=None, chance=0.0, limit=8):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._how, self._every, self._chance, self._limit = how, every, chance, limit
        self._life = 0

    def _fails(self):
        draw = self.np_random.random()
        return draw < self._chance or (self._every and self._life % self._every == 0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        if self._how == "reset" and self._life and self._fails():
            self._life += 1
            raise RuntimeError("no free place was found")
        return self.np_random.random(2), {}

    def step(self, action):
        self._t += 1
        self._life += 1
        fails, obs, reward = self._fails(), self.np_random.random(2), float(action[0])
        if fails and self._how == "raise":
            raise RuntimeError("the simulation is unstable")
        if fails and self._how in ("blind", "huge"):
            obs[1] = np.nan if self._how == "blind" else np.inf
        if fails and self._how == "reward":
            reward = float("inf")
        return obs, reward, False, self._t == self._limit, {}
