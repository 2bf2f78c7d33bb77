"""Changes the actions and observations that policy and lanes exchange, for all lanes at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np

from walle.envs.lanes import EnvSpec, Lanes, StateArray, Step
from walle.errors import ConfigError
from walle.types import ActionSpace, AnyArray, IntArray


class ActionMap:
    """Clips actions to finite bounds, after mapping [-1, 1] onto them if asked.

    Entries without two finite bounds are not mapped, and infinite bounds clip nothing. The
    environment's action is `scale` x + `centre`, clipped to [`low`, `high`], all [A], where x is
    the policy's action from the space `given`.
    """

    def __init__(self, space: gym.spaces.Box, spec: EnvSpec) -> None:
        """Maps into the bounds of `space` and `spec`; ValueError if no action is within both."""
        dtype = space.low.dtype
        # Bounds at the ends of a type count as infinite: their difference would overflow.
        huge = min(float(np.finfo(kind).max) for kind in (dtype.name, "float32")) / 2
        low, high = (
            np.where(np.abs(x) < huge, x, np.copysign(np.inf, x)).astype(np.float64)
            for x in (space.low, space.high)
        )
        given = (spec.action_low, low, np.maximum), (spec.action_high, high, np.minimum)
        for value, bound, inner in given:
            if bool in map(type, value if isinstance(value, list) else [value]):
                raise TypeError("true and false are no numbers")
            if value is not None:
                inner(bound, np.asarray(value, np.float64), out=bound)
        if not ((low < high) | (space.low == space.high)).all():
            raise ValueError("no action is between the bounds")
        to_bounds = np.isfinite(low) & np.isfinite(high) & (spec.action == "rescale")
        least, most = np.where(to_bounds, low, -1), np.where(to_bounds, high, 1)
        self._dtype, exact = dtype, np.result_type(dtype, np.float32)  # half floats round early
        self.scale = ((most - least) / 2).astype(exact)
        self.centre = ((most + least) / 2).astype(exact)
        self.low, self.high = (x.astype(dtype).astype(exact) for x in (low, high))
        least, most = np.where(to_bounds, -1, self.low), np.where(to_bounds, 1, self.high)
        self.given = gym.spaces.Box(least.astype(dtype), most.astype(dtype), dtype=dtype.type)
        self._only_clips = bool((self.scale == 1).all() and (self.centre == 0).all())

    def __call__(self, action: AnyArray) -> AnyArray:
        """The policy's actions [..., A] in the environment's units, in a new array.

        The array is new because an environment may keep a reference to its action.
        """
        scaled = np.asarray(action, self.scale.dtype)
        if not self._only_clips:
            scaled = scaled * self.scale + self.centre
        clipped = np.maximum(scaled, self.low)  # np.clip takes 3x longer
        np.minimum(clipped, self.high, out=clipped)
        return np.asarray(clipped, self._dtype)


def action_map(space: ActionSpace, spec: EnvSpec) -> ActionMap | None:
    """The map of a policy's actions into `space`; None if they pass unchanged."""
    if isinstance(space, gym.spaces.Box) and spec.action != "raw":
        with suppress(TypeError, ValueError):
            return ActionMap(space, spec)
    elif (spec.action_low, spec.action_high) == (None, None):
        return None
    raise ConfigError(
        f"env.action_low={spec.action_low} and env.action_high={spec.action_high} with env.action="
        f"{spec.action} and actions {space}: give a number, or for a Box a flat list, row after "
        "row, the low ones below the high ones, with env.action=rescale or clip"
    )


class MappedLanes:
    """Lanes whose actions pass through an `ActionMap` and whose observations are changed.

    `EnvSpec.offset` is subtracted from observations, and the elapsed share of the episode is
    appended: with a time limit the task is Markov only if the policy sees the clock (Pardo et al.
    2018, "Time limits in reinforcement learning").
    """

    def __init__(self, lanes: Lanes, map_: ActionMap | None, scale: float | None, offset: Any):
        """Wraps `lanes`; a step advances the clock by `scale`. Arguments of None change nothing."""
        self._inner, self._map = lanes, map_
        self.moves, self.failed = lanes.moves, lanes.failed
        self.observation_space = space = lanes.observation_space
        if scale is not None:
            self.observation_space = gym.spaces.Box(
                np.append(space.low, 0), np.append(space.high, np.inf), dtype=np.float64
            )
        self.action_space = lanes.action_space if map_ is None else map_.given
        self.env_action_space = lanes.env_action_space
        self.episode_limit = lanes.episode_limit
        self._scale, self._offset = scale, None if offset is None else np.array(offset)
        self._maps_obs = (scale, offset) != (None, None)  # states have the clock only then
        self._t = np.zeros(len(lanes))

    def __len__(self) -> int:
        return len(self._inner)

    def reset(self, seeds: Sequence[int] | None = None, only: IntArray | None = None) -> AnyArray:
        """Starts new episodes and their clocks."""
        self._t[... if only is None else only] = 0
        return self._mapped(self._inner.reset(seeds, only))

    def step(self, action: AnyArray, only: IntArray | None = None) -> Step:
        """Steps the lanes and their clocks."""
        step = self._inner.step(action if self._map is None else self._map(action), only)
        if not self._maps_obs:
            return step
        self._t[... if only is None else only] += 1
        final_obs = None if step.final_obs is None else self._mapped(step.final_obs)
        self._t[step.terminated | step.truncated] = 0
        return step._replace(obs=self._mapped(step.obs), final_obs=final_obs)

    def state(self) -> StateArray | None:
        """See `Lanes.state`: the clock, then the state of the inner lane."""
        inner = self._inner.state()
        if inner is None or not self._maps_obs:
            return inner
        return np.hstack((self._t[:, None].view(np.uint8), inner))

    def restore(self, state: StateArray) -> None:
        """See `Lanes.restore`."""
        size = self._t.itemsize if self._maps_obs else 0
        if size:
            self._t[:] = np.ascontiguousarray(state[:, :size]).view(self._t.dtype)[:, 0]
        self._inner.restore(state[:, size:])

    def close(self) -> None:
        """See `Lanes.close`."""
        self._inner.close()

    def _mapped(self, obs: AnyArray) -> AnyArray:
        if self._scale is not None:
            obs = np.column_stack((obs, self._t * self._scale))
        return obs if self._offset is None else np.asarray(np.subtract(obs, self._offset))
