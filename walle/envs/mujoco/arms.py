"""Arms that reach and push: Gymnasium's Reacher and Pusher, v5."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from walle.envs.mujoco.physics import Array, Fields
from walle.envs.mujoco.task import GymnasiumTask, RewardAndEnd, State, never, square_sum
from walle.types import AnyArray


def _distance(offset: Array) -> Array:
    """The Euclidean length of each row."""
    lengths: Array = np.sqrt(np.add.reduce(np.square(offset), axis=1))
    return lengths


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
        """Finds the bodies."""
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
        return State(qpos, qvel)

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
        cost = self.reward_control_weight * square_sum(action)
        reward = -self.reward_dist_weight * _distance(offset) - cost
        return RewardAndEnd(reward, never(len(reward)))


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
        """Finds the bodies."""
        super().__post_init__()
        self._tip, self._object, self._goal = (
            int(self.model.body(name).id) for name in ("tips_arm", "object", "goal")
        )

    def begin(self, random: np.random.Generator) -> State:
        """The arm at rest, the goal at the origin, the object at least 0.17 m from it."""
        place = self._draw_place(random)
        while np.linalg.norm(place) <= 0.17:
            place = self._draw_place(random)
        qpos = self.rest.copy()
        qpos[-4:] = (*place, 0.0, 0.0)
        qvel = random.uniform(-0.005, 0.005, self.model.nv)
        qvel[-4:] = 0
        return State(qpos, qvel)

    @staticmethod
    def _draw_place(random: np.random.Generator) -> tuple[float, float]:
        return random.uniform(-0.3, 0), random.uniform(-0.2, 0.2)

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
        near = self.reward_near_weight * _distance(thing - xpos[:, self._tip])
        far = self.reward_dist_weight * _distance(thing - xpos[:, self._goal])
        reward = -far - self.reward_control_weight * square_sum(action) - near
        return RewardAndEnd(reward, never(len(reward)))
