"""Runners in the plane and the swimmer: Gymnasium's HalfCheetah, Hopper, Walker2d, Swimmer, v5."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from walle.envs.mujoco.physics import Array, Fields
from walle.envs.mujoco.task import (
    PoseTask,
    RewardAndEnd,
    between,
    clip,
    every,
    never,
    square_sum,
)
from walle.types import AnyArray, BoolArray


@dataclass(kw_only=True)
class _Runner(PoseTask):
    """A robot that moves along x and pays for its torques.

    reward = w_forward Δx / dt - w_ctrl ‖a‖²
    """

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True

    coordinates: ClassVar[int] = 1
    """How many leading positions say where the robot is; the others say in what pose."""

    remembers = ("qpos",)

    def __post_init__(self) -> None:
        """Compiles the model and decides what the observation shows."""
        if self.exclude_current_positions_from_observation:
            self.hidden = self.coordinates
        super().__post_init__()

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:
        """See the class."""
        velocity = (now.qpos[:, 0] - before.qpos[:, 0]) / self.dt
        cost = self.ctrl_cost_weight * square_sum(action)
        return RewardAndEnd(self.forward_reward_weight * velocity - cost, never(len(cost)))


@dataclass(kw_only=True)
class HalfCheetah(_Runner):
    """HalfCheetah-v5."""

    xml_file: str = "half_cheetah.xml"
    frame_skip: int = 5

    normal_velocities: ClassVar[bool] = True


@dataclass(kw_only=True)
class Swimmer(_Runner):
    """Swimmer-v5."""

    xml_file: str = "swimmer.xml"
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-4

    coordinates: ClassVar[int] = 2


@dataclass(kw_only=True)
class Walker2d(_Runner):
    """Walker2d-v5: a runner that is paid for standing, and whose episode ends when it falls.

    reward = w_forward Δx / dt + w_healthy [healthy] - w_ctrl ‖a‖²
    obs = (positions without x, velocities clipped at ±10)
    healthy: height and torso angle strictly inside their ranges.
    """

    xml_file: str = "walker2d_v5.xml"
    frame_skip: int = 4
    ctrl_cost_weight: float = 1e-3
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: tuple[float, float] = (0.8, 2.0)
    healthy_angle_range: tuple[float, float] = (-1.0, 1.0)
    reset_noise_scale: float = 5e-3

    def observe(self, now: Fields, out: Array) -> None:
        """Writes positions, then clipped velocities."""
        shown = self.model.nq - self.hidden
        out[:, :shown] = now.qpos[:, self.hidden :]
        clip(now.qvel, (-10, 10), out=out[:, shown:])

    def healthy(self, now: Fields) -> BoolArray:
        """Whether each lane stands, [L]."""
        qpos = now.qpos
        height = between(qpos[:, 1], self.healthy_z_range)
        return height & between(qpos[:, 2], self.healthy_angle_range)

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:
        """See the class."""
        velocity = (now.qpos[:, 0] - before.qpos[:, 0]) / self.dt
        healthy = self.healthy(now)
        gain = self.forward_reward_weight * velocity + self.healthy_reward * healthy
        reward = gain - self.ctrl_cost_weight * square_sum(action)
        ended = ~healthy if self.terminate_when_unhealthy else never(len(reward))
        return RewardAndEnd(reward, ended)


@dataclass(kw_only=True)
class Hopper(Walker2d):
    """Hopper-v5: Walker2d, with bounds on all velocities and on positions from the third on."""

    xml_file: str = "hopper.xml"
    healthy_state_range: tuple[float, float] = (-100.0, 100.0)
    healthy_z_range: tuple[float, float] = (0.7, math.inf)
    healthy_angle_range: tuple[float, float] = (-0.2, 0.2)

    def healthy(self, now: Fields) -> BoolArray:
        """Whether each lane stands and moves within bounds, [L]."""
        pose = every(between(now.qpos[:, 2:], self.healthy_state_range))
        motion = every(between(now.qvel, self.healthy_state_range))
        return super().healthy(now) & pose & motion
