"""What travels: experience to the agent, policies to the samplers, and the lag between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[np.generic]

STEP_FIELDS = ("obs", "final_obs", "action", "reward", "terminated", "truncated", "log_prob")
LANE_FIELDS = ("lane", "policy_version", "state")


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
        lag: [L] how many versions the learning policy is ahead of the acting one; filled in by the
            agent, which counts the versions.
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
    lag: IntArray = np.zeros(0, np.int64)

    @property
    def env_steps(self) -> int:
        """Environment steps in the rollout: T x L."""
        return int(self.reward.size)

    @property
    def ended(self) -> BoolArray:
        """[T, L]: an episode ended with this step, whichever way."""
        return self.terminated | self.truncated

    def between(self, begin: int, end: int) -> Rollout:
        """Views of the steps from `begin` up to, but without, `end`; `state` stays as it is."""
        cut: dict[str, Any] = {name: getattr(self, name)[begin:end] for name in STEP_FIELDS}
        return self._replace(**{**cut, "obs": self.obs[begin : end + 1]})

    def successors(self) -> AnyArray:
        """[T, L, *O]: the true successor of every step, across episode ends too."""
        shape = self.ended.shape + (1,) * (self.obs.ndim - self.ended.ndim)
        return np.where(self.ended.reshape(shape), self.final_obs, self.obs[1:])


def unique_lane_groups(lane: IntArray) -> list[IntArray]:
    """Splits columns into groups so that no lane appears twice in a group.

    A free-running round may hold two rollouts of one sampler. What is remembered of a lane from
    rollout to rollout must take them one after the other, so earlier columns come first.

    Args:
        lane: [L] the lane of each column.

    Returns:
        column numbers of each group; one group unless a lane repeats.
    """
    seen: dict[int, int] = {}
    groups: list[list[int]] = []
    for column, number in enumerate(lane.tolist()):
        group = seen.get(number, 0)
        seen[number] = group + 1
        if group == len(groups):
            groups.append([])
        groups[group].append(column)
    return [np.array(columns, np.int64) for columns in groups]


class PolicySnapshot(NamedTuple):
    """What a sampler needs to act: a version, one flat vector, and how much to collect under it.

    Attributes:
        version: 0 for the initial policy, then one more for every update; counted by the agent.
        vector: [P + 2 O] float32, made by `pack`: the policy's P parameters, then the frozen
            normaliser.
        rollout_steps: T of the rollouts to collect, where it changes from round to round; None for
            as many as there is room for.
        episodes: how many episodes the round has, over all lanes, where rounds are made of whole
            episodes; else None.
    """

    version: int
    vector: FloatArray
    rollout_steps: int | None = None
    episodes: int | None = None

    @classmethod
    def pack(
        cls, parameters: Sequence[AnyArray], mean: FloatArray, inv_std: FloatArray
    ) -> PolicySnapshot:
        """A snapshot that the agent has not numbered yet; `unpack` takes it apart.

        Args:
            parameters: parts of the policy's parameters, [P] in all.
            mean: [O] that the normaliser subtracts.
            inv_std: [O] that it multiplies with then.
        """
        return cls(0, np.concatenate((*parameters, mean, inv_std), dtype=np.float32))

    def unpack(self, size: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Copies of the parameters [P], P being `size`, the mean [O] and 1 / std [O]."""
        vector = self.vector.copy()
        mean, inv_std = vector[size:].reshape(2, -1)
        return vector[:size], mean, inv_std


@dataclass(frozen=True)
class Lag:
    """How many policy versions samplers may act behind: the meaning of `sampler.max_lag`.

    Attributes:
        most: 0 is lock-step, k lets k rounds overlap, None is free-running.
    """

    most: int | None

    @property
    def lock_step(self) -> bool:
        """Whether collecting and learning take turns."""
        return self.most == 0

    @property
    def free_running(self) -> bool:
        """Whether samplers act under the newest policy there is, and rounds have no number."""
        return self.most is None

    @property
    def mode(self) -> str:
        """One of "lock_step", "overlapped" and "free"."""
        if self.most is None:
            return "free"
        return "overlapped" if self.most else "lock_step"

    @property
    def slots(self) -> int:
        """Rollouts in flight per sampler: a lag of k needs k + 1.

        Free-running gets one: a sampler fills its slot while the agent learns, so the agent does
        not wait after learning, and no rollout grows older than that in a queue.
        """
        return 1 if self.most is None else self.most + 1

    @property
    def depth(self) -> int:
        """Policy versions to keep: those of the lag and the newest; two at least.

        A free-running sampler may still read one version while the next one is written.
        """
        return max(2, self.slots)

    def oldest(self, round_: int) -> int:
        """The version that a sampler waits for before it starts that round."""
        return 0 if self.most is None else max(0, round_ - self.most)
