"""Tasks: a model, the first states of episodes, and observations, rewards and ends of all lanes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
import numpy.typing as npt

from walle.envs.mujoco.compiling import compile_model, xml_path
from walle.envs.mujoco.physics import Array, Fields
from walle.errors import ConfigError, RolloutError
from walle.types import AnyArray, BoolArray


class LaneError(RolloutError):
    """One lane's result cannot be used; `index` is the place of the first such lane."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class State(NamedTuple):
    """The state in which an episode starts: `qpos` [nq] and `qvel` [nv]."""

    qpos: Array
    qvel: Array


class RewardAndEnd(NamedTuple):
    """The `reward` of a step, [L], and whether it reached a terminal state, [L]."""

    reward: npt.NDArray[np.floating]
    terminated: BoolArray


class Task(ABC):
    """A model with the batched functions that make it a task.

    Attributes:
        model: the compiled model, shared by all lanes.
        frame_skip: physics steps per environment step.
        dt: seconds of simulated time per environment step.
        rest: [nq] the model's initial positions; its velocities are zero.
        fields: the MuJoCo fields that the task reads.
        remembers: the fields whose values from before the step the reward needs.
        observation_size: the number of entries of one lane's observation.
    """

    model: mujoco.MjModel
    frame_skip: int
    dt: float
    rest: Array
    fields: tuple[str, ...] = ("qpos", "qvel")
    remembers: tuple[str, ...] = ()
    observation_size: int

    def load(self, path: Path, frame_skip: int) -> None:
        """Compiles the model; a task calls this before anything else."""
        if frame_skip < 1:
            raise ConfigError(f"frame_skip={frame_skip}: at least one physics step is needed")
        self.frame_skip = frame_skip
        self.model = compile_model(path)
        self.dt = float(self.model.opt.timestep) * frame_skip
        self.rest = self.model.qpos0.copy()

    @abstractmethod
    def begin(self, random: np.random.Generator) -> State:
        """Draws the state in which an episode starts."""

    @abstractmethod
    def observe(self, now: Fields, out: Array) -> None:
        """Writes the observations of all lanes into `out`, [L, observation_size]."""

    @abstractmethod
    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:
        """The reward of the step from `before` to `now`, and the lanes whose episode it ended."""

    @property
    def action_space(self) -> gym.spaces.Box:
        """The actuators' control ranges."""
        low, high = self.model.actuator_ctrlrange.astype(np.float32).T
        return gym.spaces.Box(low, high, dtype=np.float32)


@dataclass(kw_only=True)
class GymnasiumTask(Task):
    """A task that Gymnasium has too, with the same constructor arguments as dataclass fields.

    Attributes:
        xml_file: a path beginning with `/`, `.` or `~`, or a model that Gymnasium ships.
        frame_skip: physics steps per environment step.
    """

    xml_file: str
    frame_skip: int

    def __post_init__(self) -> None:
        self.load(xml_path(self.xml_file), self.frame_skip)


@dataclass(kw_only=True)
class PoseTask(GymnasiumTask):
    """A task that starts near the model's initial pose and shows positions and velocities.

    obs = (positions without the first `hidden`, velocities)

    Attributes:
        reset_noise_scale: scale of the noise on the initial positions and velocities.
        hidden: how many leading positions the observation leaves out.
        normal_velocities: whether the noise on velocities is normal; otherwise it is uniform.
    """

    reset_noise_scale: float

    hidden = 0
    normal_velocities: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.observation_size = int(self.model.nq + self.model.nv) - self.hidden

    def begin(self, random: np.random.Generator) -> State:
        """The initial pose with noise."""
        return near_rest(self, random, self.reset_noise_scale, normal=self.normal_velocities)

    def observe(self, now: Fields, out: Array) -> None:
        """Positions, then velocities."""
        shown = self.model.nq - self.hidden
        out[:, :shown] = now.qpos[:, self.hidden :]
        out[:, shown : shown + self.model.nv] = now.qvel


def near_rest(task: Task, random: np.random.Generator, scale: float, *, normal: bool) -> State:
    """The model's initial state with noise on every position and velocity.

    Positions get uniform noise in [-scale, scale); velocities the same, or with `normal` noise of
    standard deviation `scale`.
    """
    nq, nv = len(task.rest), task.model.nv
    if normal:
        qpos = task.rest + random.uniform(-scale, scale, nq)
        return State(qpos, scale * random.standard_normal(nv))
    noise = random.uniform(-scale, scale, nq + nv)
    return State(task.rest + noise[:nq], noise[nq:])


def never(lanes: int) -> BoolArray:
    """The [L] booleans of a step that ended in no terminal state."""
    return np.zeros(lanes, dtype=np.bool_)


def square_sum(x: AnyArray) -> npt.NDArray[np.floating]:
    """Σ_j x[i, j]² in the precision of `x`.

    The last bits depend on the precision: Gymnasium's control cost is float32, as actions are.
    """
    total: npt.NDArray[np.floating] = np.add.reduce(np.square(x), axis=1)
    return total


def clip(x: Array, low_high: tuple[float, float], out: Array | None = None) -> Array:
    """`np.clip` in fewer calls: after a step of physics the caches are cold and calls are slow."""
    low, high = low_high
    clipped: Array = np.maximum(x, low, out=out)
    return np.minimum(clipped, high, out=clipped)


def every(inside: BoolArray) -> BoolArray:
    """Whether all of a row holds, [L, n] -> [L]: `all(axis=1)` in fewer calls."""
    rows: BoolArray = np.logical_and.reduce(inside, axis=1)
    return rows


def between(x: Array, low_high: tuple[float, float]) -> BoolArray:
    """Whether low < x < high, entry by entry."""
    low, high = low_high
    inside: BoolArray = (low < x) & (x < high)
    return inside
