"""Starts a run with the networks and the normalisers of another one (`start_from=DIR`)."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from walle.agent import checkpoint
from walle.algos.base import copy_entries
from walle.config.schemas import Config
from walle.envs.lanes import EnvSpec, Lanes
from walle.errors import CheckpointError, ConfigError
from walle.policy.acting import Spaces, find_checkpoint
from walle.system.identity import flatten
from walle.types import layout_of

_NEEDED = {"env_steps": 0, "algorithm": {}, "config": {"algo": {"name": ""}, "net": {}}}
# What must be equal in both runs; the initial noise and the length of sequences may differ.
_SAME = re.compile(r"algo\.(name|normalize_[or]\w+)$|net\.(?!log_std$|sequence$)|space of")


class Parent(NamedTuple):
    """The checkpoint that a run starts from: its file, and the state in it as data."""

    file: Path
    state: dict[str, Any]

    @classmethod
    def read(cls, path: str) -> Parent:
        """Reads a checkpoint file, or the checkpoint of a run that `walle.load` would choose."""
        try:
            file = find_checkpoint(Path(path))
            state = checkpoint.load(file)
            checkpoint.check(file, state, _NEEDED)
        except ConfigError as error:
            raise type(error)(f"start_from: {error}") from error
        return cls(file, state)

    def start(self, algorithm: Any, config: Config, lane: Lanes) -> str:
        """Starts a new run's algorithm from it; returns a line to print, or raises ConfigError."""
        file, state = self  # data: nothing that it names is imported
        mine, its = (flatten(checkpoint.as_data(x)) for x in (asdict(config), state["config"]))
        try:
            if stored := (state.get("policy") or {}).get("spaces"):
                for flat, of in ((its, Spaces.stored(stored)), (mine, Spaces.of(lane))):
                    flat["space of obs"], action = of.texts[0], of.action  # its bounds may differ
                    is_box = isinstance(action, gym.spaces.Box)
                    flat["space of action"] = f"Box{action.shape}" if is_box else str(action)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(f"{file} is damaged: policy.spaces: {error!r}") from error
        scales = "rewards" in state["algorithm"]  # off-policy runs up to version 0.3 do not say it
        its.setdefault("algo.normalize_rewards", scales)
        for key, ours in mine.items():
            if _SAME.match(key) and its.get(key, ours) != ours:
                raise ConfigError(
                    f"start_from={file}: that run has {key}={its[key]}, and this one {key}={ours}; "
                    "start from a run with the same algorithm, net and spaces"
                )
        if not hasattr(algorithm, "start_from"):
            raise ConfigError(f"start_from={file}: {config.algo.name} has no method start_from")
        like = copy_entries({}, algorithm.state_dict(), algorithm.learned[::-1])  # moments first
        checkpoint.check(file, state, {"algorithm": like})
        names = algorithm.start_from(checkpoint.as_data(state["algorithm"]))
        anew = "optimizers, schedules, counters, random streams"
        if algorithm.replay is not None:
            anew += f", replay buffer; the first {config.algo.random_steps:,} steps are random"
        return f"starting from {file}, {state['env_steps']:,} steps: takes {names}; anew: {anew}"


def continued(env: EnvSpec, lane: Lanes, source: Parent, *, resumed: bool) -> EnvSpec:
    """`env` with the offset of the run `source`; if `resumed`, also its `info`.

    `lane` is one of its lanes: a resumed run must have the spaces that it had.
    """
    file, state = source
    entries = layout_of(lane.observation_space).vector
    if resumed and (spaces := (state.get("policy") or {}).get("spaces")):
        Spaces.stored(spaces).check(lane, f"resume={file.parent.parent}")
    if not resumed and getattr(state.get("offset"), "shape", (entries,)) != (entries,):
        return env  # `Parent.start` refuses it
    offset = checkpoint.offset_of(file, state, entries)
    if resumed:
        return replace(env, offset=offset, info=tuple(state.get("info", ())))
    if (gap := np.abs(np.subtract(offset or 0, env.offset or 0)).max()) >= 2**24:
        raise ConfigError(
            f"start_from={file}: numbers in the observations differ by {gap:.2g} from that run's, "
            "and float32 would round them; make them relative, or leave out start_from"
        )
    return replace(env, offset=offset)
