"""Gymnasium's MuJoCo tasks, version 5, computed for all lanes at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import mujoco
import numpy as np
import numpy.typing as npt

from walle.envs.mujoco.physics import Array, Fields
from walle.envs.mujoco.task import GymnasiumTask, RewardAndEnd, State, near_rest, never
from walle.types import AnyArray, BoolArray

Range = tuple[float, float]


def _square_sum(x: AnyArray) -> npt.NDArray[np.floating]:
    """Σ_j x[i, j]² in the precision of `x`.

    The last bits depend on the precision: Gymnasium's control cost is float32, as actions are.
    """
    total: npt.NDArray[np.floating] = np.add.reduce(np.square(x), axis=1)
    return total


def _clip(x: Array, low_high: Range, out: Array | None = None) -> Array:
    """`np.clip` in fewer calls: after a step of physics the caches are cold and calls are slow."""
    low, high = low_high
    clipped: Array = np.maximum(x, low, out=out)
    return np.minimum(clipped, high, out=clipped)


def _between(x: Array, low_high: Range) -> BoolArray:
    low, high = low_high
    inside: BoolArray = (low < x) & (x < high)
    return inside


def _finite(now: Fields) -> BoolArray:
    finite: BoolArray = np.logical_and.reduce(np.isfinite(now.qpos), axis=1)
    return finite & np.isfinite(now.qvel).all(1)


@dataclass(kw_only=True)
class _PoseTask(GymnasiumTask):
    """A task that starts near the model's initial pose and shows MuJoCo's fields as they are.

    obs = (positions without the first `coordinates`, velocities, the fields of `_show`)
    """

    reset_noise_scale: float  # of the noise on the initial positions and velocities

    exclude_current_positions_from_observation = True  # some tasks have it as an argument
    coordinates: ClassVar[int] = 0  # leading positions that are the robot's place, not its pose
    normal_velocities: ClassVar[bool] = False  # whether velocities get normal noise, not uniform
    shown_velocities: ClassVar[Range | None] = None  # clipped to this range

    def __post_init__(self) -> None:
        super().__post_init__()
        self.observation_size = 0
        self._shown: list[tuple[str, int, slice, Range | None]] = []
        exclude = self.exclude_current_positions_from_observation
        self._show("qpos", self.coordinates if exclude else 0)
        self._show("qvel", bounds=self.shown_velocities)

    def _show(self, field: str, first: int = 0, bounds: Range | None = None) -> None:
        """Appends to the observation a field, from row or entry `first`, clipped to `bounds`."""
        size = getattr(mujoco.MjData(self.model), field)[first:].size
        columns = slice(self.observation_size, self.observation_size + size)
        self._shown.append((field, first, columns, bounds))
        self.observation_size = columns.stop
        self._read(field)

    def _read(self, field: str) -> None:
        self.fields = tuple(dict.fromkeys((*self.fields, field)))

    def begin(self, random: np.random.Generator) -> State:
        return near_rest(self, random, self.reset_noise_scale, normal=self.normal_velocities)

    def observe(self, now: Fields, out: Array) -> None:
        for field, first, columns, bounds in self._shown:
            part = getattr(now, field)[:, first:].reshape(len(out), -1)
            if bounds is None:
                out[:, columns] = part
            else:
                _clip(part, bounds, out=out[:, columns])


@dataclass(kw_only=True)
class _Runner(_PoseTask):
    """A robot that moves along x and pays for its torques.

    reward = w_forward Δx / dt - w_ctrl ‖a‖²
    """

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True

    coordinates: ClassVar[int] = 1
    remembers = ("qpos",)

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:
        velocity = (now.qpos[:, 0] - before.qpos[:, 0]) / self.dt
        cost = self.ctrl_cost_weight * _square_sum(action)
        return self.forward_reward_weight * velocity - cost, never(len(cost))


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
    healthy_z_range: Range = (0.8, 2.0)
    healthy_angle_range: Range = (-1.0, 1.0)
    reset_noise_scale: float = 5e-3

    shown_velocities: ClassVar[Range | None] = (-10, 10)

    def healthy(self, now: Fields) -> BoolArray:
        """Whether each lane stands, [L]."""
        qpos = now.qpos
        height = _between(qpos[:, 1], self.healthy_z_range)
        return height & _between(qpos[:, 2], self.healthy_angle_range)

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:
        """See the class."""
        velocity = (now.qpos[:, 0] - before.qpos[:, 0]) / self.dt
        cost = self.ctrl_cost_weight * _square_sum(action)
        return _moving_reward(self, velocity, cost, self.healthy(now))


def _moving_reward(
    task: Walker2d | Ant | Humanoid,
    velocity: Array,
    cost: npt.NDArray[np.floating],
    healthy: BoolArray,
) -> RewardAndEnd:
    """The reward of a walking robot: w_forward velocity + w_healthy [healthy] - cost."""
    gain = task.forward_reward_weight * velocity + task.healthy_reward * healthy
    ended = ~healthy if task.terminate_when_unhealthy else never(len(gain))
    return gain - cost, ended


@dataclass(kw_only=True)
class Hopper(Walker2d):
    """Hopper-v5: Walker2d with a further condition of health.

    healthy: also velocities, and positions after the second, strictly inside `healthy_state_range`.
    """

    xml_file: str = "hopper.xml"
    healthy_state_range: Range = (-100.0, 100.0)
    healthy_z_range: Range = (0.7, math.inf)
    healthy_angle_range: Range = (-0.2, 0.2)

    def healthy(self, now: Fields) -> BoolArray:
        """Whether each lane stands and moves within bounds, [L]."""
        pose = _between(now.qpos[:, 2:], self.healthy_state_range).all(1)
        motion = _between(now.qvel, self.healthy_state_range).all(1)
        healthy: BoolArray = super().healthy(now) & pose & motion
        return healthy


@dataclass(kw_only=True)
class InvertedPendulum(_PoseTask):
    """InvertedPendulum-v5.

    reward = [not terminated]
    terminated: the pole leans by more than 0.2 rad, or something is not finite.
    """

    xml_file: str = "inverted_pendulum.xml"
    frame_skip: int = 2
    reset_noise_scale: float = 0.01

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:  # noqa: ARG002
        """See the class."""
        standing = ~(np.abs(now.qpos[:, 1]) > 0.2) & _finite(now)
        return standing.astype(np.float64), ~standing


@dataclass(kw_only=True)
class InvertedDoublePendulum(_PoseTask):
    """InvertedDoublePendulum-v5.

    With the tip at (x, y) and the hinges turning at v₁ and v₂:
    reward = w_healthy [not terminated] - (0.01 x² + (y - 2)²) - (0.001 v₁² + 0.005 v₂²)
    obs = (cart position, sin and cos of both angles, velocities clipped at ±10, the constraint
    force on the cart clipped at ±10)
    terminated: y <= 1.
    """

    xml_file: str = "inverted_double_pendulum.xml"
    frame_skip: int = 5
    healthy_reward: float = 10.0
    reset_noise_scale: float = 0.1

    fields = ("qpos", "qvel", "site_xpos", "qfrc_constraint")
    normal_velocities: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.observation_size = 1 + 2 * int(self.model.nq - 1) + int(self.model.nv) + 1

    def observe(self, now: Fields, out: Array) -> None:
        """See the class."""
        angles = now.qpos[:, 1:].copy()  # NumPy may round sines of strided arrays differently
        n = angles.shape[1]
        out[:, 0] = now.qpos[:, 0]
        out[:, 1 : 1 + n] = np.sin(angles)
        out[:, 1 + n : 1 + 2 * n] = np.cos(angles)
        _clip(now.qvel, (-10, 10), out=out[:, 1 + 2 * n : -1])
        _clip(now.qfrc_constraint[:, 0], (-10, 10), out=out[:, -1])

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:  # noqa: ARG002
        """See the class."""
        x, y = now.site_xpos[:, 0, 0], now.site_xpos[:, 0, 2]
        v1, v2 = now.qvel[:, 1], now.qvel[:, 2]
        fallen = y <= 1
        alive = self.healthy_reward * ~fallen
        swing = 1e-3 * np.square(v1) + 5e-3 * np.square(v2)
        return alive - (0.01 * np.square(x) + np.square(y - 2)) - swing, fallen


@dataclass(kw_only=True)
class Reacher(GymnasiumTask):
    """Reacher-v5: a two-link arm whose fingertip is to touch a target.

    reward = -w_dist ‖fingertip - target‖ - w_ctrl ‖a‖²
    obs = (cos and sin of both joint angles, the target, joint velocities, fingertip - target)
    """

    xml_file: str = "reacher.xml"
    frame_skip: int = 2
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 1.0

    fields = ("qpos", "qvel", "xpos")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.observation_size = 4 + int(self.model.nq - 2) + 4  # see `observe`
        self._fingertip = int(self.model.body("fingertip").id)
        self._target = int(self.model.body("target").id)

    def begin(self, random: np.random.Generator) -> State:
        """An arm nearly straight, and a target uniformly drawn from a disc of radius 0.2 m."""
        qpos = random.uniform(-0.1, 0.1, len(self.rest)) + self.rest
        target = random.uniform(-0.2, 0.2, 2)
        while np.linalg.norm(target) >= 0.2:
            target = random.uniform(-0.2, 0.2, 2)
        qpos[-2:] = target
        qvel = random.uniform(-0.005, 0.005, self.model.nv)
        qvel[-2:] = 0
        return qpos, qvel

    def observe(self, now: Fields, out: Array) -> None:
        """See the class."""
        angles = now.qpos[:, :2].copy()  # NumPy may round sines of strided arrays differently
        out[:, 0:2] = np.cos(angles)
        out[:, 2:4] = np.sin(angles)
        out[:, 4:-4] = now.qpos[:, 2:]
        out[:, -4:-2] = now.qvel[:, :2]
        xpos = now.xpos
        np.subtract(xpos[:, self._fingertip, :2], xpos[:, self._target, :2], out=out[:, -2:])

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:  # noqa: ARG002
        """See the class."""
        offset = now.xpos[:, self._fingertip] - now.xpos[:, self._target]
        cost = self.reward_control_weight * _square_sum(action)
        reward = -self.reward_dist_weight * np.sqrt(_square_sum(offset)) - cost
        return reward, never(len(reward))


@dataclass(kw_only=True)
class Pusher(GymnasiumTask):
    """Pusher-v5: an arm that is to push an object to a goal.

    reward = -w_dist ‖object - goal‖ - w_ctrl ‖a‖² - w_near ‖object - tip‖
    obs = (seven joint angles, their velocities, positions of tip, object and goal)
    """

    xml_file: str = "pusher_v5.xml"
    frame_skip: int = 5
    reward_near_weight: float = 0.5
    reward_dist_weight: float = 1.0
    reward_control_weight: float = 0.1

    fields = ("qpos", "qvel", "xpos")
    observation_size = 23

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tip, self._object, self._goal = (
            int(self.model.body(name).id) for name in ("tips_arm", "object", "goal")
        )

    def begin(self, random: np.random.Generator) -> State:
        """Arm and goal in their initial places, the object more than 0.17 m away from the goal."""
        position = 0.0, 0.0
        while np.linalg.norm(position) <= 0.17:
            position = random.uniform(-0.3, 0), random.uniform(-0.2, 0.2)
        qpos = self.rest.copy()
        qpos[-4:] = (*position, 0.0, 0.0)
        qvel = random.uniform(-0.005, 0.005, self.model.nv)
        qvel[-4:] = 0
        return qpos, qvel

    def observe(self, now: Fields, out: Array) -> None:
        """See the class."""
        out[:, :7] = now.qpos[:, :7]
        out[:, 7:14] = now.qvel[:, :7]
        xpos = now.xpos
        out[:, 14:17] = xpos[:, self._tip]
        out[:, 17:20] = xpos[:, self._object]
        out[:, 20:] = xpos[:, self._goal]

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:  # noqa: ARG002
        """See the class."""
        xpos = now.xpos
        thing = xpos[:, self._object]
        near = self.reward_near_weight * np.sqrt(_square_sum(thing - xpos[:, self._tip]))
        far = self.reward_dist_weight * np.sqrt(_square_sum(thing - xpos[:, self._goal]))
        reward = -far - self.reward_control_weight * _square_sum(action) - near
        return reward, never(len(reward))


@dataclass(kw_only=True)
class Ant(_PoseTask):
    """Ant-v5.

    reward = w_forward Δx / dt + w_healthy [healthy] - w_ctrl ‖a‖² - w_contact ‖clip(f)‖²
    obs = (positions without x and y, velocities, contact forces on every body but the world)
    healthy: positions and velocities finite, height inside its closed range.
    x is the position of `main_body`.
    """

    xml_file: str = "ant.xml"
    frame_skip: int = 5
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    healthy_reward: float = 1.0
    main_body: int | str = 1
    terminate_when_unhealthy: bool = True
    healthy_z_range: Range = (0.2, 1.0)
    contact_force_range: Range = (-1.0, 1.0)
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True
    include_cfrc_ext_in_observation: bool = True

    coordinates: ClassVar[int] = 2
    normal_velocities: ClassVar[bool] = True
    fields = ("qpos", "qvel", "xpos")
    remembers = ("xpos",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._main = int(self.model.body(self.main_body).id)
        if self.include_cfrc_ext_in_observation:
            self._show("cfrc_ext", 1, self.contact_force_range)
        if self.contact_cost_weight != 0:
            self._read("cfrc_ext")

    def healthy(self, now: Fields) -> BoolArray:
        """Whether each lane is healthy, [L]; see the class."""
        low, high = self.healthy_z_range
        height = now.qpos[:, 2]
        inside: BoolArray = (low <= height) & (height <= high)
        return inside & _finite(now)

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:
        """See the class."""
        velocity = (now.xpos[:, self._main, 0] - before.xpos[:, self._main, 0]) / self.dt
        cost = self.ctrl_cost_weight * _square_sum(action)
        if self.contact_cost_weight != 0:
            forces = _clip(now.cfrc_ext.reshape(len(cost), -1), self.contact_force_range)
            cost = cost + self.contact_cost_weight * _square_sum(forces)
        return _moving_reward(self, velocity, cost, self.healthy(now))


@dataclass(kw_only=True)
class _Humanoid(_PoseTask):
    """The observation and the costs that Humanoid and HumanoidStandup share.

    obs = (positions without x and y, velocities, inertia and velocity of the bodies about the
    centre of mass, actuator forces on the joints, contact forces on the bodies); an argument
    `include_..._in_observation` leaves each of the last four out.
    """

    frame_skip: int = 5
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 1e-2
    exclude_current_positions_from_observation: bool = True
    include_cinert_in_observation: bool = True
    include_cvel_in_observation: bool = True
    include_qfrc_actuator_in_observation: bool = True
    include_cfrc_ext_in_observation: bool = True

    coordinates: ClassVar[int] = 2
    contact: ClassVar[str]  # the first words of the arguments for the cost of contacts

    def __post_init__(self) -> None:
        super().__post_init__()
        # The world has no inertia or velocity, and the free joint's six forces have no actuator.
        for field, first in (("cinert", 1), ("cvel", 1), ("qfrc_actuator", 6), ("cfrc_ext", 1)):
            if getattr(self, f"include_{field}_in_observation"):
                self._show(field, first)
        self._contact_weight: float = getattr(self, f"{self.contact}_weight")
        self._contact_range: Range = getattr(self, f"{self.contact}_range")
        if self._contact_weight != 0:
            self._read("cfrc_ext")

    def _cost(self, action: AnyArray, now: Fields) -> npt.NDArray[np.floating]:
        """The cost of controls, and the weighted squared contact forces, clipped."""
        # Gymnasium computes this from MuJoCo's controls, which have double precision.
        control = self.ctrl_cost_weight * _square_sum(action.astype(np.float64))
        if self._contact_weight == 0:
            low, high = self._contact_range
            return control + min(max(0.0, low), high)
        force = _square_sum(now.cfrc_ext.reshape(len(action), -1)).astype(np.float64, copy=False)
        return control + _clip(self._contact_weight * force, self._contact_range)


@dataclass(kw_only=True)
class Humanoid(_Humanoid):
    """Humanoid-v5.

    reward = w_forward Δx / dt + w_healthy [healthy] - w_ctrl ‖u‖² - clip(w_contact ‖f‖²)
    healthy: height strictly inside its range.
    x is the position of the centre of mass; u are MuJoCo's controls.
    """

    xml_file: str = "humanoid.xml"
    forward_reward_weight: float = 1.25
    contact_cost_weight: float = 5e-7
    contact_cost_range: Range = (-math.inf, 10.0)
    healthy_reward: float = 5.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: Range = (1.0, 2.0)

    contact: ClassVar[str] = "contact_cost"
    fields = ("qpos", "qvel", "xipos")
    remembers = ("xipos",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._mass = self.model.body_mass / self.model.body_mass.sum()

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:
        """See the class."""
        # Not a matrix product: BLAS rounds a row according to how many rows there are.
        moved = (now.xipos[:, :, 0] - before.xipos[:, :, 0]) * self._mass
        velocity = np.add.reduce(moved, axis=1) / self.dt
        healthy = _between(now.qpos[:, 2], self.healthy_z_range)
        return _moving_reward(self, velocity, self._cost(action, now), healthy)


@dataclass(kw_only=True)
class HumanoidStandup(_Humanoid):
    """HumanoidStandup-v5.

    reward = z / timestep - w_ctrl ‖u‖² - clip(w_impact ‖f‖²) + 1

    `uph_cost_weight` is accepted and has no effect, as in Gymnasium.
    """

    xml_file: str = "humanoidstandup.xml"
    uph_cost_weight: float = 1.0
    impact_cost_weight: float = 0.5e-6
    impact_cost_range: Range = (-math.inf, 10.0)

    contact: ClassVar[str] = "impact_cost"

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:  # noqa: ARG002
        """See the class."""
        height = now.qpos[:, 2] / self.model.opt.timestep
        return height - self._cost(action, now) + 1, never(len(height))
