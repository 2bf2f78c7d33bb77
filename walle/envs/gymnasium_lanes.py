"""Lanes made of Gymnasium environments, stepped one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from walle.envs.lanes import EnvSpec, Step
from walle.envs.mujoco_warnings import catch_mujoco_warnings
from walle.errors import ConfigError, RolloutError
from walle.streams import Role, env_seed
from walle.types import AnyArray


class GymnasiumLanes:
    """Any registered environment, one instance a lane. Observations are flattened."""

    def __init__(self, spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role = "train"):
        """Builds one environment per entry of `lanes`.

        Raises:
            ConfigError: the environment is unknown, needs a package that is missing, refuses its
                arguments, or has spaces that walle cannot handle.
        """
        self._lanes = list(lanes)
        self._warnings = catch_mujoco_warnings()
        self._envs = [make_env(spec) for _ in self._lanes]
        first = self._envs[0]
        self.observation_space = _flat_observations(first)
        self.action_space = _supported_actions(first)
        self.episode_limit = first.spec.max_episode_steps if first.spec else None
        self._first_action = int(getattr(self.action_space, "start", 0))
        if isinstance(self.action_space, gym.spaces.Discrete):
            self.action_space = gym.spaces.Discrete(int(self.action_space.n))
        self._frame_skip = spec.frame_skip
        self._first_step = True  # whose shapes are checked
        self._seeds: list[int] | list[None] = [env_seed(seed, lane, role) for lane in self._lanes]
        n, shape = len(self._lanes), self.observation_space.shape
        self._obs = np.zeros((n, *shape), self.observation_space.dtype)
        self._final_obs = np.zeros_like(self._obs)
        self._reward = np.zeros(n)
        self._terminated = np.zeros(n, np.bool_)
        self._truncated = np.zeros(n, np.bool_)
        self._steps = 0

    def __len__(self) -> int:
        """The number of lanes."""
        return len(self._lanes)

    def reset(self, seeds: Sequence[int] | None = None) -> AnyArray:
        """Begins a new episode in every lane; returns [L, O]."""
        if seeds is not None:
            self._seeds = list(seeds)
        for i, env in enumerate(self._envs):
            self._obs[i] = self._reset_lane(i, env)
        self._seeds = [None] * len(self)
        return self._obs

    def _reset_lane(self, i: int, env: gym.Env[Any, Any]) -> AnyArray:
        try:
            obs = self._checked(i, _first_of_pair(env.reset(seed=self._seeds[i])))
        except Exception as error:
            self._blame(error, i)
            raise
        self._warn(i)
        return obs

    def _blame(self, error: Exception, i: int) -> None:
        error.add_note(f"raised by {_name(self._envs[i])} in lane {self._lanes[i]}")

    def step(self, action: AnyArray) -> Step:
        """Applies action[i] to lane i and resets the lanes whose episode ended."""
        any_ended = False
        self._steps += 1
        for i, env in enumerate(self._envs):
            obs, ended = self._step_lane(i, env, action[i])
            if ended:
                any_ended = True
                self._final_obs[i] = obs
                obs = self._reset_lane(i, env)
            self._obs[i] = obs
        final_obs = self._final_obs if any_ended else None
        return Step(self._obs, self._reward, self._terminated, self._truncated, final_obs)

    def _step_lane(self, i: int, env: gym.Env[Any, Any], action: Any) -> tuple[AnyArray, bool]:
        if self._first_action:
            action = action + self._first_action
        total = 0.0
        for _ in range(self._frame_skip):
            try:
                obs, reward, terminated, truncated, _ = env.step(action)
                total += float(reward)
            except Exception as error:
                self._blame(error, i)
                raise
            self._warn(i)
            if terminated or truncated:
                break
        self._reward[i] = total
        self._terminated[i] = terminated
        self._truncated[i] = truncated
        return self._checked(i, obs), terminated or truncated

    def _checked(self, i: int, obs: Any) -> AnyArray:
        """The observation, or an error: NumPy would stretch one of a single entry to any length."""
        if np.shape(obs) != self._obs.shape[1:]:
            raise RolloutError(
                f"the environment gave an observation of shape {np.shape(obs)} in lane "
                f"{self._lanes[i]} at step {self._steps}, but its observation_space has shape "
                f"{self._obs.shape[1:]}: return observations of that shape from reset and step"
            )
        checked: AnyArray = obs
        return checked

    def _warn(self, i: int) -> None:
        if self._warnings.pending:
            self._warnings.flush(f"lane {self._lanes[i]}")

    def close(self) -> None:
        """Closes every environment."""
        for env in self._envs:
            env.close()


def make_env(spec: EnvSpec) -> gym.Env[Any, Any]:
    """One environment as `spec` describes it, its observations flattened to one dimension.

    Raises:
        ConfigError: in the user's words, whatever Gymnasium found wrong.
    """
    limit = {} if spec.episode_limit is None else {"max_episode_steps": spec.episode_limit}
    try:
        caught = catch_mujoco_warnings()
        env = gym.make(spec.id, disable_env_checker=True, **limit, **spec.kwargs)
        caught.flush(spec.id)
    except ModuleNotFoundError as error:
        raise ConfigError(f"env.id={spec.id!r}: {error}; is the module importable here?") from error
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(f"env.id={spec.id!r} needs a package that is missing: {error}") from error
    except gym.error.Error as error:
        raise ConfigError(f"env.id={spec.id!r}: {_first_line(error)}") from error
    except TypeError as error:
        raise ConfigError(f"env.kwargs={spec.kwargs}: {spec.id} says: {error}") from error
    return _flattened(env)


def _first_of_pair(found: Any) -> AnyArray:
    if not (isinstance(found, tuple) and len(found) == 2):
        raise RolloutError(f"reset() must return (observation, info), got {found!r}")
    obs: AnyArray = found[0]
    return obs


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _flattened(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    space = env.observation_space
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1:
        return env
    if not space.is_np_flattenable:
        raise ConfigError(
            f"{_name(env)} has observations {space}, which do not flatten to a vector; "
            "wrap it in an environment with Box, Discrete, Tuple or Dict observations"
        )
    return gym.wrappers.FlattenObservation(env)


def _flat_observations(env: gym.Env[Any, Any]) -> gym.spaces.Box:
    space = env.observation_space
    assert isinstance(space, gym.spaces.Box)
    return space


def _supported_actions(env: gym.Env[Any, Any]) -> gym.spaces.Box | gym.spaces.Discrete:
    space = env.action_space
    if isinstance(space, gym.spaces.Discrete):
        return space
    if (
        isinstance(space, gym.spaces.Box)
        and len(space.shape) == 1
        and np.issubdtype(space.dtype, np.floating)
    ):
        return space
    raise ConfigError(
        f"{_name(env)} has actions {space}; walle takes Discrete and one-dimensional Box actions "
        "of real numbers: wrap the environment (gymnasium.wrappers.TransformAction) to give it one "
        "of them"
    )


def _name(env: gym.Env[Any, Any]) -> str:
    return env.spec.id if env.spec else type(env).__name__
