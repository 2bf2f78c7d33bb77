"""What a task is: a model, where episodes begin, and observation, reward and end of all lanes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from walle.envs.mujoco.compiling import compile_model, xml_path
from walle.envs.mujoco.physics import Array, Fields
from walle.types import AnyArray, BoolArray


class State(NamedTuple):
    """Where an episode begins: `qpos` [nq] and `qvel` [nv]."""

    qpos: Array
    qvel: Array


class Outcome(NamedTuple):
    """What a step gave: `reward` [L], and whether it reached a terminal state, [L]."""

    reward: npt.NDArray[np.floating]
    terminated: BoolArray


@dataclass(kw_only=True)
class Task(ABC):
    """A MuJoCo task as functions of whole batches. Its dataclass fields are its arguments.

    Attributes:
        xml_file: the model: a path beginning with `/`, `.` or `~`, or one of Gymnasium's.
        frame_skip: physics steps per environment step.
    """

    xml_file: str
    frame_skip: int

    remembers: ClassVar[tuple[str, ...]] = ("qpos",)
    """The fields whose values from before the step the reward needs."""

    def __post_init__(self) -> None:
        """Compiles the model."""
        if self.frame_skip < 1:
            raise ValueError(f"frame_skip={self.frame_skip}: at least one physics step is needed")
        self.model = compile_model(xml_path(self.xml_file))
        if self.model.nu == 0:
            raise ValueError(f"{self.xml_file} has no actuators, so there is no action to choose")
        self.dt = float(self.model.opt.timestep) * self.frame_skip
        """Seconds of simulated time per environment step."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The MuJoCo fields that the task reads."""
        return ("qpos", "qvel")

    @property
    @abstractmethod
    def observation_size(self) -> int:
        """The number of entries of one lane's observation."""

    @abstractmethod
    def begin(self, random: np.random.Generator) -> State:
        """Draws the state in which an episode begins."""

    @abstractmethod
    def observe(self, now: Fields, out: Array) -> None:
        """Writes the observations of all lanes into `out`, [L, observation_size]."""

    @abstractmethod
    def outcome(self, before: Fields, action: AnyArray, now: Fields) -> Outcome:
        """What the step that took the lanes from `before` to `now` is worth, and what it ended."""

    @property
    def action_space(self) -> gym.spaces.Box:
        """The actuators' control ranges."""
        low, high = self.model.actuator_ctrlrange.astype(np.float32).T
        return gym.spaces.Box(low, high, dtype=np.float32)


def near_rest(task: Task, random: np.random.Generator, scale: float, *, normal: bool) -> State:
    """The model's initial state with noise on every position and velocity.

    Positions get uniform noise in [-scale, scale); velocities the same, or with `normal` noise of
    standard deviation `scale`.
    """
    model = task.model
    if normal:
        qpos = model.qpos0 + random.uniform(-scale, scale, model.nq)
        return State(qpos, scale * random.standard_normal(model.nv))
    noise = random.uniform(-scale, scale, model.nq + model.nv)
    return State(model.qpos0 + noise[: model.nq], noise[model.nq :])


def never(lanes: int) -> BoolArray:
    """No lane is in a terminal state."""
    return np.zeros(lanes, dtype=np.bool_)


def square_sum(x: AnyArray) -> npt.NDArray[np.floating]:
    """Σ_j x[i, j]² in the precision of `x`.

    Actions are float32, and so is Gymnasium's control cost: its last bits depend on that.
    """
    total: npt.NDArray[np.floating] = np.add.reduce(np.square(x), axis=1)
    return total


def between(x: Array, low_high: tuple[float, float]) -> BoolArray:
    """Low < x < high, entry by entry."""
    low, high = low_high
    inside: BoolArray = (low < x) & (x < high)
    return inside
