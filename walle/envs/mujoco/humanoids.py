"""Free bodies that observe contact forces: Gymnasium's Ant, Humanoid and HumanoidStandup, v5."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

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


def _rows(bodies: Array) -> Array:
    """[L, n, k] as [L, n k], one row for every lane."""
    return bodies.reshape(len(bodies), -1)


@dataclass(kw_only=True)
class Ant(PoseTask):
    """Ant-v5.

    reward = w_forward Δx / dt + w_healthy [healthy] - w_ctrl ‖a‖² - w_contact ‖clip(f)‖²
    obs = (positions without x and y, velocities, contact forces on every body but the world)
    healthy: positions and velocities finite, height inside its closed range.
    x belongs to `main_body`.
    """

    xml_file: str = "ant.xml"
    frame_skip: int = 5
    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    healthy_reward: float = 1.0
    main_body: int | str = 1
    terminate_when_unhealthy: bool = True
    healthy_z_range: tuple[float, float] = (0.2, 1.0)
    contact_force_range: tuple[float, float] = (-1.0, 1.0)
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = True
    include_cfrc_ext_in_observation: bool = True

    remembers = ("xpos",)
    normal_velocities: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Finds the main body, and asks for contact forces if they are shown or cost something."""
        if self.exclude_current_positions_from_observation:
            self.hidden = 2
        super().__post_init__()
        self._main = int(self.model.body(self.main_body).id)
        self._first_force = self.observation_size
        felt = self.include_cfrc_ext_in_observation or self.contact_cost_weight != 0
        self.fields = ("qpos", "qvel", "xpos", *(("cfrc_ext",) if felt else ()))
        if self.include_cfrc_ext_in_observation:
            self.observation_size += 6 * int(self.model.nbody - 1)

    def observe(self, now: Fields, out: Array) -> None:
        """See the class."""
        super().observe(now, out)
        if self.include_cfrc_ext_in_observation:
            forces = _rows(now.cfrc_ext[:, 1:])
            clip(forces, self.contact_force_range, out=out[:, self._first_force :])

    def healthy(self, now: Fields) -> BoolArray:
        """Whether each lane is upright enough, [L]."""
        low, high = self.healthy_z_range
        height = now.qpos[:, 2]
        inside: BoolArray = (low <= height) & (height <= high)
        finite = every(np.isfinite(now.qpos)) & every(np.isfinite(now.qvel))
        return inside & finite

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:
        """See the class."""
        velocity = (now.xpos[:, self._main, 0] - before.xpos[:, self._main, 0]) / self.dt
        healthy = self.healthy(now)
        gain = velocity * self.forward_reward_weight + healthy * self.healthy_reward
        cost = self.ctrl_cost_weight * square_sum(action) + self._contact_cost(now)
        reward = gain - cost
        ended = ~healthy if self.terminate_when_unhealthy else never(len(reward))
        return RewardAndEnd(reward, ended)

    def _contact_cost(self, now: Fields) -> npt.NDArray[np.floating] | float:
        if self.contact_cost_weight == 0:
            return 0.0
        forces = clip(_rows(now.cfrc_ext), self.contact_force_range)
        return self.contact_cost_weight * square_sum(forces)


