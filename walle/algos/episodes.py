"""The return and the length of every lane's unfinished episode, kept from rollout to rollout."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from walle.types import Rollout, unique_lane_groups


class FinishedEpisode(NamedTuple):
    """An episode that ended in a rollout."""

    step: int  # t, the last step of the episode
    column: int  # the lane's column in the rollout
    episode_return: float  # the sum of the rewards
    length: int  # the number of steps


class LaneReturns:
    """Sums of rewards and steps of each lane's episode, across rollouts."""

    def __init__(self, lanes: int) -> None:
        """Starts with all `lanes` of the run at the beginning of an episode."""
        self._return = np.zeros(lanes)
        self._length = np.zeros(lanes, np.int64)

    def add(self, rollout: Rollout) -> list[FinishedEpisode]:
        """Adds a rollout; returns the episodes that ended in it.

        They are ordered by step and then by column within each group of `unique_lane_groups`.
        Rewards are added one by one, so a sum does not depend on where rollouts were cut.
        """
        finished: list[FinishedEpisode] = []
        all_ended = rollout.ended
        for columns in unique_lane_groups(rollout.lane):
            lanes = rollout.lane[columns]
            if rollout.begins.size:
                new = lanes[rollout.begins[columns]]
                self._return[new] = self._length[new] = 0
            rewards = rollout.reward[:, columns].astype(np.float64)
            rewards[0] += self._return[lanes]
            ended = all_ended[:, columns]
            found = []
            for c in np.flatnonzero(ended.any(0)):
                begin, before = 0, int(self._length[lanes[c]])
                for t in np.flatnonzero(ended[:, c]):
                    total = float(np.add.accumulate(rewards[begin : t + 1, c])[-1])
                    length = before + int(t) + 1 - begin
                    found.append(FinishedEpisode(int(t), int(columns[c]), total, length))
                    begin, before = int(t) + 1, 0
                rewards[:begin, c] = 0.0
                self._length[lanes[c]] = -begin
            finished += sorted(found)
            self._return[lanes] = np.add.accumulate(rewards, axis=0)[-1]
            self._length[lanes] += len(rewards)
        return finished

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {"return": self._return.copy(), "length": self._length.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self._return = np.asarray(state["return"]).copy()
        self._length = np.asarray(state["length"]).copy()
