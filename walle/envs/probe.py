"""Tries an environment before any process starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from walle.envs import EnvSpec, Lanes, make_lanes
from walle.envs.lanes import Saving
from walle.errors import ConfigError, RolloutError, what_went_wrong
from walle.types import AnyArray

_TRIAL_S = 1.0  # for the trials of a slow environment
_REPLAY_TRIAL_S = 3.0
_TIMED = 3  # steps, of which the fastest counts: another program may disturb some
_LONGEST = 10_000  # steps of an episode without a limit; a longer one's state is not taken


class Probe(NamedTuple):
    """The findings of a trial of the environment.

    Attributes:
        lane: a lane that has been built, reset, stepped and closed.
        env: the description of the environment, with the way to save its state.
        moves: whether a lane's state is cheap to take out and to put into another process.
        state_bytes: room for a lane's state in bytes; 0 if it cannot be saved.
        unsaved: why the state cannot be saved; empty if it can.
    """

    lane: Lanes
    env: EnvSpec
    moves: bool
    state_bytes: int
    unsaved: str


def probe(env: EnvSpec, seed: int) -> Probe:
    """Tries a lane, then finds out how its state can be saved.

    Raises:
        ConfigError: the environment or one of its arguments fails on the way.
    """
    (lane, step_s), unsaved = _tried(env, seed), ""
    # A pickle holds the environment's arguments, and hidden ones must not come into a checkpoint.
    kinds: tuple[Saving, ...] = ("pickle", "replay") if env.hidden is None else ("replay",)
    for kind in kinds:
        described = replace(env, saving=kind)
        try:
            size = _state_bytes(described, seed, _trial(kind, step_s))
        except Exception as error:  # noqa: BLE001 - a pickle may raise anything
            unsaved = str(error) if isinstance(error, RolloutError) else what_went_wrong(error)
        else:
            return Probe(lane, described, lane.moves, _room(described, lane, size), "")
    return Probe(lane, replace(env, saving="none"), False, 0, unsaved)


class _Trial(NamedTuple):
    """How a state is tried.

    Attributes:
        repeats: how often, each time with other actions.
        episodes: episodes before the state is taken out.
        before: steps of each of them.
        after: steps that must be the same afterwards.
    """

    repeats: int
    episodes: int
    before: int
    after: int

    @property
    def steps(self) -> int:
        """The steps that it takes in all."""
        return self.repeats * ((self.episodes + 1) * self.before + 2 * self.after)


# What a Box2D world keeps of earlier episodes shows in some episodes only, and some steps later.
_PICKLED, _REPLAYED = _Trial(1, 2, 20, 10), _Trial(4, 10, 20, 100)


def _trial(kind: Saving, step_s: float) -> _Trial:
    """Fewer steps where they are so slow that a run would begin late."""
    if kind == "replay" and _REPLAYED.steps * step_s < _REPLAY_TRIAL_S:
        return _REPLAYED
    share = min(1.0, _TRIAL_S / (2 * _PICKLED.steps * step_s + 1e-9))
    before, after = int(share * _PICKLED.before), int(share * _PICKLED.after)
    return _PICKLED._replace(before=max(2, before), after=max(1, after))


def _tried(env: EnvSpec, seed: int) -> tuple[Lanes, float]:
    """A lane that works, closed, and the seconds of its fastest step."""
    try:
        with closing(make_lanes(env, [0], seed)) as lane:
            lane.action_space.seed(seed)
            lane.reset()
            return lane, min(_seconds_of_step(lane) for _ in range(_TIMED))
    except ConfigError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, RolloutError) else what_went_wrong(error)
        raise ConfigError(f"env.id={env.id} with env.kwargs={env.shown_kwargs}: {what}") from error


def _seconds_of_step(lane: Lanes) -> float:
    began = time.perf_counter()
    lane.step(np.asarray(lane.action_space.sample())[None])
    return time.perf_counter() - began


def _state_bytes(env: EnvSpec, seed: int, trial: _Trial) -> int:
    """The bytes of a lane's state, after a trial that another lane goes on from it exactly.

    Raises:
        RolloutError: it does not.
    """
    return max(_state_bytes_once(env, seed, trial, i) for i in range(trial.repeats))


def _state_bytes_once(env: EnvSpec, seed: int, trial: _Trial, repeat: int) -> int:
    steps = trial.before + trial.after
    with closing(make_lanes(env, [0], seed)) as lane:
        lane.action_space.seed(seed + repeat)
        actions = [np.asarray(lane.action_space.sample())[None] for _ in range(steps)]
        for _ in range(trial.episodes):  # an episode must not depend on those before
            lane.reset()
            for action in actions[: trial.before]:
                lane.step(action)
        state = lane.state()
        if state is None:
            raise RolloutError("these lanes cannot give their state")
        expected = _future(lane, actions[trial.before :])
    with closing(make_lanes(env, [0], seed + 1)) as other:
        other.restore(state)
        if _future(other, actions[trial.before :]) != expected:
            raise RolloutError("an environment with the state of another one goes on differently")
    return int(state.shape[1])


def _room(env: EnvSpec, lane: Lanes, size: int) -> int:
    """The most bytes that a state may grow to, if a trial's had `size`."""
    if env.saving == "pickle":
        return 4 * size
    steps = -(-lane.episode_limit // env.frame_skip) if lane.episode_limit else _LONGEST
    return size + steps * np.asarray(lane.action_space.sample()).nbytes


def _future(lane: Lanes, actions: Sequence[AnyArray]) -> list[bytes]:
    """What steps and a reset give, bit for bit."""
    found = []
    for action in actions:
        step = lane.step(action)
        final = step.final_obs if step.final_obs is not None else step.obs
        found += [np.asarray(x).tobytes() for x in (*step[:4], final)]
    return [*found, lane.reset().tobytes()]
