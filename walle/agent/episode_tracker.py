"""The finished episodes of a run: rows of episodes.csv, and means over the last episodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from walle.agent.csv_file import Value
from walle.algos.episodes import LaneReturns
from walle.types import Rollout


class Episode(NamedTuple):
    """A finished episode, with the fields of a row of episodes.csv."""

    env_steps: int
    wall_s: float
    sampler: int
    lane: int
    policy_version: int
    episode_return: float
    length: int
    end: str

    def row(self) -> dict[str, Value]:
        """The row of episodes.csv, by column."""
        return dict(zip(EPISODE_COLUMNS, self, strict=True))


EPISODE_COLUMNS = tuple(name.removeprefix("episode_") for name in Episode._fields)


class EpisodeTracker:
    """Finds the episodes that end in rollouts; keeps returns and lengths of the last ones."""

    def __init__(self, sampler_of_lane: Sequence[int], window: int) -> None:
        """`sampler_of_lane` has each lane's sampler; `return_mean` covers `window` episodes."""
        self._sampler = sampler_of_lane
        self._lanes = LaneReturns(len(sampler_of_lane))
        self._recent: deque[float] = deque(maxlen=window)
        self._recent_lengths: deque[int] = deque(maxlen=window)
        self.count = 0

    def add(self, rollout: Rollout, steps_before: int, wall_s: float) -> list[Episode]:
        """Adds a rollout; returns the episodes that ended in it, by step and then by lane."""
        episodes = []
        for finished in self._lanes.add(rollout):
            step, column = finished.step, finished.column
            lane = int(rollout.lane[column])
            episode = Episode(
                env_steps=steps_before + (step + 1) * rollout.reward.shape[1],
                wall_s=wall_s,
                sampler=self._sampler[lane],
                lane=lane,
                policy_version=int(rollout.policy_version[column]),
                episode_return=finished.episode_return,
                length=finished.length,
                end="terminated" if rollout.terminated[step, column] else "truncated",
            )
            episodes.append(episode)
        self._recent.extend(episode.episode_return for episode in episodes)
        self._recent_lengths.extend(episode.length for episode in episodes)
        self.count += len(episodes)
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {
            "lanes": self._lanes.state_dict(),
            "returns": list(self._recent),
            "lengths": list(self._recent_lengths),
            "count": self.count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self._lanes.load_state_dict(state["lanes"])
        self._recent.extend(state["returns"])
        self._recent_lengths.extend(state["lengths"])
        self.count = state["count"]

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last episodes; None before the first."""
        return float(np.mean(self._recent)) if self._recent else None

    @property
    def length_mean(self) -> float | None:
        """Mean length of the last episodes in steps; None before the first."""
        return float(np.mean(self._recent_lengths)) if self._recent_lengths else None


def spread(values: Sequence[float], name: str, *, median: bool = False) -> dict[str, Value]:
    """Cells `name`_mean, _median (on request), _std, _min and _max; None if `values` is empty."""
    x = np.asarray(values, np.float64)
    kinds = ("mean", "median", "std", "min", "max") if median else ("mean", "std", "min", "max")
    return {f"{name}_{kind}": float(getattr(np, kind)(x)) if x.size else None for kind in kinds}
