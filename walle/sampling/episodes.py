"""Collection of whole episodes: a round has a number of episodes instead of a number of steps.

The method is Frans & Hafner's. Before a round the number of episodes is set to the wanted steps
divided by the mean episode length of the previous round, and split among the lanes. Every lane is
reset before each round with a seed for that lane and round. A lane's steps after its last episode,
while other lanes still run, therefore have no effect, and a round does not depend on `sampler.n`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from walle.envs import Lanes
from walle.sampling.actor import Actor
from walle.sampling.collect import Fault, collect
from walle.streams import episode_action_noise, episode_env_seed
from walle.timing import Timer
from walle.types import (
    LANE_FIELDS,
    STEP_FIELDS,
    AnyArray,
    BoolArray,
    Filled,
    IntArray,
    PolicySnapshot,
    Rollout,
)

_CHUNK = 64
_CAPACITY = 4


def capacity(batch_size: int, lanes: int, longest: int) -> int:
    """The most steps of a lane in a round: four times its part of the batch, at least `longest`."""
    return max(longest, _CAPACITY * batch_size // lanes)


def episodes_of_lanes(episodes: int, numbers: Sequence[int], lanes: int) -> IntArray:
    """The number of episodes for each lane in `numbers`, if `lanes` lanes run `episodes` in all."""
    return np.array([episodes // lanes + (n < episodes % lanes) for n in numbers], np.int64)


def steps_to_quota(ended: BoolArray, quota: IntArray) -> IntArray:
    """The number of steps [L] until each lane has `quota` [L] ends in `ended` [T, L], at most T."""
    complete = ended.cumsum(0) >= quota
    return np.where(complete[-1], complete.argmax(0) + 1, len(ended))


class EpisodeQuota:
    """A function that decides the number of episodes of the next round."""

    def __init__(self, batch_size: int, lanes: int) -> None:
        """Aims at `batch_size` steps a round; each of `lanes` lanes runs at least one episode."""
        self._batch_size, self._lanes = batch_size, lanes
        self._mean_length: float | None = None

    def observe(self, rollout: Rollout) -> None:
        """Measures the mean length of a round's episodes."""
        self._mean_length = rollout.env_steps / int(rollout.ended.sum())

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {"mean_length": self._mean_length}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self._mean_length = state["mean_length"]

    def __call__(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """The snapshot with the number of episodes to collect."""
        episodes = self._lanes
        if self._mean_length is not None:
            steps = snapshot.rollout_steps
            wanted = self._batch_size if steps is None else steps * self._lanes
            episodes = max(self._lanes, round(wanted / self._mean_length))
        return snapshot._replace(episodes=episodes)


class EpisodeSampler:
    """A sampler whose lanes run whole episodes."""

    def __init__(
        self, lanes: Lanes, actor: Actor, numbers: Sequence[int], seed: int, all_lanes: int
    ) -> None:
        """`numbers` are the lanes' numbers in the run, which has `all_lanes` lanes."""
        self.lanes, self._actor = lanes, actor
        self._numbers = np.asarray(numbers, np.int64)
        self._seed, self._all_lanes = seed, all_lanes
        self._scratch: Rollout | None = None

    def fill(self, out: Rollout, snapshot: PolicySnapshot, round_: int, timer: Timer) -> Filled:
        """Collects this sampler's part of `snapshot.episodes`, packed into one column of `out`.

        The episode of a lane that reaches its capacity is truncated there.
        """
        assert snapshot.episodes is not None
        self._actor.load(snapshot)
        scratch = self._scratch = self._scratch or _side_by_side(out, self._numbers)
        quota = episodes_of_lanes(snapshot.episodes, self._numbers.tolist(), self._all_lanes)
        keys = [(self._seed, int(number), round_) for number in self._numbers]
        noise = [episode_action_noise(*key) for key in keys]
        scratch.obs[0] = self.lanes.reset([episode_env_seed(*key) for key in keys])
        steps, faults = 0, list[Fault]()
        while steps < len(scratch.reward) and (scratch.ended[:steps].sum(0) < quota).any():
            chunk = scratch.between(0, min(steps + _CHUNK, len(scratch.reward)))
            draws = [self._actor.policy.noise(rng, len(chunk.reward) - steps) for rng in noise]
            faults += collect(self.lanes, self._actor, np.stack(draws, 1), chunk, timer, steps)
            steps = len(chunk.reward)
        lane_steps = steps_to_quota(scratch.ended[:steps], quota)
        _truncate_last(scratch, lane_steps)
        pack(scratch, lane_steps, out)
        out.lane[:] = self._numbers[0]
        out.policy_version[:] = snapshot.version
        used = sum(t < lane_steps[column] for t, column in faults)
        return Filled(int(lane_steps.sum()), lane_steps, int(used))

    def export_states(self, states: AnyArray, memory: AnyArray) -> int:  # noqa: ARG002
        """Exports nothing, unlike `LaneSampler`: no round depends on the lanes' earlier states."""
        return 0


def _side_by_side(packed: Rollout, numbers: IntArray) -> Rollout:
    """Arrays for the lanes `numbers` side by side, with as many steps in all as `packed`."""
    steps, lanes = len(packed.reward) // len(numbers), len(numbers)
    like = {name: getattr(packed, name) for name in STEP_FIELDS}
    arrays: dict[str, Any] = {
        name: np.zeros((steps + (name == "obs"), lanes, *x.shape[2:]), x.dtype)
        for name, x in like.items()
    }
    return Rollout(**arrays, lane=numbers, policy_version=np.zeros(lanes, np.int64))


def _truncate_last(scratch: Rollout, lane_steps: IntArray) -> None:
    last, lanes = lane_steps - 1, np.arange(len(lane_steps))
    unfinished = ~scratch.ended[last, lanes]
    last, lanes = last[unfinished], lanes[unfinished]
    scratch.truncated[last, lanes] = True
    scratch.final_obs[last, lanes] = scratch.obs[last + 1, lanes]


def pack(scratch: Rollout, lane_steps: IntArray, out: Rollout) -> None:
    """Copies the first lane_steps[i] steps of lane i into one column of `out`, lane after lane.

    The observation after the last step is copied too, but not used, because an episode ended there.
    """
    begin = 0
    for lane, steps in enumerate(lane_steps):
        for name in STEP_FIELDS:
            getattr(out, name)[begin : begin + steps, 0] = getattr(scratch, name)[:steps, lane]
        begin += steps
    out.obs[begin, 0] = scratch.obs[lane_steps[-1], -1]


def unpack(rollout: Rollout, lane_steps: IntArray, numbers: Sequence[int]) -> list[Rollout]:
    """Splits a packed rollout into one rollout a lane; lane numbers[i] has lane_steps[i] steps."""
    ends = lane_steps.cumsum()
    return [
        rollout.between(int(begin), int(end))._replace(lane=np.array([number]))
        for number, begin, end in zip(numbers, ends - lane_steps, ends, strict=True)
    ]


def concatenate(rollouts: Sequence[Rollout]) -> Rollout:
    """Concatenates packed rollouts in one column.

    Each ends with an episode's end, so only the last keeps the observation after its last step.
    """
    obs = [*(rollout.obs[:-1] for rollout in rollouts), rollouts[-1].obs[-1:]]
    steps = {name: [getattr(rollout, name) for rollout in rollouts] for name in STEP_FIELDS}
    joined: dict[str, Any] = {name: np.concatenate(x) for name, x in (steps | {"obs": obs}).items()}
    lanes = {name: getattr(rollouts[0], name).copy() for name in LANE_FIELDS}
    return Rollout(**joined, **lanes)
