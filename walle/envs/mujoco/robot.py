"""A user's own robot: a MuJoCo model and two or three functions of all lanes at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from walle.envs.mujoco.physics import Array, Fields, make_physics
from walle.envs.mujoco.task import (
    LaneError,
    RewardAndEnd,
    State,
    Task,
    compile_model,
    near_rest,
    never,
)
from walle.errors import ConfigError, RolloutError, nearest
from walle.types import AnyArray, BoolArray

_KINDS = {"site", "body", "geom", "camera", "tendon", "actuator", "sensor", "qpos", "qvel"}


@dataclass(frozen=True, kw_only=True)
class Robot:
    """A robot for which walle simulates many lanes at once.

    Every array has the lanes first: `now.qpos` is [L, nq], an action [L, nu], a reward [L].

    Attributes:
        xml_file: the MuJoCo model.
        observe: now -> [L, O], what the policy sees.
        reward: (before, action, now) -> [L], the reward of the step from `before` to `now`.
        terminated: now -> [L] booleans, whether the episode has reached its end; None: never.
        begin: (random, qpos, qvel) -> (qpos, qvel), the state in which an episode starts, from one
            lane's random stream and the model's initial state; None adds uniform noise to the
            initial state.
        fields: the names of the MjData arrays that `now` has.
        remembers: the names of the arrays that `before` has; each must be in `fields`.
        frame_skip: physics steps per environment step.
        episode_limit: environment steps before an episode is truncated; None: never.
        reset_noise_scale: bound on the uniform noise without `begin`.
    """

    xml_file: str | Path
    observe: Callable[[Fields], npt.ArrayLike]
    reward: Callable[[Fields, AnyArray, Fields], npt.ArrayLike]
    terminated: Callable[[Fields], npt.ArrayLike] | None = None
    begin: Callable[[np.random.Generator, Array, Array], tuple[Array, Array]] | None = None
    fields: tuple[str, ...] = ("qpos", "qvel")
    remembers: tuple[str, ...] = ("qpos",)
    frame_skip: int = 1
    episode_limit: int | None = 1000
    reset_noise_scale: float = 0.0

    def __post_init__(self) -> None:
        for name in ("fields", "remembers"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigError(f"{name}={value!r} must be a tuple of names, as in ({value!r},)")
        for name, least in (("frame_skip", 1), ("episode_limit", 1), ("reset_noise_scale", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name}={value} must be {least} at least")
        missing = sorted(set(self.remembers) - set(self.fields))
        if missing:
            raise ConfigError(
                f"remembers={self.remembers} needs {', '.join(missing)} in fields={self.fields}"
            )
        if self.begin is not None and self.reset_noise_scale != 0:
            raise ConfigError(
                f"reset_noise_scale={self.reset_noise_scale} has no effect when `begin` is given: "
                "leave one of them out"
            )


def indices(xml_file: str | Path, *parts: str) -> list[int | slice]:
    """Where MuJoCo's arrays hold named parts of a model, such as "site:tip" or "sensor:gyro".

    A site, body, geom, camera, tendon or actuator has an index, for `now.site_xpos[:, TIP]`. The
    numbers of a sensor are a slice of `sensordata`, and those of a joint are a slice of `qpos` or
    `qvel`: "qpos:hip", "qvel:hip".

    Raises:
        ConfigError: the model has no such part; the message names the nearest one.
    """
    model, found = compile_model(Path(xml_file).expanduser()), list[int | slice]()
    for part in parts:
        kind, _, name = part.partition(":")
        if kind not in _KINDS:
            raise ConfigError(f"{part!r} is not KIND:NAME; {nearest(kind, _KINDS)}")
        try:
            one = getattr(model, "joint" if kind in ("qpos", "qvel") else kind)(name)
        except KeyError as error:
            near = nearest(name, re.findall("'(.+?)'", str(error).partition("Valid names")[2]))
            raise ConfigError(f"{part!r}: {xml_file} has no such name; {near}") from None
        if kind == "sensor":
            found.append(slice(int(one.adr[0]), int(one.adr[0] + one.dim[0])))
        elif kind == "qpos":
            found.append(slice(int(one.qposadr[0]), int(one.qposadr[0] + one.qpos0.size)))
        elif kind == "qvel":
            found.append(slice(int(one.dofadr[0]), int(one.dofadr[0] + one.damping.size)))
        else:
            found.append(int(one.id))
    return found


class RobotTask(Task):
    """A `Robot` as a task: checks all that the robot's functions return."""

    def __init__(self, robot: Robot) -> None:
        """Compiles the model and tries `observe` on one lane to learn the observation's size."""
        self.robot = robot
        self.fields, self.remembers = robot.fields, robot.remembers
        self.load(Path(robot.xml_file).expanduser(), robot.frame_skip)
        physics = make_physics(self.model, 1, self.fields)
        qpos, qvel = self.begin(np.random.default_rng(0))
        physics.reset(np.array([0]), qpos[None], qvel[None])
        obs = np.asarray(robot.observe(physics.fields))
        if obs.ndim != 2 or len(obs) != 1:
            raise ConfigError(
                f"observe() returned shape {obs.shape} for one lane: it must be [lanes, entries], "
                "(1, entries) here. Index lanes first, as in now.qpos[:, 0]."
            )
        self.observation_size = int(_checked("observe", obs, obs.shape).shape[1])

    @property
    def action_space(self) -> gym.spaces.Box:
        """The actuators' control ranges, infinite where there are none."""
        limited = self.model.actuator_ctrllimited.astype(bool)
        low, high = self.model.actuator_ctrlrange.astype(np.float32).T
        return gym.spaces.Box(
            np.where(limited, low, -np.inf), np.where(limited, high, np.inf), dtype=np.float32
        )

    def begin(self, random: np.random.Generator) -> State:
        """Draws an initial state by the robot's `begin`, and checks its shapes."""
        if self.robot.begin is None:
            return near_rest(self, random, self.robot.reset_noise_scale, normal=False)
        qpos, qvel = self.robot.begin(random, self.rest.copy(), np.zeros(self.model.nv))
        positions = _floats("begin's qpos", qpos, (self.model.nq,))
        return positions, _floats("begin's qvel", qvel, (self.model.nv,))

    def observe(self, now: Fields, out: Array) -> None:
        """Writes what the robot's `observe` returns, after checking its shape."""
        out[:] = _checked("observe", self.robot.observe(now), out.shape)

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:
        """The results of the robot's `reward` and `terminated`, after checking both."""
        lanes = len(action)
        reward = _floats("reward", self.robot.reward(before, action.copy(), now), (lanes,))
        if self.robot.terminated is None:
            return reward, never(lanes)
        value = _checked("terminated", self.robot.terminated(now), (lanes,))
        terminated: BoolArray = np.array(value)
        if terminated.dtype != np.bool_:
            raise RolloutError(f"terminated() returned {terminated.dtype}, not booleans")
        return reward, terminated


def _floats(name: str, value: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    return np.array(_checked(name, value, shape), dtype=np.float64)


def _checked(name: str, value: npt.ArrayLike, shape: tuple[int, ...]) -> AnyArray:
    """The array `value`, checked to have this shape and no imaginary part for NumPy to cut off."""
    array = np.asarray(value)
    if array.shape != shape:
        raise RolloutError(
            f"{name} has shape {array.shape} where {shape} is needed: the shape must be the same "
            "in every step, with the lanes first"
        )
    if np.iscomplexobj(array):
        lanes = np.flatnonzero(array.imag.reshape(len(array), -1).any(1))
        raise LaneError(
            f"{name} returned complex numbers: return real ones, such as the real part or the "
            "absolute value",
            int(lanes[0]) if lanes.size else 0,
        )
    return array
