"""Lanes of one MuJoCo task: everything but the physics is computed for all of them at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding

from walle.envs.lanes import Step
from walle.envs.mujoco.compiling import catch_warnings
from walle.envs.mujoco.physics import Array, Fields, make_physics
from walle.envs.mujoco.task import Task
from walle.types import AnyArray, BoolArray, IntArray


class MujocoLanes:
    """L lanes of one task, equal to as many Gymnasium environments reset with the same seeds.

    Every lane draws its initial states from a generator of its own, made as Gymnasium makes it.
    """

    def __init__(
        self,
        task: Task,
        seeds: Sequence[int],
        *,
        episode_limit: int | None = None,
        repeat: int = 1,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """Allocates the lanes; `reset` begins their first episodes.

        Args:
            task: what to simulate.
            seeds: one a lane.
            episode_limit: environment steps before an episode is truncated; None: never.
            repeat: environment steps an action is applied for, rewards summed. An episode's end
                cuts the repetition short.
            numbers: what error messages call the lanes; None: 0 to L-1.
        """
        if not seeds or repeat < 1 or (episode_limit is not None and episode_limit < 1):
            raise ValueError(
                f"at least one lane, repeat >= 1 and episode_limit >= 1 are needed, got "
                f"{len(seeds)} lanes, repeat={repeat}, episode_limit={episode_limit}"
            )
        self.action_space: gym.spaces.Box = task.action_space
        self.observation_space = gym.spaces.Box(
            -np.inf, np.inf, (task.observation_size,), dtype=np.float64
        )
        self._task = task
        self._repeat = repeat
        self._limit = np.iinfo(np.int64).max if episode_limit is None else episode_limit
        self._numbers = range(len(seeds)) if numbers is None else numbers
        self._generators = [seeding.np_random(seed)[0] for seed in seeds]
        self._warnings = catch_warnings()
        self._physics = make_physics(task.model, len(seeds), task.fields)
        self._now = self._physics.fields
        kept = {name: np.empty_like(getattr(self._now, name)) for name in task.remembers}
        self._before = Fields(kept)
        self._remembered = [(array, getattr(self._now, name)) for name, array in kept.items()]
        self._obs: Array = np.empty((len(seeds), task.observation_size))
        self._spare_obs: Array = np.empty_like(self._obs)
        self._elapsed: IntArray = np.zeros(len(seeds), dtype=np.int64)
        self._action_shape = (len(seeds), task.model.nu)
        self._step = 0

    def __len__(self) -> int:
        """The number of lanes, L."""
        return len(self._generators)

    def reset(self) -> AnyArray:
        """Begins a new episode in every lane; returns the first observations, [L, O]."""
        self._begin(np.arange(len(self)))
        self._observe()
        return self._obs

    def step(self, action: AnyArray) -> Step:
        """Applies action[i] to lane i. Lanes whose episode ends begin the next one at once.

        Args:
            action: [L, nu], within the control ranges or clipped to them by MuJoCo.

        Raises:
            ValueError: the action has another shape.
            FloatingPointError: a reward or an observation is not finite.
        """
        if action.shape != self._action_shape:
            raise ValueError(
                f"action has shape {action.shape}, but {len(self)} lanes of "
                f"{self._action_shape[1]} actuators need {self._action_shape}"
            )
        self._step += 1
        reward, terminated, truncated = self._advance(action, None)
        if self._repeat > 1:
            self._advance_again(action, reward, terminated, truncated)
        self._observe()
        if not math.isfinite(reward.dot(reward)):
            self._refuse_non_finite("reward", reward)
        final_obs = self._renew(terminated | truncated)
        return Step(self._obs, reward, terminated, truncated, final_obs)

    def close(self) -> None:
        """Does nothing: lanes hold only memory."""

    def _advance(
        self, action: AnyArray, lanes: IntArray | None
    ) -> tuple[npt.NDArray[np.floating], BoolArray, BoolArray]:
        """One environment step of `lanes` (None: all); what it gave, for all lanes."""
        for array, live in self._remembered:
            np.copyto(array, live)
        self._physics.step(action, self._task.frame_skip, lanes)
        if self._warnings.pending:
            self._warn()
        if lanes is None:
            self._elapsed += 1
        else:
            self._elapsed[lanes] += 1
        reward, terminated = self._task.outcome(self._before, action, self._now)
        return reward, terminated, self._elapsed >= self._limit

    def _advance_again(
        self,
        action: AnyArray,
        reward: npt.NDArray[np.floating],
        terminated: BoolArray,
        truncated: BoolArray,
    ) -> None:
        """The other environment steps of a repeated action, added to the first one's arrays."""
        for _ in range(self._repeat - 1):
            going = np.flatnonzero(~(terminated | truncated))
            if going.size == 0:
                return
            more, now_terminated, now_truncated = self._advance(action, going)
            reward[going] += more[going]
            terminated[going] = now_terminated[going]
            truncated[going] = now_truncated[going]

    def _observe(self) -> None:
        obs = self._obs
        self._task.observe(self._now, obs)
        flat = obs.reshape(-1)
        if not math.isfinite(flat.dot(flat)):
            self._refuse_non_finite("observation", obs)

    def _renew(self, ended: BoolArray) -> Array | None:
        """Begins a new episode where one ended; returns the last observations of the old ones."""
        if not np.count_nonzero(ended):
            return None
        self._begin(np.flatnonzero(ended))
        self._obs, self._spare_obs = self._spare_obs, self._obs
        self._observe()
        return self._spare_obs

    def _begin(self, lanes: IntArray) -> None:
        states = [self._task.begin(self._generators[i]) for i in lanes]
        qpos, qvel = (np.array(part) for part in zip(*states, strict=True))
        self._physics.reset(lanes, qpos, qvel)
        self._elapsed[lanes] = 0

    def _warn(self) -> None:
        lanes = [self._numbers[i] for i in self._physics.warned()]
        self._warnings.flush(f"step {self._step}, lanes {lanes}")

    def _refuse_non_finite(self, what: str, values: npt.NDArray[np.floating]) -> None:
        """Raises if an entry is not finite. Finite ones get here if their squares overflow."""
        bad = np.argwhere(~np.isfinite(values))
        if bad.size == 0:
            return
        lane, *entry = bad[0]
        where = f" entry {entry[0]}" if entry else ""
        raise FloatingPointError(
            f"{what}{where} of lane {self._numbers[lane]} is {values[tuple(bad[0])]} at step "
            f"{self._step}: it must be finite. An unstable simulation, a division by zero or a "
            f"non-finite action are the usual causes."
        )