@dataclass(kw_only=True)
class _Humanoid(PoseTask):
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

    def _lay_out(self, contact_weight: float, contact_range: tuple[float, float]) -> None:
        """Lays the observation out: field, first row or entry shown, columns.

        `contact_weight` times the squared contact forces, clipped to `contact_range`, is a cost.
        """
        self._contact_weight, self._contact_range = contact_weight, contact_range
        hidden = 2 if self.exclude_current_positions_from_observation else 0
        bodies = self.model.nbody - 1
        parts = [
            ("qpos", hidden, self.model.nq - hidden, True),
            ("qvel", 0, self.model.nv, True),
            ("cinert", 1, 10 * bodies, self.include_cinert_in_observation),
            ("cvel", 1, 6 * bodies, self.include_cvel_in_observation),
            # The free joint's six entries have no actuator.
            ("qfrc_actuator", 6, self.model.nv - 6, self.include_qfrc_actuator_in_observation),
            ("cfrc_ext", 1, 6 * bodies, self.include_cfrc_ext_in_observation),
        ]
        self._layout: list[tuple[str, int, slice]] = []
        start = 0
        for field, first, size, shown in parts:
            if shown:
                self._layout.append((field, first, slice(start, start + size)))
                start += size
        self.observation_size = start
        visible = (field for field, _, _ in self._layout)
        felt = ("cfrc_ext",) if contact_weight != 0 else ()
        self.fields = tuple(dict.fromkeys((*visible, *self.remembers, *felt)))

    def observe(self, now: Fields, out: Array) -> None:
        """See the class."""
        for field, first, columns in self._layout:
            out[:, columns] = _rows(getattr(now, field)[:, first:])

    def _contact_cost(self, now: Fields) -> Array | float:
        low, high = self._contact_range
        if self._contact_weight == 0:
            return min(max(0.0, low), high)
        force = square_sum(_rows(now.cfrc_ext)).astype(np.float64, copy=False)
        return clip(self._contact_weight * force, self._contact_range)

    def _control_cost(self, action: AnyArray) -> npt.NDArray[np.floating]:
        # Gymnasium computes this from MuJoCo's controls, which have double precision.
        return self.ctrl_cost_weight * square_sum(action.astype(np.float64))


@dataclass(kw_only=True)
class Humanoid(_Humanoid):
    """Humanoid-v5.

    reward = w_forward Δx / dt + w_healthy [healthy] - w_ctrl ‖u‖² - clip(w_contact ‖f‖²)
    healthy: height strictly inside its range.
    x belongs to the centre of mass.
    """

    xml_file: str = "humanoid.xml"
    forward_reward_weight: float = 1.25
    contact_cost_weight: float = 5e-7
    contact_cost_range: tuple[float, float] = (-math.inf, 10.0)
    healthy_reward: float = 5.0
    terminate_when_unhealthy: bool = True
    healthy_z_range: tuple[float, float] = (1.0, 2.0)

    remembers = ("xipos",)

    def __post_init__(self) -> None:
        """Weighs the bodies."""
        super().__post_init__()
        self._lay_out(self.contact_cost_weight, self.contact_cost_range)
        self._mass = self.model.body_mass / self.model.body_mass.sum()

    def healthy(self, now: Fields) -> BoolArray:
        """Whether each lane stands, [L]."""
        return between(now.qpos[:, 2], self.healthy_z_range)

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:
        """See the class."""
        # Not a matrix product: BLAS rounds a row according to how many rows there are.
        moved = (now.xipos[:, :, 0] - before.xipos[:, :, 0]) * self._mass
        velocity = np.add.reduce(moved, axis=1) / self.dt
        healthy = self.healthy(now)
        gain = self.forward_reward_weight * velocity + self.healthy_reward * healthy
        cost = self._control_cost(action) + self._contact_cost(now)
        reward: Array = gain - cost
        ended = ~healthy if self.terminate_when_unhealthy else never(len(reward))
        return RewardAndEnd(reward, ended)


@dataclass(kw_only=True)
class HumanoidStandup(_Humanoid):
    """HumanoidStandup-v5.

    reward = z / timestep - w_ctrl ‖u‖² - clip(w_impact ‖f‖²) + 1

    `uph_cost_weight` is accepted and has no effect, as in Gymnasium.
    """

    xml_file: str = "humanoidstandup.xml"
    uph_cost_weight: float = 1.0
    impact_cost_weight: float = 0.5e-6
    impact_cost_range: tuple[float, float] = (-math.inf, 10.0)

    def __post_init__(self) -> None:
        """Compiles the model and lays the observation out."""
        super().__post_init__()
        self._lay_out(self.impact_cost_weight, self.impact_cost_range)

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:  # noqa: ARG002
        """See the class."""
        height = now.qpos[:, 2] / self.model.opt.timestep
        cost = self._control_cost(action) + self._contact_cost(now)
        return RewardAndEnd(height - cost + 1, never(len(height)))
