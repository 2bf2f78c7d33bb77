"""Lanes of one MuJoCo task: observations, rewards and ends are computed for all lanes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding

from walle.envs.lanes import StateArray, Step
from walle.envs.mujoco import physics
from walle.envs.mujoco.physics import Array, Fields
from walle.envs.mujoco.task import LaneError, RewardAndEnd, Task
from walle.envs.saving import pack, unpack
from walle.errors import RolloutError, WorkerError, print_fault, what_went_wrong
from walle.types import ActionSpace, AnyArray, BoolArray, IntArray


class MujocoLanes:
    """L lanes of one task, with the results of L Gymnasium environments with the same seeds.

    Every lane draws its initial states from a generator made as Gymnasium makes it.
    """

    moves = True

    def __init__(
        self,
        task: Task,  # what to simulate
        seeds: Sequence[int],  # an integer for every lane
        *,
        episode_limit: int | None = None,  # environment steps before truncation; None: never
        repeat: int = 1,  # steps that apply an action, rewards summed; fewer if an episode ends
        numbers: Sequence[int] | None = None,  # the lanes' numbers in messages; None: 0 to L-1
        on_error: str = "stop",  # see `EnvSpec`
    ) -> None:
        lanes = len(seeds)
        self.observation_space: gym.spaces.Box = gym.spaces.Box(
            -np.inf, np.inf, (task.observation_size,), dtype=np.float64
        )
        self.action_space: ActionSpace = task.action_space
        self.env_action_space: ActionSpace = task.action_space
        self.episode_limit = episode_limit
        self.model, self.frame_skip = task.model, task.frame_skip
        self._task = task
        self._repeat = repeat
        self._limit = np.iinfo(np.int64).max if episode_limit is None else episode_limit
        self._numbers = range(lanes) if numbers is None else numbers
        self._generators = [seeding.np_random(seed)[0] for seed in seeds]
        physics.catch_mujoco_warnings()
        self._physics = physics.make_physics(task.model, lanes, task.fields)
        self._now = self._physics.fields
        kept = {name: np.empty_like(getattr(self._now, name)) for name in task.remembers}
        self._before = Fields(kept)
        self._remembered = [(array, getattr(self._now, name)) for name, array in kept.items()]
        self._restored = False  # if so, `_before` holds the fields from before the next step
        self._obs: Array = np.empty((lanes, task.observation_size))
        self._spare_obs: Array = np.empty_like(self._obs)
        self._elapsed: IntArray = np.zeros(lanes, dtype=np.int64)
        self.failed: BoolArray | None = np.zeros(lanes, np.bool_) if on_error == "reset" else None
        self._steps = 0

    def __len__(self) -> int:
        return len(self._generators)

    def reset(self, seeds: Sequence[int] | None = None, only: IntArray | None = None) -> AnyArray:
        """See `Lanes.reset`."""
        if seeds is not None:
            self._generators = [seeding.np_random(seed)[0] for seed in seeds]
        self._restored = False
        lanes = np.arange(len(self)) if only is None else only
        if self.failed is not None:
            self.failed[lanes] = False
        self._begin(lanes)
        return self._observe(lanes)

    def step(self, action: AnyArray, only: IntArray | None = None) -> Step:
        """Applies action[i] to lane i. Lanes whose episode ends start the next one at once."""
        if action.shape != (needed := (len(self), self.model.nu)):
            raise ValueError(
                f"action has shape {action.shape}, but {needed[0]} lanes of {needed[1]} actuators "
                f"need {needed}"
            )
        self._steps += only is None
        (reward, terminated), truncated = self._advance(action, only)
        for _ in range(self._repeat - 1):
            going = np.flatnonzero(~(terminated | truncated))
            going = going if only is None else np.intersect1d(going, only)
            if going.size == 0:
                break
            (more, terminated_now), truncated_now = self._advance(action, going)
            reward[going] += more[going]
            terminated[going] = terminated_now[going]
            truncated[going] = truncated_now[going]
        final_obs = self._observe(only)
        ended = terminated | truncated
        if only is not None:
            ended &= np.isin(np.arange(len(self)), only)
        if np.count_nonzero(ended) == 0:
            return Step(final_obs, reward, terminated, truncated, None)
        self._obs, self._spare_obs = self._spare_obs, final_obs
        self._begin(np.flatnonzero(ended))
        return Step(self._observe(only), reward, terminated, truncated, final_obs)

    def close(self) -> None:
        """Does nothing, since lanes hold only memory."""

    def _advance(self, action: AnyArray, lanes: IntArray | None) -> tuple[RewardAndEnd, BoolArray]:
        """Steps `lanes` (None: all) once; returns rewards, ends and truncations of all lanes."""
        if not self._restored:
            for array, live in self._remembered:
                np.copyto(array, live)
        self._restored = False
        self._physics.step(action, self._task.frame_skip, lanes)
        self._warn()
        self._elapsed[slice(None) if lanes is None else lanes] += 1
        try:
            result = self._task.reward_and_end(self._before, action, self._now)
        except Exception as fault:  # noqa: BLE001
            result = np.full(len(self), np.nan), np.zeros(len(self), np.bool_)

            def one(row: slice) -> None:
                fields = self._before.rows(row), action[row], self._now.rows(row)
                result[0][row], result[1][row] = self._task.reward_and_end(*fields)

            self._each(one, lanes, fault)
        return result, self._elapsed >= self._limit

    def _observe(self, lanes: IntArray | None) -> Array:
        obs, observe = self._obs, self._task.observe
        try:
            observe(self._now, obs)
        except Exception as fault:  # noqa: BLE001
            self._each(lambda row: observe(self._now.rows(row), obs[row]), lanes, fault)
        return obs

    def _each(self, one: Callable[[slice], None], lanes: IntArray | None, fault: Exception) -> None:
        """Computes each of `lanes` (None: all) alone, because all at once raised `fault`."""
        if isinstance(fault, WorkerError):  # a signal handler raised it
            raise fault
        if self.failed is None:
            raise self._located(fault) from fault
        for i in range(len(self)) if lanes is None else lanes.tolist():
            try:
                one(slice(i, i + 1))
            except Exception as error:  # noqa: BLE001
                self._note(error, i)

    def _note(self, error: Exception, i: int) -> None:
        if self.failed is None or isinstance(error, WorkerError):
            raise error
        self.failed[i] = True
        error.add_note(f"in lane {self._numbers[i]} at step {self._steps}")
        print_fault(error)

    def _begin(self, lanes: IntArray) -> None:
        qpos = np.tile(self._task.rest, (len(lanes), 1))
        qvel = np.zeros((len(lanes), self.model.nv))
        for row, i in enumerate(lanes.tolist()):
            try:
                qpos[row], qvel[row] = self._task.begin(self._generators[i])
            except Exception as error:  # noqa: BLE001
                self._note(error, i)
        self._physics.reset(lanes, qpos, qvel)
        self._warn()
        self._elapsed[lanes] = 0

    def state(self) -> StateArray | None:
        """See `Lanes.state`: physics, remembered fields, elapsed steps and generator of a lane."""
        if not self._physics.saves:
            return None
        fields = self._before if self._restored else self._now
        columns = [
            self._physics.state(),
            *(getattr(fields, name).reshape(len(self), -1) for name in self._task.remembers),
            self._elapsed[:, None].astype(np.float64),
            np.stack([pack(generator) for generator in self._generators]).view(np.float64),
        ]
        return np.concatenate(columns, 1).view(np.uint8)

    def restore(self, state: StateArray) -> None:
        """See `Lanes.restore`."""
        columns = np.ascontiguousarray(state).view(np.float64)
        sizes = (array[0].size for array, _ in self._remembered)
        ends = np.cumsum([self._physics.state().shape[1], *sizes, 1])
        integration, *remembered, elapsed, generators = np.split(columns, ends, axis=1)
        self._physics.restore(integration)
        for (array, _), rows in zip(self._remembered, remembered, strict=True):
            array[:] = rows.reshape(array.shape)
        self._restored = bool(self._remembered)
        self._elapsed[:] = elapsed[:, 0].astype(np.int64)
        words = np.ascontiguousarray(generators).view(np.uint64)
        for row, generator in zip(words, self._generators, strict=True):
            unpack(row, generator)

    def _located(self, fault: Exception) -> RolloutError:
        """Adds step and lanes to `fault`: a robot's functions see all lanes at once."""
        where = f"step {self._steps} of lanes {self._numbers[0]} to {self._numbers[-1]}"
        if isinstance(fault, LaneError):
            where = f"step {self._steps}, lane {self._numbers[fault.index]}"
        text = str(fault) if isinstance(fault, RolloutError) else what_went_wrong(fault)
        return RolloutError(f"{text} ({where})")

    def _warn(self) -> None:
        if physics.pending_warnings:
            lanes = ", ".join(str(self._numbers[i]) for i in self._physics.warned())
            physics.issue_mujoco_warnings(f"step {self._steps}, lane {lanes}")
