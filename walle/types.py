"""The two things that travel: experience to the agent, policies to the samplers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[np.generic]


class Rollout(NamedTuple):
    """T steps of L lanes, each lane under one policy version for the whole rollout.

    `obs[t + 1]` is what the policy saw next. Where an episode ended at step t that is the first
    observation of the next episode, and the true successor of step t is `final_obs[t]` instead;
    `successors` puts the two together. Rows of `final_obs` are undefined where no episode ended.

    Attributes:
        obs: [T+1, L, *O] raw observations, not normalised.
        final_obs: [T, L, *O] the last observation of an episode, where one ended.
        action: [T, L, *A] as the policy drew them, before clipping or rescaling.
        reward: [T, L] raw rewards.
        terminated: [T, L] the episode reached a terminal state: its value is zero.
        truncated: [T, L] the episode was cut: the successor's value still counts.
        log_prob: [T, L] of `action` under the policy that drew it.
        lane: [L] the number of each lane in the whole run.
        policy_version: [L] the version each lane acted under.
        state: [L, S] the policy's memory before the first step; S = 0 where it has none.
    """

    obs: AnyArray
    final_obs: AnyArray
    action: AnyArray
    reward: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    log_prob: FloatArray
    lane: IntArray
    policy_version: IntArray
    state: FloatArray = np.zeros((0, 0), np.float32)

    @property
    def steps(self) -> int:
        """Environment steps in the rollout: T x L."""
        return int(self.reward.size)

    def between(self, begin: int, end: int) -> Rollout:
        """Views of the steps from `begin` up to, but without, `end`; `state` stays as it is."""
        return self._replace(
            obs=self.obs[begin : end + 1],
            final_obs=self.final_obs[begin:end],
            action=self.action[begin:end],
            reward=self.reward[begin:end],
            terminated=self.terminated[begin:end],
            truncated=self.truncated[begin:end],
            log_prob=self.log_prob[begin:end],
        )

    def successors(self) -> AnyArray:
        """[T, L, *O]: the true successor of every step, across episode ends too."""
        ended = self.terminated | self.truncated
        shape = ended.shape + (1,) * (self.obs.ndim - ended.ndim)
        return np.where(ended.reshape(shape), self.final_obs, self.obs[1:])


def unique_lane_groups(lane: IntArray) -> list[IntArray]:
    """Splits columns so that no lane appears twice in a pass, and earlier columns come first.

    A free-running round may hold two rollouts of one sampler; whatever is kept from rollout to
    rollout for each lane must take them one after the other.

    Args:
        lane: [L] the lane of each column.

    Returns:
        column numbers; a single pass unless a lane repeats.
    """
    seen: dict[int, int] = {}
    turns: list[list[int]] = []
    for column, number in enumerate(lane.tolist()):
        turn = seen.get(number, 0)
        seen[number] = turn + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(column)
    return [np.array(columns, np.int64) for columns in turns]


class PolicySnapshot(NamedTuple):
    """All that a sampler needs to act: a version and one flat vector.

    Attributes:
        version: 0 for the initial policy, then one more for every update.
        vector: [P + 2 O] float32: the policy's P parameters, then the frozen normaliser's mean
            and reciprocal standard deviation of each observation entry.
        rows: T of the rollouts collected under it, where that changes from round to round; None
            for as many as there is room for.
        episodes: how many a round collected under it has, over all lanes, where rounds are made of
            whole episodes; else None.
    """

    version: int
    vector: FloatArray
    rows: int | None = None
    episodes: int | None = None
