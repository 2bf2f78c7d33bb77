"""Lanes that EnvPool runs: Weng et al. 2022, "EnvPool: a highly parallel RL environment engine".

EnvPool draws its initial states by generators of its own and brings its own MuJoCo, so an
environment of the same id is the same task but not the same numbers as Gymnasium's. That is why
`env.backend=auto` never takes it. Every lane has a seed of its own, and what a lane does was the
same in pools of any size, so a run remains bit-identical for every `sampler.n`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from walle.envs.lanes import EnvSpec, Step
from walle.errors import ConfigError, nearest
from walle.streams import Role, env_seed
from walle.types import AnyArray, BoolArray

_OURS = ("batch_size", "env_type", "max_episode_steps", "num_envs", "num_threads", "seed")


class EnvpoolLanes:
    """A pool of L environments on one thread, which works while the sampler's own waits.

    EnvPool returns the last observation of an episode, and resets an environment in the step after
    it. These lanes reset it at once instead, so that no step is lost and none is invented.
    """

    def __init__(
        self, spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role = "train"
    ) -> None:
        """Makes the pool.

        Raises:
            ConfigError: EnvPool is not installed, does not have the environment, or does not know
                an argument; or the spaces are not those that walle takes.
        """
        self._lanes = list(lanes)
        # EnvPool takes seeds of 31 bits.
        seeds = [env_seed(seed, lane, role) >> 1 for lane in self._lanes]
        self._pool = _make_pool(spec, seeds)
        self.observation_space = _flat_observations(spec, self._pool.observation_space)
        self.action_space = _supported_actions(spec, self._pool.action_space)
        discrete = isinstance(self.action_space, gym.spaces.Discrete)
        self._action_dtype = np.int32 if discrete else self.action_space.dtype
        self.episode_limit: int | None = int(self._pool.spec.config.max_episode_steps)

    def __len__(self) -> int:
        """The number of lanes."""
        return len(self._lanes)

    def reset(self, seeds: Sequence[int] | None = None) -> AnyArray:
        """Begins a new episode in every lane; returns [L, O].

        Raises:
            ConfigError: seeds were given, which EnvPool takes when it is made and never again.
        """
        if seeds is not None:
            raise ConfigError("env.backend=envpool cannot begin an episode from a seed of its own")
        obs: AnyArray = self._pool.reset()[0].copy()
        return obs

    def step(self, action: AnyArray) -> Step:
        """Applies action[i] to lane i and resets the lanes whose episode ended."""
        result = self._pool.step(np.ascontiguousarray(action, self._action_dtype))
        obs, reward, terminated, truncated, _ = result
        terminated = _as_bool(terminated)
        truncated = _as_bool(truncated)
        ended = np.flatnonzero(terminated | truncated).astype(np.int32)
        if ended.size == 0:
            return Step(obs, reward, terminated, truncated, None)
        following = obs.copy()
        first, info = self._pool.reset(ended)
        following[info["env_id"]] = first
        return Step(following, reward, terminated, truncated, obs)

    def close(self) -> None:
        """Ends the pool's thread."""
        self._pool.close()


def _as_bool(flags: AnyArray) -> BoolArray:
    return np.asarray(flags, np.bool_)


def _make_pool(spec: EnvSpec, seeds: list[int]) -> Any:
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"env.backend=envpool needs a package that is missing ({error.name}); "
            "install walle[envpool], or use env.backend=auto"
        ) from None
    _check(spec, envpool)
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
        raise ConfigError(f"env.kwargs={spec.kwargs}: EnvPool says: {error}") from error


def _check(spec: EnvSpec, envpool: Any) -> None:
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
    known = set(envpool.make_spec(spec.id).config._fields) - set(_OURS)
    for name in spec.kwargs:
        if name in _OURS:
            raise ConfigError(f"env.kwargs.{name}: walle sets this argument of EnvPool's itself")
        if name not in known:
            hint = nearest(name, known)
            raise ConfigError(
                f"env.kwargs.{name}: EnvPool's {spec.id} has no such argument; {hint}"
            )


def _flat_observations(spec: EnvSpec, space: gym.Space[Any]) -> gym.spaces.Box:
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1:
        return space
    raise ConfigError(
        f"env.backend=envpool: {spec.id} has observations {space}; walle takes one-dimensional Box "
        "observations from EnvPool"
    )


def _supported_actions(
    spec: EnvSpec, space: gym.Space[Any]
) -> gym.spaces.Box | gym.spaces.Discrete:
    if isinstance(space, gym.spaces.Discrete):
        return space
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1:
        return space
    raise ConfigError(
        f"env.backend=envpool: {spec.id} has actions {space}; walle takes Discrete and "
        "one-dimensional Box actions"
    )
