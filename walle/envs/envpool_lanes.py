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

from walle.envs.gymnasium_lanes import flattened
from walle.envs.lanes import EnvSpec, StateArray, Step, from_zero, numbers_in, supported_actions
from walle.envs.observations import ObservationRows, flatten_batch
from walle.errors import ConfigError, nearest
from walle.streams import Role, env_seed
from walle.types import AnyArray, BoolArray, InfoColumn, IntArray

_SET_BY_WALLE = {"batch_size", "env_seed", "env_type", "gym_reset_return_info"}
_SET_BY_WALLE |= {"max_episode_steps", "num_envs", "num_threads", "seed"}
_SIZES = {"frame_skip", "frame_stack", "img_height", "img_width", "stack_num"}
_NO_LIMIT = 2**31 - 1  # of the steps of an episode


class EnvpoolLanes:
    """A pool of L environments on one thread, which works while the sampler's thread waits.

    By default, EnvPool spends the step after an episode's end on the reset. These lanes reset an
    environment at once, so that every step is a real one.
    """

    moves = False
    failed: BoolArray | None = None  # so that `only` is never given

    def __init__(self, spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role = "train"):
        self._lanes = list(lanes)
        seeds = [env_seed(seed, lane, role) for lane in self._lanes]
        single = EnvpoolEnv(spec, _make_pool(spec, seeds))
        self._pool, self._space = single.pool, single.observation_space
        self.observation_space: Any = flattened(single, spec).observation_space
        where, fix = f"env.backend=envpool: {spec.id}", "use env.backend=gymnasium with a wrapper"
        self.env_action_space = supported_actions(single.action_space, where, fix)
        self.action_space, self._first_action, _ = from_zero(self.env_action_space)
        self._moves_actions = bool(np.any(self._first_action))
        self.episode_limit = single.episode_limit
        self._names = [InfoColumn.of(entry).name for entry in spec.info]

    def __len__(self) -> int:
        return len(self._lanes)

    def reset(self, seeds: Sequence[int] | None = None, only: IntArray | None = None) -> AnyArray:  # noqa: ARG002
        """Starts a new episode in every lane; returns [L, O]."""
        if seeds is not None:
            raise ConfigError("env.backend=envpool cannot start an episode from a new seed")
        return self._rows(self._pool.reset()[0]).copy()

    def step(self, action: AnyArray, only: IntArray | None = None) -> Step:  # noqa: ARG002
        """Applies action[i] to lane i and resets the lanes whose episode ended."""
        moved = action + self._first_action if self._moves_actions else action
        given, reward, *ends, infos = _apply(self._pool, moved)
        obs = self._rows(given)
        terminated, truncated = (np.asarray(end, np.bool_) for end in ends)
        numbers = None
        if self._names:  # infos have arrays with the lanes first
            rows = ({k: infos[k][i] for k in self._names if k in infos} for i in range(len(self)))
            numbers = np.array([numbers_in(row, self._names) for row in rows])
        ended = np.flatnonzero(terminated | truncated).astype(np.int32)
        if ended.size == 0:
            return Step(obs, reward, terminated, truncated, None, numbers)
        following = obs.copy()
        first, info = self._pool.reset(ended)
        following[info["env_id"]] = self._rows(first)
        return Step(following, reward, terminated, truncated, obs, numbers)

    def _rows(self, obs: Any) -> AnyArray:
        if isinstance(self.observation_space, ObservationRows):
            return self.observation_space.rows(obs)[0]
        return flatten_batch(self._space, obs).astype(self.observation_space.dtype, copy=False)

    def state(self) -> None:
        """None: EnvPool does not expose its state."""

    def restore(self, state: StateArray) -> None:  # noqa: ARG002
        """Always raises ConfigError, because there is no `state`."""
        fix = "use env.backend=auto"
        raise ConfigError(f"env.backend=envpool cannot continue from a saved state; {fix}")

    def close(self) -> None:
        """Ends the pool's thread."""
        self._pool.close()


