"""Tries an environment before any process starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from walle.envs import EnvSpec, Lanes, make_lanes
from walle.errors import ConfigError, RolloutError, what_went_wrong
from walle.types import AnyArray

_BEFORE, _AFTER = 20, 10  # steps of a trial before and after its state is taken out


class Probe(NamedTuple):
    """What a trial of the environment found.

    Attributes:
        lane: a lane that has been built, reset, stepped and closed.
        env: the description of the environment, with the way to save its state.
        moves: whether a lane's state is cheap to take out and to put into another process.
        state_bytes: the bytes of a lane's state; 0 if it cannot be saved.
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
    lane, unsaved = _tried(env, seed), ""
    for kind in ("pickle", "replay"):
        described = replace(env, saving=kind)
        try:
            state_bytes = _state_bytes(described, seed)
        except Exception as error:  # noqa: BLE001 - a pickle may raise anything
            unsaved = str(error) if isinstance(error, RolloutError) else what_went_wrong(error)
        else:
            return Probe(lane, described, lane.moves, state_bytes, "")
    return Probe(lane, replace(env, saving="none"), False, 0, unsaved)


def _tried(env: EnvSpec, seed: int) -> Lanes:
    try:
        lane = make_lanes(env, [0], seed)
        lane.action_space.seed(seed)
        lane.reset()
        lane.step(np.asarray(lane.action_space.sample())[None])
        lane.close()
    except ConfigError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, RolloutError) else what_went_wrong(error)
        raise ConfigError(f"env.id={env.id} with env.kwargs={env.kwargs}: {what}") from error
    return lane


def _state_bytes(env: EnvSpec, seed: int) -> int:
    """The bytes of a lane's state, after a trial that another lane goes on from it exactly.

    Raises:
        RolloutError: it does not.
    """
    lane = make_lanes(env, [0], seed)
    lane.action_space.seed(seed)
    actions = [np.asarray(lane.action_space.sample())[None] for _ in range(_BEFORE + _AFTER)]
    for _ in range(2):  # an episode must not depend on the one before
        lane.reset()
        for action in actions[:_BEFORE]:
            lane.step(action)
    state = lane.state()
    expected = _future(lane, actions[_BEFORE:]) if state is not None else []
    lane.close()
    if state is None:
        raise RolloutError("these lanes cannot give their state")
    other = make_lanes(env, [0], seed + 1)
    other.restore(state)
    found = _future(other, actions[_BEFORE:])
    other.close()
    if found != expected:
        raise RolloutError("an environment with the state of another one goes on differently")
    return int(state.shape[1])


def _future(lane: Lanes, actions: Sequence[AnyArray]) -> list[bytes]:
    """What steps and a reset give, bit for bit."""
    found = []
    for action in actions:
        step = lane.step(action)
        final = step.final_obs if step.final_obs is not None else step.obs
        found += [np.asarray(x).tobytes() for x in (*step[:4], final)]
    return [*found, lane.reset().tobytes()]
