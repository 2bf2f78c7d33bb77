"""Poles on carts: Gymnasium's InvertedPendulum and InvertedDoublePendulum, v5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from walle.envs.mujoco.physics import Array, Fields
from walle.envs.mujoco.task import PoseTask, RewardAndEnd, clip, every
from walle.types import AnyArray


@dataclass(kw_only=True)
class InvertedPendulum(PoseTask):
    """InvertedPendulum-v5.

    reward = [not terminated]
    terminated: the pole leans by more than 0.2 rad, or something is not finite.
    """

    xml_file: str = "inverted_pendulum.xml"
    frame_skip: int = 2
    reset_noise_scale: float = 0.01

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:  # noqa: ARG002
        """See the class."""
        fallen = np.abs(now.qpos[:, 1]) > 0.2
        finite = every(np.isfinite(now.qpos)) & every(np.isfinite(now.qvel))
        terminated = fallen | ~finite
        return RewardAndEnd((~terminated).astype(np.float64), terminated)


@dataclass(kw_only=True)
class InvertedDoublePendulum(PoseTask):
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
        """Compiles the model and counts the observation's entries."""
        super().__post_init__()
        self.observation_size = 1 + 2 * int(self.model.nq - 1) + int(self.model.nv) + 1

    def observe(self, now: Fields, out: Array) -> None:
        """See the class."""
        angles = now.qpos[:, 1:].copy()  # NumPy may round sines of strided arrays differently
        n = angles.shape[1]
        out[:, 0] = now.qpos[:, 0]
        out[:, 1 : 1 + n] = np.sin(angles)
        out[:, 1 + n : 1 + 2 * n] = np.cos(angles)
        clip(now.qvel, (-10, 10), out=out[:, 1 + 2 * n : -1])
        clip(now.qfrc_constraint[:, 0], (-10, 10), out=out[:, -1])

    def reward_and_end(self, before: Fields, action: AnyArray, now: Fields) -> RewardAndEnd:  # noqa: ARG002
        """See the class."""
        x, y = now.site_xpos[:, 0, 0], now.site_xpos[:, 0, 2]
        v1, v2 = now.qvel[:, 1], now.qvel[:, 2]
        fallen = y <= 1
        alive = self.healthy_reward * ~fallen
        swing = 1e-3 * np.square(v1) + 5e-3 * np.square(v2)
        return RewardAndEnd(alive - (0.01 * np.square(x) + np.square(y - 2)) - swing, fallen)