class EnvpoolEnv(gym.Env[Any, Any]):
    """One of EnvPool's environments with Gymnasium's interface: its observations are EnvPool's own.

    Attributes:
        pool: EnvPool's object.
        episode_limit: steps after which an episode is truncated, if any.
    """

    def __init__(self, spec: EnvSpec, pool: Any = None) -> None:
        """Takes the first environment of `pool`, or makes one."""
        self._made_as = spec
        self.render_mode = spec.kwargs.get("render_mode")
        self.pool = pool or _make_pool(spec, [int(np.random.SeedSequence().generate_state(1)[0])])
        mujoco = any(base.__module__.startswith("envpool.mujoco") for base in type(self.pool).mro())
        if self.render_mode == "human" or (self.render_mode and mujoco):
            # Without a driver EnvPool's MuJoCo would end the process.
            raise ConfigError(
                f"{spec.id} with env.backend=envpool, which opens no window and draws no MuJoCo "
                "task: leave out the window or the video"
            )
        self.observation_space, space = self.pool.observation_space, self.pool.action_space
        if isinstance(space, gym.spaces.Box) and space.dtype.kind in "iu":  # these are choices
            sizes = space.high - np.int64(1) * space.low + 1
            space = gym.spaces.MultiDiscrete(sizes, start=space.low)
        self.action_space = space
        limit = int(self.pool.spec.config.max_episode_steps)
        self.episode_limit = limit if limit < _NO_LIMIT else None
        self.spec = gym.envs.registration.EnvSpec(spec.id, max_episode_steps=self.episode_limit)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        """Starts an episode; a seed needs a new pool, because only new pools take seeds."""
        if seed is not None:
            self.pool.close()
            self.pool = _make_pool(self._made_as, [seed])
        obs, info = self.pool.reset()
        return _first(obs), _first(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Applies the action."""
        obs, reward, *ends, info = _apply(self.pool, np.asarray(action)[None])
        terminated, truncated = (bool(end[0]) for end in ends)
        return _first(obs), float(reward[0]), terminated, truncated, _first(info)

    def render(self) -> Any:
        """The image, [height, width, 3] of bytes."""
        return self.pool.render()[0]

    def close(self) -> None:
        """Ends the pool's thread."""
        self.pool.close()


def _first(values: Any) -> Any:
    """The values of the first environment in nested dictionaries of arrays."""
    if isinstance(values, dict):
        return {name: _first(value) for name, value in values.items()}
    return values[0]


def _apply(pool: Any, action: AnyArray) -> Any:
    space = pool.action_space
    dtype = space.dtype if isinstance(space, gym.spaces.Box) else np.int32
    action = np.ascontiguousarray(action, dtype)
    return pool.step(action.reshape(len(action), *(space.shape or ())))


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
    try:
        config = envpool.make_spec(spec.id).config
    except (ImportError, RuntimeError) as error:  # a library or a file that the task needs
        raise ConfigError(f"env.backend=envpool env.id={spec.id!r}: {error}") from error
    if config.max_num_players > 1:
        raise ConfigError(
            f"env.backend=envpool: {spec.id} has {config.max_num_players} players, and walle's "
            "lanes have one each; choose a task for one player"
        )
    known = {*config._fields, "render_mode"} - _SET_BY_WALLE
    for name, value in spec.kwargs.items():
        if name in _SIZES and not (isinstance(value, int) and value >= 1):  # EnvPool would crash
            raise ConfigError(f"env.kwargs.{name}={value!r} must be a whole number, 1 at least")
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
            seed=[(seed >> 1) % 2**31 for seed in seeds],  # of 31 bits
            **limit,
            **spec.kwargs,
        )
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise ConfigError(f"env.kwargs={spec.shown_kwargs}: EnvPool reports: {error}") from error
