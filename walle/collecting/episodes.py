"""Collecting whole episodes: a round is a number of them instead of a number of steps.

As Frans & Hafner collected: the number of episodes is decided before the round, as the wanted steps
over the mean length of the round before, and dealt to the lanes. Every lane begins each round
afresh, from a seed of its own for that round; so what a lane does once its episodes are complete,
while others still run, leaves no trace, and a round does not depend on `sampler.n`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from walle.collecting.actor import Actor
from walle.collecting.sampler import Filled, collect
from walle.envs import Lanes
from walle.streams import episode_action_noise, episode_env_seed
from walle.timing import Timer
from walle.types import LANE_FIELDS, STEP_FIELDS, BoolArray, IntArray, PolicySnapshot, Rollout

_CHUNK = 64
_CAPACITY = 4


def capacity(batch_size: int, lanes: int, longest: int) -> int:
    """Steps that a lane can hold in a round: four times its part of the batch, or one episode."""
    return max(longest, _CAPACITY * batch_size // lanes)


def episodes_of_lanes(episodes: int, numbers: Sequence[int], lanes: int) -> IntArray:
    """How many of a round's episodes each of the lanes `numbers` runs, of `lanes` in all."""
    return np.array([episodes // lanes + (n < episodes % lanes) for n in numbers], np.int64)


def steps_to_quota(ended: BoolArray, quota: IntArray) -> IntArray:
    """Steps until each lane's quota of episodes is complete; all T where it is not.

    Args:
        ended: [T, L] an episode ended with this step.
        quota: [L] episodes.
    """
    complete = ended.cumsum(0) >= quota
    return np.where(complete[-1], complete.argmax(0) + 1, len(ended))


class EpisodeQuota:
    """How many episodes the next round is to have."""

    def __init__(self, batch_size: int, lanes: int) -> None:
        """`batch_size` steps are wanted; every one of `lanes` runs an episode at least."""
        self._batch_size, self._lanes = batch_size, lanes
        self._mean_length: float | None = None

    def observe(self, rollout: Rollout) -> None:
        """Takes in the lengths of a round's episodes."""
        self._mean_length = rollout.env_steps / int(rollout.ended.sum())

    def __call__(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """The snapshot with the number of episodes to collect under it."""
        episodes = self._lanes
        if self._mean_length is not None:
            steps = snapshot.rollout_steps
            wanted = self._batch_size if steps is None else steps * self._lanes
            episodes = max(self._lanes, round(wanted / self._mean_length))
        return snapshot._replace(episodes=episodes)


class EpisodeSampler:
    """The lanes of one sampler, which run whole episodes."""

    def __init__(
        self, lanes: Lanes, actor: Actor, numbers: Sequence[int], seed: int, all_lanes: int
    ) -> None:
        """`numbers` are the lanes' numbers among the `all_lanes` of the run."""
        self._lanes, self._actor = lanes, actor
        self._numbers = np.asarray(numbers, np.int64)
        self._seed, self._all_lanes = seed, all_lanes
        self._round = 0
        self._scratch: Rollout | None = None

    def fill(self, out: Rollout, snapshot: PolicySnapshot, timer: Timer) -> Filled:
        """Collects this sampler's part of `snapshot.episodes` into the one column of `out`.

        A lane that has reached its capacity cuts its episode there, as a time limit would.
        """
        assert snapshot.episodes is not None
        self._actor.load(snapshot)
        scratch = self._scratch = self._scratch or _side_by_side(out, self._numbers)
        quota = episodes_of_lanes(snapshot.episodes, self._numbers.tolist(), self._all_lanes)
        steps = self._collect(scratch, quota, timer)
        lane_steps = steps_to_quota(scratch.ended[:steps], quota)
        _truncate_last(scratch, lane_steps)
        pack(scratch, lane_steps, out)
        out.lane[:] = self._numbers[0]
        out.policy_version[:] = snapshot.version
        return Filled(int(lane_steps.sum()), lane_steps)

    def _collect(self, scratch: Rollout, quota: IntArray, timer: Timer) -> int:
        """Steps all lanes until each has run its episodes or is full; returns how many steps."""
        own = [(self._seed, int(number), self._round) for number in self._numbers]
        self._round += 1
        noise = [episode_action_noise(*key) for key in own]
        seeds = [episode_env_seed(*key) for key in own]
        scratch.obs[0] = self._lanes.reset(seeds)
        done, steps = np.zeros_like(quota), 0
        while steps < len(scratch.reward) and (done < quota).any():
            chunk = scratch.between(steps, min(steps + _CHUNK, len(scratch.reward)))
            draws = [self._actor.policy.noise(rng, len(chunk.reward)) for rng in noise]
            collect(self._lanes, self._actor, np.stack(draws, 1), chunk, timer)
            done += chunk.ended.sum(0)
            steps += len(chunk.reward)
        return steps

    def close(self) -> None:
        """Closes the lanes."""
        self._lanes.close()


def _side_by_side(packed: Rollout, numbers: IntArray) -> Rollout:
    """Empty arrays for lanes side by side that together fill the one column of `packed`."""
    steps, lanes = len(packed.reward) // len(numbers), len(numbers)
    like = {name: getattr(packed, name) for name in STEP_FIELDS}
    arrays: dict[str, Any] = {
        name: np.zeros((steps + (name == "obs"), lanes, *x.shape[2:]), x.dtype)
        for name, x in like.items()
    }
    return Rollout(**arrays, lane=numbers, policy_version=np.zeros(lanes, np.int64))


def _truncate_last(scratch: Rollout, lane_steps: IntArray) -> None:
    """Has every lane end with an episode's end: an unfinished episode counts as truncated."""
    last, lanes = lane_steps - 1, np.arange(len(lane_steps))
    unfinished = ~scratch.ended[last, lanes]
    last, lanes = last[unfinished], lanes[unfinished]
    scratch.truncated[last, lanes] = True
    scratch.final_obs[last, lanes] = scratch.obs[last + 1, lanes]


def pack(scratch: Rollout, lane_steps: IntArray, out: Rollout) -> None:
    """Copies the first lane_steps[i] steps of lane i into one column of `out`, lane after lane.

    The observation after the last step is copied too; nobody looks at it, for an episode ended.
    """
    begin = 0
    for lane, steps in enumerate(lane_steps):
        for name in STEP_FIELDS:
            getattr(out, name)[begin : begin + steps, 0] = getattr(scratch, name)[:steps, lane]
        begin += steps
    out.obs[begin, 0] = scratch.obs[lane_steps[-1], -1]


def unpack(rollout: Rollout, lane_steps: IntArray, numbers: Sequence[int]) -> list[Rollout]:
    """The lanes of a packed rollout, one each: lane numbers[i] has lane_steps[i] steps."""
    ends = lane_steps.cumsum()
    lanes = []
    for number, begin, end in zip(numbers, ends - lane_steps, ends, strict=True):
        one = rollout.between(int(begin), int(end))
        lanes.append(one._replace(lane=np.array([number])))
    return lanes


def concatenate(rollouts: Sequence[Rollout]) -> Rollout:
    """Packed rollouts one after the other, in one column.

    Each ends with an episode, so only the last one's last observation is kept.
    """
    obs = [*(rollout.obs[:-1] for rollout in rollouts), rollouts[-1].obs[-1:]]
    steps = {name: [getattr(rollout, name) for rollout in rollouts] for name in STEP_FIELDS}
    joined: dict[str, Any] = {name: np.concatenate(x) for name, x in (steps | {"obs": obs}).items()}
    lanes = {name: getattr(rollouts[0], name).copy() for name in LANE_FIELDS}
    return Rollout(**joined, **lanes)
