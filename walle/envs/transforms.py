"""Changes the actions and observations that policy and lanes exchange, for all lanes at once."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium as gym
import numpy as np

from walle.envs.lanes import Lanes, StateArray, Step
from walle.types import AnyArray, IntArray


class _Wrapped:
    """Lanes around other lanes, with the same spaces until a subclass changes them."""

    def __init__(self, lanes: Lanes) -> None:
        self._inner = lanes
        self.moves, self.failed = lanes.moves, lanes.failed
        self.observation_space = lanes.observation_space
        self.action_space = lanes.action_space
        self.env_action_space = lanes.env_action_space
        self.episode_limit = lanes.episode_limit

    def __len__(self) -> int:
        return len(self._inner)

    def reset(self, seeds: Sequence[int] | None = None, only: IntArray | None = None) -> AnyArray:
        return self._inner.reset(seeds, only)

    def state(self) -> StateArray | None:
        return self._inner.state()

    def restore(self, state: StateArray) -> None:
        self._inner.restore(state)

    def close(self) -> None:
        self._inner.close()


class ActionMap:
    """Clips actions to finite bounds, after mapping [-1, 1] onto them if asked.

    Entries without two finite bounds are not mapped, and infinite bounds clip nothing. The
    environment's action is `scale` x + `centre`, clipped to [`low`, `high`], all [A], where x is
    the policy's action from the space `given`.
    """

    def __init__(self, space: gym.spaces.Box, *, rescale: bool) -> None:
        """Maps into `space`; without `rescale` actions are given in the environment's units."""
        self.low, self.high = low, high = space.low, space.high
        to_bounds = np.isfinite(low) & np.isfinite(high) & rescale
        self.scale = np.where(to_bounds, (high - low) / 2, 1).astype(low.dtype)
        self.centre = np.where(to_bounds, (high + low) / 2, 0).astype(low.dtype)
        least, most = np.where(to_bounds, -1, low), np.where(to_bounds, 1, high)
        self.given = gym.spaces.Box(
            least.astype(low.dtype), most.astype(low.dtype), dtype=low.dtype.type
        )
        self._only_clips = bool((self.scale == 1).all() and (self.centre == 0).all())

    def __call__(self, action: AnyArray) -> AnyArray:
        """The policy's actions [..., A] in the environment's units, in a new array.

        An environment may keep a reference to its action.
        """
        scaled = np.asarray(action, self.scale.dtype)
        if not self._only_clips:
            scaled = scaled * self.scale + self.centre
        clipped = np.maximum(scaled, self.low)  # np.clip takes 3x longer
        return np.minimum(clipped, self.high, out=clipped)


class RescaledActions(_Wrapped):
    """Lanes with a Box of actions, which go through an `ActionMap`."""

    def __init__(self, lanes: Lanes, *, rescale: bool) -> None:
        super().__init__(lanes)
        assert isinstance(lanes.action_space, gym.spaces.Box)
        self._map = ActionMap(lanes.action_space, rescale=rescale)
        self.action_space = self._map.given

    def step(self, action: AnyArray, only: IntArray | None = None) -> Step:
        """Applies the transformed actions."""
        return self._inner.step(self._map(action), only)


class TimeFeature(_Wrapped):
    """Appends the elapsed share of the episode to every observation.

    With a time limit the task is Markov only if the policy sees the clock (Pardo et al. 2018,
    "Time limits in reinforcement learning").
    """

    def __init__(self, lanes: Lanes, *, scale: float) -> None:
        """Wraps `lanes`; one step is worth `scale` of the feature."""
        super().__init__(lanes)
        space = lanes.observation_space
        self.observation_space = gym.spaces.Box(
            np.append(space.low, 0), np.append(space.high, np.inf), dtype=np.float64
        )
        self._scale = scale
        self._t = np.zeros(len(lanes))

    def reset(self, seeds: Sequence[int] | None = None, only: IntArray | None = None) -> AnyArray:
        """Starts new episodes and their clocks."""
        self._t[... if only is None else only] = 0
        return self._append(self._inner.reset(seeds, only))

    def step(self, action: AnyArray, only: IntArray | None = None) -> Step:
        """Steps the lanes and their clocks."""
        step = self._inner.step(action, only)
        self._t[... if only is None else only] += 1
        final_obs = None if step.final_obs is None else self._append(step.final_obs)
        self._t[step.terminated | step.truncated] = 0
        return step._replace(obs=self._append(step.obs), final_obs=final_obs)

    def state(self) -> StateArray | None:
        """See `Lanes.state`: the clock, then the state of the inner lane."""
        inner = self._inner.state()
        return None if inner is None else np.hstack((self._t[:, None].view(np.uint8), inner))

    def restore(self, state: StateArray) -> None:
        """See `Lanes.restore`."""
        size = self._t.itemsize
        self._t[:] = np.ascontiguousarray(state[:, :size]).view(self._t.dtype)[:, 0]
        self._inner.restore(state[:, size:])

    def _append(self, obs: AnyArray) -> AnyArray:
        return np.column_stack((obs, self._t * self._scale))
