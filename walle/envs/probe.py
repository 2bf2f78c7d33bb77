"""Tries an environment before any process starts."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np

from walle.envs import EnvSpec, Lanes, Step, make_lanes
from walle.envs.lanes import Saving, restart, unusable
from walle.errors import ConfigError, RolloutError, what_went_wrong
from walle.streams import kept_globals, seed_globals
from walle.system.importing import with_module
from walle.types import SUCCESS, AnyArray, layout_of

_TRIAL_S = 1.0  # for the trials of a slow environment
_REPLAY_TRIAL_S = 3.0
_TIMED = 3  # steps of each lane, of which the fastest counts: another program may disturb some
_LONGEST = 10_000  # steps of an episode without a limit; the state of a longer one is not saved
_MOST_GROWTH = 2**24  # bytes by which a lane's pickle may grow in an episode


class Probe(NamedTuple):
    """The results of a trial of the environment."""

    lane: Lanes  # a lane that has been built, reset, stepped and closed
    env: EnvSpec  # its description, with the way to save its state and the columns of its info
    moves: bool  # whether a lane's state is cheap to save and to restore in another process
    state_bytes: int  # room for a lane's state in bytes; 0 if it cannot be saved
    unsaved: str  # why the state cannot be saved; empty if it can
    unseen: tuple[str, ...] = ()  # the names of `EnvSpec.info` that the trial's infos lacked


class _Trial(NamedTuple):
    repeats: int  # number of trials, each with other actions
    episodes: int  # episodes before the state is saved
    before: int  # steps of each of these episodes
    after: int  # steps whose results are compared

    @property
    def steps(self) -> int:
        return self.repeats * ((self.episodes + 1) * self.before + 2 * self.after)


# What a Box2D world keeps of an earlier episode affects only some episodes, after some steps.
_PICKLED, _REPLAYED = _Trial(1, 2, 20, 10), _Trial(4, 10, 20, 100)


@kept_globals()
def probe(env: EnvSpec, seed: int) -> Probe:
    """Tries two lanes with the same seed, then the ways to save a lane's state.

    Raises:
        ConfigError: the environment or one of its arguments fails.
    """
    seconds: list[float] = []
    results: list[list[bytes]] = [[], []]
    infos: list[list[float]] = []
    trial_env = replace(env, on_error="stop", info=tuple(dict.fromkeys((*env.info, *SUCCESS))))
    try:
        for number, found in enumerate(results):
            seed_globals(seed, "trial", number)
            with closing(make_lanes(trial_env, [0], seed)) as lane:
                lane.action_space.seed(seed)
                first = lane.reset().copy()
                found += [first.tobytes()]
                for _ in range(1 if sum(seconds) > _TRIAL_S / 10 else _TIMED):
                    action, start = np.asarray(lane.action_space.sample()), time.perf_counter()
                    step = lane.step(action[None])
                    seconds.append(time.perf_counter() - start)
                    found += [np.asarray(x).tobytes() for x in step[:4]]
                    infos += [] if step.info is None else step.info.tolist()
    except ConfigError:
        raise
    except Exception as error:
        given = f"env.kwargs={env.shown_kwargs}"
        given += f", env.reset_options={env.reset_options}" if env.reset_options else ""
        reason = f"env.id={env.id} with {given}: {_reason(error)}"
        raise ConfigError(f"{reason}{_fix(reason, env.id)}") from error
    if env.info and not infos:
        raise ConfigError(
            f"logger.info={[*env.info]}: MuJoCo lanes and Robots have no info; use "
            "env.backend=gymnasium, or in place of a Robot a gymnasium.Env of your own"
        )
    seen = {x for row in infos for x, n in zip(trial_env.info, row, strict=True) if n == n}
    columns = tuple(entry for entry in trial_env.info if entry in env.info or entry in seen)
    unseen = tuple(entry for entry in env.info if entry not in seen)
    step_s, unsaved = min(seconds), ""
    exact = all(one == other for one, other in zip(*results, strict=False))
    env = replace(env, exact=exact, offset=_offset(lane.observation_space, first))
    # A pickle holds the environment's arguments, and hidden ones must not get into a checkpoint.
    ways: tuple[Saving, ...] = ("pickle", "pickle", "replay") if env.hidden is None else ("replay",)
    steps = -(-lane.episode_limit // env.frame_skip) if lane.episode_limit else _LONGEST
    for i, way in enumerate(ways):  # "pickle" again with equal draws of the global generators
        saved = replace(env, saving=way, exact=env.exact and i != 1)
        if way == "replay" and _REPLAYED.steps * step_s < _REPLAY_TRIAL_S:
            trial = _REPLAYED
        else:  # fewer steps if they are so slow that the run would start late
            share = min(1.0, _TRIAL_S / (2 * _PICKLED.steps * step_s + 1e-9))
            before, after = int(share * _PICKLED.before), int(share * _PICKLED.after)
            trial = _PICKLED._replace(before=max(2, before), after=max(1, after))
        try:
            room = max(_room(saved, seed, trial, i, steps) for i in range(trial.repeats))
        except Exception as error:  # noqa: BLE001 - a pickle may raise anything
            unsaved = _reason(error)
            continue
        return Probe(lane, replace(saved, info=columns), lane.moves, room, "", unseen)
    return Probe(lane, replace(env, saving="none", info=columns), False, 0, unsaved, unseen)


def _fix(reason: str, env_id: str) -> str:
    """The fix for Gym's old interface or packages that do not support the newest MuJoCo, or ""."""
    if re.search(r"to unpack \(expected [25]|unexpected keyword argument '(seed|opt)", reason):
        step, reset = "step(action)", "reset(seed=None, options=None)"
        values = f"{step} returns obs, reward, terminated, truncated, info, and {reset} obs, info"
        return f"; is this an environment of the old Gym? In Gymnasium {values}"
    version, package = metadata.version("mujoco"), with_module(env_id).partition(":")[0]
    fails = version >= "4" and package in ("gymnasium_robotics", "metaworld", "shimmy")
    return f"; it may not support MuJoCo {version}: pip install 'mujoco<4'" if fails else ""


