"""Lanes made of Gymnasium environments, stepped one after the other."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs import registration

from walle.envs import saving
from walle.envs.lanes import EnvSpec, StateArray, Step, from_zero, numbers_in, supported_actions
from walle.envs.mujoco.physics import catch_mujoco_warnings, issue_mujoco_warnings
from walle.envs.mujoco.registry import find_maker
from walle.envs.observations import (
    ObservationRows,
    check_entries,
    check_part,
    check_vector,
    entries,
    images_in,
)
from walle.envs.wrappers import wrapped
from walle.errors import (
    ConfigError,
    RestoreError,
    RolloutError,
    WorkerError,
    print_fault,
    what_went_wrong,
)
from walle.streams import Role, env_seed
from walle.system.importing import with_colon
from walle.types import AnyArray, BoolArray, InfoColumn, IntArray

_MARKS = {"pickle": b"p", "replay": b"r"}  # the first byte of a state


class GymnasiumLanes:
    """One instance of a registered environment for every lane.

    Observations are flattened; those with images become rows of bytes (`walle.envs.observations`).
    """

    moves = False

    def __init__(self, spec: EnvSpec, lanes: Sequence[int], seed: int, role: Role = "train"):
        self._lanes = list(lanes)
        catch_mujoco_warnings()
        self._envs: list[gym.Env[Any, Any]] = []
        try:
            for _ in self._lanes:
                self._envs.append(make_env(spec))
            first = self._envs[0]
            assert isinstance(first.observation_space, gym.spaces.Box)
            self.observation_space = first.observation_space
            fix = "wrap the environment (gymnasium.wrappers.TransformAction) to change that"
            self.env_action_space = supported_actions(first.action_space, _name(first), fix)
        except BaseException:
            self.close()
            raise
        self.episode_limit = first.spec.max_episode_steps if first.spec else None
        self.action_space, self._first_action, self._shape = from_zero(self.env_action_space)
        self._moved = bool(np.any(self._first_action)) or self._shape is not None
        is_binary = isinstance(self.action_space, gym.spaces.MultiBinary)
        self._action_dtype: Any = np.int64 if is_binary else self.action_space.dtype
        self._frame_skip = spec.frame_skip
        self._seeds: list[int | None] = [env_seed(seed, lane, role) for lane in self._lanes]
        n = len(self._lanes)
        self.failed: BoolArray | None = np.zeros(n, np.bool_) if spec.on_error == "reset" else None
        self._obs = np.zeros((n, *first.observation_space.shape), first.observation_space.dtype)
        self._final_obs = np.zeros_like(self._obs)
        self._reward = np.zeros(n)
        self._terminated = np.zeros(n, np.bool_)
        self._truncated = np.zeros(n, np.bool_)
        self._steps = 0
        self._saving = spec.saving
        self._episodes = [saving.EpisodeReplay() for _ in self._lanes]
        self._names = [InfoColumn.of(entry).name for entry in spec.info]
        self._info = np.full((n, len(self._names)), np.nan) if self._names else None

    def __len__(self) -> int:
        return len(self._lanes)

    def reset(self, seeds: Sequence[int] | None = None, only: IntArray | None = None) -> AnyArray:
        """See `Lanes.reset`."""
        if seeds is not None:
            self._seeds = list(seeds)
        for i in range(len(self)) if only is None else only.tolist():
            if self.failed is not None:
                self.failed[i] = False
            try:
                self._obs[i] = self._reset_lane(i)
                self._seeds[i] = None
            except Exception as error:  # noqa: BLE001
                self._note(error, i)
                if (seed := self._seeds[i]) is not None:  # it may not have reached the generator
                    self._seeds[i] = seed + 1
        return self._obs

    def _note(self, error: Exception, i: int) -> None:
        if self.failed is None or isinstance(error, WorkerError):  # a signal handler raised it
            raise error
        self.failed[i], self._reward[i] = True, np.nan
        self._terminated[i] = self._truncated[i] = False
        print_fault(error)

    def _reset_lane(self, i: int) -> AnyArray:
        env = self._envs[i]
        try:
            if self._saving == "replay":
                self._episodes[i].start(env, self._seeds[i])
            pair = env.reset(seed=self._seeds[i])
            if not (isinstance(pair, tuple) and len(pair) == 2):
                raise RolloutError(f"reset() must return (observation, info), got {pair!r}")  # noqa: TRY301
            obs = self._checked(i, pair[0])
        except Exception as error:
            self._add_location(error, i)
            raise
        issue_mujoco_warnings(f"lane {self._lanes[i]}")
        return obs

    def step(self, action: AnyArray, only: IntArray | None = None) -> Step:
        """Applies action[i] to lane i and resets the lanes whose episode ended."""
        any_ended = False
        self._steps += only is None
        action = np.array(action, self._action_dtype)  # a copy, which environments may change
        for i in range(len(self)) if only is None else only.tolist():
            if self._saving == "replay":
                self._episodes[i].add(action[i])
            try:
                obs, ended = self._step_lane(i, action[i])
                if ended:
                    any_ended = True
                    self._final_obs[i] = obs
                    obs = self._reset_lane(i)
                self._obs[i] = obs
            except Exception as error:  # noqa: BLE001
                self._note(error, i)
        final = self._final_obs if any_ended else None
        return Step(self._obs, self._reward, self._terminated, self._truncated, final, self._info)

    def _step_lane(self, i: int, action: Any) -> tuple[AnyArray, bool]:
        env: Any = self._envs[i]
        if self._moved:
            action = action + self._first_action
            if self._shape is not None:
                action = action.reshape(self._shape)
        total = 0.0
        for _ in range(self._frame_skip):
            try:
                given = action if self._frame_skip == 1 else action.copy()
                obs, reward, terminated, truncated, info = env.step(given)
                total += reward if type(reward) is float else real_number(reward)
            except Exception as error:
                self._add_location(error, i)
                raise
            issue_mujoco_warnings(f"lane {self._lanes[i]}")
            if terminated or truncated:
                break
        if self._info is not None:
            self._info[i] = numbers_in(info, self._names)
        self._reward[i] = total
        self._terminated[i] = bool(terminated)  # which may be an array of one entry
        self._truncated[i] = bool(truncated)
        return self._checked(i, obs), terminated or truncated

    def _checked(self, i: int, obs: Any) -> AnyArray:
        """The observation, its shape checked: NumPy would repeat a single entry to any length."""
        if np.shape(obs) != self._obs.shape[1:]:
            raise RolloutError(
                f"the environment returned an observation of shape {np.shape(obs)} "
                f"{self._where(i)}, but its observation_space has shape {self._obs.shape[1:]}: "
                "return observations of that shape from reset and step"
            )
        return check_entries(obs, self._obs.dtype, f" {self._where(i)}")

    def _where(self, i: int) -> str:
        return f"in lane {self._lanes[i]} at step {self._steps}"

    def _add_location(self, error: Exception, i: int) -> None:
        error.add_note(f"raised by {_name(self._envs[i])} {self._where(i)}")

    def state(self) -> StateArray | None:
        """See `Lanes.state`; `EnvSpec.saving` decides how the state is saved."""
        if self._saving == "none":
            return None
        if self._saving == "pickle":
            rows = [saving.dump(env) for env in self._envs]
        else:
            pairs = zip(self._obs, self._episodes, strict=True)
            rows = [obs.tobytes() + episode.state() for obs, episode in pairs]
        width = 1 + max(map(len, rows))
        marked = [_MARKS[self._saving] + row for row in rows]
        return np.array([np.frombuffer(row.ljust(width, b"\0"), np.uint8) for row in marked])

    def restore(self, state: StateArray) -> None:
        """See `Lanes.restore`."""
        for i, marked in enumerate(state):
            mark, row = marked[:1].tobytes(), marked[1:].tobytes()
            if mark != _MARKS.get(self._saving):
                raise RestoreError(f"{_name(self._envs[i])} saved its state in another way before")
            if self._saving == "pickle":
                loaded = saving.load(row, self._envs[i])
                self._envs[i].close()
                self._envs[i] = loaded
                continue
            size = self._obs[i].nbytes
            episode = self._episodes[i] = saving.EpisodeReplay.of(row[size:])
            obs = episode.replay_start(self._envs[i])
            like = np.zeros(self.action_space.shape or (), self._action_dtype)
            for action in episode.actions(like):
                obs, _ = self._step_lane(i, action)
            self._obs[i] = obs
            if self._obs[i].tobytes() != row[:size]:
                raise RestoreError(
                    f"{_name(self._envs[i])} cannot continue in lane {self._lanes[i]}: the same"
                    " actions led to another observation than before; an environment must draw from"
                    " np_random only"
                )
        self._seeds = [None] * len(self)

    def close(self) -> None:
        """Closes every environment; prints the errors, which are not those of the run."""
        for env in self._envs:
            try:
                env.close()
            except Exception as error:  # noqa: BLE001
                print(f"{_name(env)}.close(): {what_went_wrong(error)}", file=sys.stderr)


def real_number(reward: Any) -> float:
    """The reward, a number or an array of one entry, as a float."""
    try:
        # float() alone refuses such arrays, and takes texts
        return float(np.asarray(reward).item() * 1.0)
    except (TypeError, ValueError):  # also of complex numbers
        raise RolloutError(
            f"the environment returned a reward of {reward!r}: return a real number from step"
        ) from None


def make_env(
    spec: EnvSpec, *, pack: bool = True, more: Mapping[str, Any] | None = None
) -> gym.Env[Any, Any]:
    """One environment as `spec` describes it, with observations flattened to one dimension.

    Without `pack`, observations with images or chosen keys stay as the environment returns them.
    The environment gets a copy of the arguments in `spec`, and those in `more` themselves.

    Raises:
        ConfigError: Gymnasium cannot make it; the message names the setting to change.
    """
    limit = {} if spec.episode_limit is None else {"max_episode_steps": spec.episode_limit}
    try:
        catch_mujoco_warnings()
        maker = find_maker(spec.id)
        name = spec.id.rpartition(":")[2]
        made = spec.id if maker is None else gym.envs.registration.EnvSpec(name, maker)
        arguments = {**deepcopy(spec.kwargs), **(more or {})}
        env = gym.make(made, disable_env_checker=True, **limit, **arguments)
        issue_mujoco_warnings(spec.id)
        if spec.reset_options:
            env = _ResetOptions(env, spec.reset_options)
    except ModuleNotFoundError as error:
        raise ConfigError(f"env.id={spec.id!r}: {error}; is the module importable here?") from error
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(f"env.id={spec.id!r} needs a package that is missing: {error}") from error
    except gym.error.Error as error:
        reason = str(error).strip().splitlines()[0]
        if isinstance(error, (gym.error.VersionNotFound, gym.error.DeprecatedEnv)):
            reason = f"{reason.rstrip('.')}; use env.id={_newest(spec.id)}"
        elif (meant := with_colon(spec.id)) != spec.id:
            reason += f" A class or function of your own is module:Name: env.id={meant}"
        elif isinstance(error, gym.error.NameNotFound) and not {*":/?"} & {*spec.id + reason}:
            reason += (
                f" An id that your module registers is module:{spec.id}; those of packages have a "
                f"prefix, as in env.id=ALE/{spec.id}"
            )
        raise ConfigError(f"env.id={spec.id!r}: {reason}") from error
    except TypeError as error:
        # Gymnasium adds the arguments, which may be secret.
        said = str(error).partition(" was raised from the environment creator")[0]
        raise ConfigError(f"env.kwargs={spec.shown_kwargs}: {spec.id} reports: {said}") from error
    return flattened(env, spec, pack=pack)


def flattened(env: gym.Env[Any, Any], spec: EnvSpec, *, pack: bool = True) -> gym.Env[Any, Any]:
    """The environment with observations of one dimension, see `make_env`."""
    for name in ("observation_space", "action_space"):
        if not isinstance(found := getattr(env, name, None), gym.Space):
            fix = f"set self.{name} in __init__ to one of gymnasium.spaces"
            raise ConfigError(f"{_name(env)} lacks its {name}, which is {found!r}: {fix}")
    for entry in spec.wrappers:
        env = wrapped(env, entry)
    space = env.observation_space
    if spec.keys is None and isinstance(space, gym.spaces.Box) and len(space.shape) == 1:
        return env
    if spec.keys or any(images_in(space, small=spec.small_images)):
        if spec.time_feature:
            raise ConfigError(
                f"env.time_feature=true with {spec.id}, whose observations hold chosen keys or "
                "images; use env.time_feature=false"
            )
        rows = ObservationRows(space, _name(env), spec.offset, spec.keys, small=spec.small_images)
        return _Flattened(env, rows) if pack else env
    check_vector(space, _name(env))
    return _Flattened(env)


class _ResetOptions(gym.Wrapper[Any, Any, Any, Any]):
    """Gives `env.reset_options` to every reset that has no options of its own."""

    def __init__(self, env: gym.Env[Any, Any], options: dict[str, Any]) -> None:
        super().__init__(env)
        self._options = options

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=seed, options=options or deepcopy(self._options))


class _Flattened(gym.ObservationWrapper[Any, Any, Any]):
    """Flattens observations to vectors of real numbers or, with images, to rows of bytes.

    Gymnasium's own wrapper holds a lambda, which cannot be pickled.
    """

    def __init__(self, env: gym.Env[Any, Any], rows: ObservationRows | None = None) -> None:
        super().__init__(env)
        space = env.observation_space
        self.observation_space: Any = gym.spaces.flatten_space(space) if rows is None else rows

    @cached_property  # pickles of earlier versions lack it
    def _parts(self) -> list[gym.Space[Any]]:
        space = self.env.observation_space
        return [part for _, part in entries(space, space)]

    def observation(self, observation: Any) -> Any:
        if isinstance(self.observation_space, ObservationRows):
            return self.observation_space.pack(observation)
        space = self.env.observation_space
        for part, (_, value) in zip(self._parts, entries(space, observation), strict=True):
            check_part(value, part)
        return gym.spaces.flatten(space, observation)


def _newest(env_id: str) -> str:
    """The same environment in its newest version."""
    module, colon, name = env_id.rpartition(":")
    space, base, _ = registration.parse_env_id(name)
    newest = registration.find_highest_version(space, base)
    return f"{module}{colon}{registration.get_env_id(space, base, newest)}"


def _name(env: gym.Env[Any, Any]) -> str:
    return env.spec.id if env.spec else type(env).__name__
