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

from walle.collecting.sampler import Actor, collect
from walle.envs import Lanes
from walle.streams import episode_action_noise, episode_env_seed
from walle.timing import Timer
from walle.transport.slots import Slot
from walle.types import BoolArray, IntArray, PolicySnapshot, Rollout

_CHUNK = 64
_ROOM = 4


def capacity(batch_size: int, lanes: int, longest: int) -> int:
    """Steps that a lane has room for in a round: four times its share, one episode at least."""
    return max(longest, _ROOM * batch_size // lanes)


def share(episodes: int, numbers: Sequence[int], lanes: int) -> IntArray:
    """How many of a round's episodes each of the lanes `numbers` runs, of `lanes` in all."""
    return np.array([episodes // lanes + (n < episodes % lanes) for n in numbers], np.int64)


def lengths(ended: BoolArray, quota: IntArray) -> IntArray:
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
        ended = rollout.terminated | rollout.truncated
        self._mean_length = rollout.steps / int(ended.sum())

    def __call__(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """The snapshot with the number of episodes to collect under it."""
        episodes = self._lanes
        if self._mean_length is not None:
            wanted = self._batch_size if snapshot.rows is None else snapshot.rows * self._lanes
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

    def fill(self, slot: Slot, snapshot: PolicySnapshot, timer: Timer) -> None:
        """Collects this sampler's share of `snapshot.episodes` into `slot`, packed.

        A lane that has filled its room cuts its episode there, as a time limit would.
        """
        assert snapshot.episodes is not None
        self._actor.load(snapshot)
        scratch = self._scratch = self._scratch or _unpacked(slot.rollout, self._numbers)
        quota = share(snapshot.episodes, self._numbers.tolist(), self._all_lanes)
        steps = self._collect(scratch, quota, timer)
        taken = lengths((scratch.terminated | scratch.truncated)[:steps], quota)
        _cut(scratch, taken)
        pack(scratch, taken, slot)
        slot.rollout.lane[:] = self._numbers[0]
        slot.rollout.policy_version[:] = snapshot.version

    def _collect(self, scratch: Rollout, quota: IntArray, timer: Timer) -> int:
        """Steps all lanes until each has run its episodes or filled its room; how many steps."""
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
            done += (chunk.terminated | chunk.truncated).sum(0)
            steps += len(chunk.reward)
        return steps

    def close(self) -> None:
        """Closes the lanes."""
        self._lanes.close()


def _unpacked(packed: Rollout, numbers: IntArray) -> Rollout:
    """Empty arrays for the lanes side by side, as long as there is room in `packed`."""
    rows = len(packed.reward) // len(numbers)
    shapes = [(rows + (i == 0), len(numbers), *x.shape[2:]) for i, x in enumerate(packed[:-3])]
    arrays: list[Any] = [np.zeros(s, x.dtype) for s, x in zip(shapes, packed[:-3], strict=True)]
    return Rollout(*[*arrays, numbers, np.zeros(len(numbers), np.int64)])


def _cut(scratch: Rollout, taken: IntArray) -> None:
    """Has every lane end with an episode's end: what the room cuts off counts as truncated."""
    last, lanes = taken - 1, np.arange(len(taken))
    cut = ~(scratch.terminated | scratch.truncated)[last, lanes]
    last, lanes = last[cut], lanes[cut]
    scratch.truncated[last, lanes] = True
    scratch.final_obs[last, lanes] = scratch.obs[last + 1, lanes]


def pack(scratch: Rollout, taken: IntArray, slot: Slot) -> None:
    """Copies the first taken[i] steps of lane i into the slot's one column, lane after lane."""
    begin = 0
    for lane, rows in enumerate(taken):
        end = begin + rows
        for into, array in zip(slot.rollout[:-3], scratch[:-3], strict=True):
            into[begin:end, 0] = array[:rows, lane]
        begin = end
    slot.rollout.obs[begin, 0] = scratch.obs[taken[-1], -1]  # the last ended, so nobody looks there
    slot.rows[0], slot.spans[:] = begin, taken


def parts(rollout: Rollout, spans: IntArray, numbers: Sequence[int]) -> list[Rollout]:
    """The lanes of a packed rollout apart: lane numbers[i] has spans[i] steps."""
    ends = spans.cumsum()
    found = []
    for number, begin, end in zip(numbers, ends - spans, ends, strict=True):
        part = rollout.between(int(begin), int(end))
        found.append(part._replace(lane=np.array([number])))
    return found
