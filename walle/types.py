"""Rollouts for the agent, policy snapshots for the samplers, and the lag between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[np.generic]
ActionSpace = (
    gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary
)

STEP_FIELDS = (
    *("obs", "final_obs", "action", "reward", "terminated", "truncated", "log_prob", "info"),
)
LANE_FIELDS = ("lane", "policy_version", "state", "begins")
NO_LANE: BoolArray = np.zeros(0, np.bool_)
SIDE_BY_SIDE: IntArray = np.zeros(0, np.int64)
LEAST_PIXELS = 36  # a side of an image that the usual three convolutions reduce to one pixel
SMALLEST = 7  # a side of a small image, for which convolutions are smaller
SUCCESS = ("is_success", "success")  # names in an info that are recorded without being asked for
# the keys of a Dict that the policy sees, and those that the critics see; None for all
Keys = tuple[Sequence[str] | None, Sequence[str] | None]


class Image(NamedTuple):
    """An image: its shape as the environment returns it, its channel position, its numbers."""

    shape: tuple[int, ...]
    channels_first: bool
    dtype: str = "uint8"  # of its pixels in a row: this, "bool", or "float32" for all other numbers
    scale: float = 255.0  # the network sees pixels divided by this

    @property
    def size(self) -> int:
        """The number of bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def chw(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        if len(self.shape) == 2:
            return (1, *self.shape)
        a, b, c = self.shape
        return (a, b, c) if self.channels_first else (c, a, b)


class ObsLayout(NamedTuple):
    """The layout of an observation in a row of numbers of one type.

    Without images a row has `vector` numbers of float32. With images it has bytes: the `vector`
    numbers of float32, four bytes each, then the images, then zeros up to a multiple of four.
    """

    vector: int
    images: tuple[Image, ...] = ()
    policy_only: int = 0  # numbers at the start of the vector that a critic does not see
    critic_only: int = 0  # numbers at its end that the policy does not see

    @property
    def width(self) -> int:
        """The entries of a row."""
        if not self.images:
            return self.vector
        return 4 * self.vector + -(-sum(image.size for image in self.images) // 4) * 4

    @property
    def dtype(self) -> str:
        """The type of a row's entries."""
        return "uint8" if self.images else "float32"

    def vectors(self, rows: AnyArray) -> FloatArray:
        """A view of the vectors [..., vector] in `rows` [..., width]."""
        if not self.images:
            return rows  # type: ignore[return-value]
        return rows[..., : 4 * self.vector].view(np.float32)


def layout_of(space: gym.spaces.Box) -> ObsLayout:
    """The layout of the observations of lanes."""
    layout: ObsLayout | None = getattr(space, "layout", None)
    return layout or ObsLayout(int(space.shape[0]))


class InfoColumn(NamedTuple):
    """A number of the environment's info that becomes a column: one value for each episode."""

    name: str  # its name in the info
    by: str  # the "last" value of an episode, or the "mean" or the "sum" over its steps
    column: str  # the name in episodes.csv; elsewhere it ends in `_mean`

    @classmethod
    def of(cls, entry: str) -> InfoColumn:
        """Reads an entry of `logger.info`: NAME, NAME:mean or NAME:sum."""
        name, _, by = entry.rpartition(":")
        known = name and by in ("mean", "sum")
        return cls(name, by, f"{name}_{by}") if known else cls(entry, "last", entry)

    def value(self, last: Any, total: Any, length: Any) -> Any:
        """The value of an episode of `length` steps, from the last number and the sum of all."""
        return {"last": last, "mean": total / length, "sum": total}[self.by]


class Rollout(NamedTuple):
    """T steps of L lanes, each lane under one policy version for the whole rollout.

    `obs[t + 1]` is the next observation of the policy. If an episode ended at step t, it is the
    first observation of the next episode, and `final_obs[t]` is the true successor of step t;
    `successors` combines the two. `final_obs` is undefined where no episode ended.
    """

    obs: AnyArray  # [T+1, L, *O] raw observations, not normalised
    final_obs: AnyArray  # [T, L, *O] the last observation of an episode, where one ended
    action: AnyArray  # [T, L, *A] as the policy drew them, before clipping or rescaling
    reward: FloatArray  # [T, L] raw rewards
    terminated: BoolArray  # [T, L] the episode reached a terminal state, whose value is zero
    truncated: BoolArray  # [T, L] the episode was cut; the successor's value still counts
    log_prob: FloatArray  # [T, L] of `action` under the policy that drew it
    lane: IntArray  # [L] the number of each lane in the whole run
    policy_version: IntArray  # [L] the version of the policy that acted
    # [L, S] the policy's memory before the first step; S = 0 without a memory
    state: FloatArray = np.zeros((0, 0), np.float32)
    # [L] whether an episode begins with the first step although the previous one has not ended;
    # empty if there is no such lane
    begins: BoolArray = NO_LANE
    # [T, L, K] the numbers of the environment's info, see `InfoColumn`; NaN where a step has none
    info: npt.NDArray[np.float64] = np.zeros((0, 0, 0))
    # [L] the learning policy's version minus `policy_version`; the agent fills it in
    lag: IntArray = np.zeros(0, np.int64)

    @property
    def env_steps(self) -> int:
        """Environment steps in the rollout: T x L."""
        return int(self.reward.size)

    @property
    def ended(self) -> BoolArray:
        """Whether an episode ended with the step, terminated or truncated: [T, L]."""
        return self.terminated | self.truncated

    def between(self, begin: int, end: int) -> Rollout:
        """Views of the steps from `begin` to `end` (excluded); `state` does not change."""
        cut: dict[str, Any] = {name: getattr(self, name)[begin:end] for name in STEP_FIELDS}
        return self._replace(**{**cut, "obs": self.obs[begin : end + 1]})

    def successors(self) -> AnyArray:
        """The true successor of every step, also where an episode ended: [T, L, *O]."""
        ended = self.ended
        shape = ended.shape + (1,) * (self.obs.ndim - ended.ndim)
        return np.where(ended.reshape(shape), self.final_obs, self.obs[1:])


class Filled(NamedTuple):
    """The filled part of a rollout's arrays."""

    steps: int  # T, the steps of every column
    # the steps of each lane if the lanes are packed into one column, one after the other; empty if
    # each lane has a column
    lane_steps: IntArray
    faults: int = 0  # of the environment, see `env.on_error`


def unique_lane_groups(lane: IntArray) -> list[IntArray]:
    """Splits columns into groups so that no lane appears twice in a group.

    A free-running round may hold two rollouts of one sampler. State that is kept for each lane must
    process these rollouts one after the other, so earlier columns come in earlier groups. Returns
    the column numbers of each group; a single group unless a lane appears twice.
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
    """A policy for the samplers: its version, one flat vector, and the amount to collect."""

    version: int  # 0 for the initial policy, one more after every update; counted by the agent
    vector: FloatArray  # [P + 2 O] float32: the policy's P parameters, then the frozen normaliser
    # T of the rollouts to collect; None for as many steps as a slot can hold
    rollout_steps: int | None = None
    # number of episodes of the round, over all lanes, if rounds have whole episodes; else None
    episodes: int | None = None

    @classmethod
    def of(
        cls, parameters: Sequence[AnyArray], mean: FloatArray, inv_std: FloatArray
    ) -> PolicySnapshot:
        """Builds a snapshot with version 0 from parts of the parameters and the normaliser."""
        return cls(0, np.concatenate((*parameters, mean, inv_std), dtype=np.float32))

    @classmethod
    def loaded(cls, fields: Mapping[str, Any]) -> PolicySnapshot:
        """The snapshot whose fields a checkpoint holds."""
        return cls(**{**fields, "vector": np.asarray(fields["vector"]).copy()})

    def parts(self, size: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Copies of the parameters [P], P being `size`, the mean [O] and 1 / std [O]."""
        vector = self.vector.copy()
        mean, inv_std = vector[size:].reshape(2, -1)
        return vector[:size], mean, inv_std


@dataclass(frozen=True)
class Lag:
    """The allowed lag of the samplers in policy versions, as `sampler.max_lag` sets it."""

    most: int | None  # 0 is lock-step, k allows k overlapping rounds, None is free-running

    @property
    def lock_step(self) -> bool:
        """Whether collecting and learning take turns."""
        return self.most == 0

    @property
    def free_running(self) -> bool:
        """Whether samplers act under the newest policy and never wait for a version."""
        return self.most is None

    @property
    def mode(self) -> str:
        """One of "lock_step", "overlapped" and "free"."""
        if self.most is None:
            return "free"
        return "overlapped" if self.most else "lock_step"

    @property
    def slots(self) -> int:
        """The number of slots of each sampler: a lag of k needs k + 1.

        Free-running needs one slot: a sampler fills it while the agent learns. More slots would let
        rollouts grow older in the queue.
        """
        return 1 if self.most is None else self.most + 1

    @property
    def depth(self) -> int:
        """The number of policy versions in the policy queue: at least two.

        A free-running sampler may still read a version while the agent writes the next one.
        """
        return max(2, self.slots)

    def oldest(self, round_: int) -> int:
        """The version that a sampler waits for before it starts that round."""
        return 0 if self.most is None else max(0, round_ - self.most)