def _offset(space: Any, obs: AnyArray) -> tuple[float, ...] | None:
    """The numbers of an observation, [1, *O], that are so large that float32 loses changes."""
    layout, is_packed = layout_of(space), hasattr(space, "layout")  # rounded to float32 already
    whole = obs.dtype.kind in "iu" and not layout.images  # all integers below 2^24 are in float32
    vector = layout.vectors(obs)[0].astype(np.float64)
    large = np.isfinite(vector) & (np.abs(vector) >= (2.0**24 if whole else 2.0**16))
    keeps = (obs.dtype == np.float32 and not is_packed) or not large.any()
    return None if keeps else tuple(np.where(large, vector, 0.0).tolist())


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, RolloutError) else what_went_wrong(error)


def _room(env: EnvSpec, seed: int, trial: _Trial, repeat: int, longest: int) -> int:
    """The bytes that a lane's state can have in an episode of `longest` steps.

    Raises RolloutError unless another lane continues from such a state exactly as the first one.
    """
    steps, half = trial.before + trial.after, trial.before // 2
    with closing(make_lanes(env, [0], seed)) as lane:
        lane.action_space.seed(seed + repeat)
        actions = [np.asarray(lane.action_space.sample())[None] for _ in range(steps)]
        for _ in range(trial.episodes):  # an episode must not depend on those before
            lane.reset()
            for action in actions[:half]:
                _step(lane, action)
            middle = lane.state()
            for action in actions[half : trial.before]:
                _step(lane, action)
        state = lane.state()
        if state is None or middle is None:
            raise RolloutError("these lanes have no state that can be saved")
        seed_globals(seed, "trial", 2)
        expected = _results(lane, actions[trial.before :])
    with closing(make_lanes(env, [0], seed + 1)) as other:
        other.restore(state)
        seed_globals(seed, "trial", 2 + env.exact)  # inexact lanes are seeded in every round
        if _results(other, actions[trial.before :]) != expected:
            raise RolloutError(
                "an environment that restores the state of another one continues differently"
            )
    size: int = state.shape[1]
    if env.saving == "replay":
        return size + longest * actions[0].nbytes
    growth: float = (size - middle.shape[1]) / (trial.before - half) * longest
    if growth > _MOST_GROWTH:
        raise RolloutError(f"its state grows by up to {growth:,.0f} bytes in an episode")
    return max(4 * size, size + math.ceil(growth))


def _step(lane: Lanes, action: AnyArray) -> Step:
    step = lane.step(action)
    if lane.failed is not None:
        restart(lane, unusable(lane, step.obs, step.reward), step.obs)
    return step


def _results(lane: Lanes, actions: Sequence[AnyArray]) -> list[bytes]:
    """The results of steps and a reset, bit for bit."""
    results = []
    for action in actions:
        step = _step(lane, action)
        final = step.final_obs if step.final_obs is not None else step.obs
        results += [np.asarray(x).tobytes() for x in (*step[:4], final)]
    return [*results, lane.reset().tobytes()]
