"""Lanes run by EnvPool: Weng et al. 2022, "EnvPool: a highly parallel RL environment engine".

EnvPool draws initial states with its own generators and brings its own MuJoCo, so its environment
is the same task as Gymnasium's of the same id, with different results. Therefore `env.backend=auto`
never chooses it. Every lane has its own seed, and its results are the same in pools of any size, so
that a run stays bit-identical for every `sampler.n`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from walle.envs.lanes import EnvSpec, StateArray, Step, from_zero, numbers_in, supported_actions
from walle.errors import ConfigError, nearest
from walle.streams import Role, env_seed
from walle.types import AnyArray, BoolArray, InfoColumn, IntArray

_SET_BY_WALLE = ("batch_size", "env_type", "max_episode_steps", "num_envs", "num_threads", "seed")


class EnvpoolLanes:
    """A pool of L environments on one thread, which works while the sampler's thread waits.

    By default, EnvPool spends the step after an episode's end on the reset. These lanes reset an
    environment at once, so that every step is a real one.
    """

    moves = False
    failed: BoolArray | None = None  # so that `only` is never given

    def __init__(self, spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role = "train"):
        self._lanes = list(lanes)
        # EnvPool takes seeds of 31 bits.
        seeds = [env_seed(seed, lane, role) >> 1 for lane in self._lanes]
        self._pool = _make_pool(spec, seeds)
        where = f"env.backend=envpool: {spec.id}"
        space = self._pool.observation_space
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            raise ConfigError(
                f"{where} has observations {space}; walle takes one-dimensional Box observations"
                " from EnvPool"
            )
        self.observation_space = space
        self.env_action_space = supported_actions(
            self._pool.action_space, where, "use env.backend=gymnasium with a wrapper"
        )
        self.action_space, _, self._shape = from_zero(self.env_action_space)  # they start at 0
        discrete = isinstance(self.action_space, gym.spaces.Discrete)
        self._action_dtype = np.int32 if discrete else self.action_space.dtype
        self.episode_limit: int | None = int(self._pool.spec.config.max_episode_steps)
        self._names = [InfoColumn.of(entry).name for entry in spec.info]

    def __len__(self) -> int:
        return len(self._lanes)

    def reset(
        self,
        seeds: Sequence[int] | None = None,
        only: IntArray | None = None,  # noqa: ARG002
    ) -> AnyArray:
        """Starts a new episode in every lane; returns [L, O]."""
        if seeds is not None:
            raise ConfigError("env.backend=envpool cannot start an episode from a new seed")
        obs: AnyArray = self._pool.reset()[0].copy()
        return obs

    def step(self, action: AnyArray, only: IntArray | None = None) -> Step:  # noqa: ARG002
        """Applies action[i] to lane i and resets the lanes whose episode ended."""
        action = np.ascontiguousarray(action, self._action_dtype)
        if self._shape is not None:
            action = action.reshape(len(self), *self._shape)
        result = self._pool.step(action)
        obs, reward, terminated, truncated, infos = result
        terminated, truncated = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        numbers = None
        if self._names:  # infos have arrays with the lanes first
            rows = ({k: infos[k][i] for k in self._names if k in infos} for i in range(len(self)))
            numbers = np.array([numbers_in(row, self._names) for row in rows])
        ended = np.flatnonzero(terminated | truncated).astype(np.int32)
        if ended.size == 0:
            return Step(obs, reward, terminated, truncated, None, numbers)
        following = obs.copy()
        first, info = self._pool.reset(ended)
        following[info["env_id"]] = first
        return Step(following, reward, terminated, truncated, obs, numbers)

    def state(self) -> None:
        """None: EnvPool does not expose its state."""

    def restore(self, state: StateArray) -> None:  # noqa: ARG002
        """Raises: there is no `state`."""
        raise ConfigError(
            "env.backend=envpool cannot continue from a saved state; use env.backend=auto"
        )

    def close(self) -> None:
        """Ends the pool's thread."""
        self._pool.close()


def _make_pool(spec: EnvSpec, seeds: list[int]) -> Any:
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"env.backend=envpool needs a package that is missing ({error.name}); "
            "install walle[envpool], or use env.backend=auto"
        ) from None
    if spec.id not in envpool.list_all_envs():
        raise ConfigError(
            f"env.backend=envpool: EnvPool has no env.id={spec.id!r}; "
            f"{nearest(spec.id, envpool.list_all_envs())}"
        )
    if spec.frame_skip != 1:
        raise ConfigError(
            f"env.frame_skip={spec.frame_skip} with env.backend=envpool, which repeats no actions; "
            "use env.frame_skip=1, or EnvPool's own argument: +env.kwargs.frame_skip=..."
        )
    known = set(envpool.make_spec(spec.id).config._fields) - set(_SET_BY_WALLE)
    for name in spec.kwargs:
        if name in _SET_BY_WALLE:
            raise ConfigError(f"env.kwargs.{name}: walle sets this argument of EnvPool itself")
        if name not in known:
            hint = f"EnvPool's {spec.id} has no such argument; {nearest(name, known)}"
            raise ConfigError(f"env.kwargs.{name}: {hint}")
    limit = {} if spec.episode_limit is None else {"max_episode_steps": spec.episode_limit}
    try:
        return envpool.make(
            spec.id,
            env_type="gymnasium",
            num_envs=len(seeds),
            num_threads=1,
            seed=seeds,
            **limit,
            **spec.kwargs,
        )
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"env.kwargs={spec.shown_kwargs}: EnvPool reports: {error}") from error
