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
_LONGEST = 10_000  # steps of an episode without a limit; a longer one's state is not taken


class Probe(NamedTuple):
    """What a trial of the environment found.

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
            size = _state_bytes(described, seed, _Trial.of(step_s))
        except Exception as error:  # noqa: BLE001 - a pickle may raise anything
            unsaved = str(error) if isinstance(error, RolloutError) else what_went_wrong(error)
        else:
            return Probe(lane, described, lane.moves, _room(described, lane, size), "")
    return Probe(lane, replace(env, saving="none"), False, 0, unsaved)


class _Trial(NamedTuple):
    """Steps of a trial before and after its state is taken out."""

    before: int
    after: int

    @classmethod
    def of(cls, step_s: float) -> _Trial:
        """Fewer steps where they are so slow that a run would begin late."""
        whole = cls(20, 10)
        share = min(1.0, _TRIAL_S / (4 * sum(whole) * step_s + 1e-9))
        return cls(max(2, int(share * whole.before)), max(1, int(share * whole.after)))


def _tried(env: EnvSpec, seed: int) -> tuple[Lanes, float]:
    """A lane that works, closed, and the seconds of a step; the first one may be slow."""
    try:
        with closing(make_lanes(env, [0], seed)) as lane:
            lane.action_space.seed(seed)
            lane.reset()
            lane.step(np.asarray(lane.action_space.sample())[None])
            began = time.perf_counter()
            lane.step(np.asarray(lane.action_space.sample())[None])
            return lane, time.perf_counter() - began
    except ConfigError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, RolloutError) else what_went_wrong(error)
        raise ConfigError(f"env.id={env.id} with env.kwargs={env.shown_kwargs}: {what}") from error


def _state_bytes(env: EnvSpec, seed: int, trial: _Trial) -> int:
    """The bytes of a lane's state, after a trial that another lane goes on from it exactly.

    Raises:
        RolloutError: it does not.
    """
    with closing(make_lanes(env, [0], seed)) as lane:
        lane.action_space.seed(seed)
        actions = [np.asarray(lane.action_space.sample())[None] for _ in range(sum(trial))]
        for _ in range(2):  # an episode must not depend on the one before
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
