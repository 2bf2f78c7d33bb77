"""A sampler acts in its lanes under a frozen policy and fills rollouts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from walle.sampling.lane_block import LaneBlock
from walle.sampling.lane_group import LaneGroup, LaneStates, Lender
from walle.timing import Timer
from walle.types import SIDE_BY_SIDE, AnyArray, Filled, PolicySnapshot, Rollout

_PARTS = 16  # groups of lanes that are kept, for the rounds in which lanes are lent
_SELDOM = 200  # the states of lanes are taken at most every so many times their own cost


class Sampler(Protocol):
    """The interface of a sampler, independent of its process."""

    def fill(self, out: Rollout, snapshot: PolicySnapshot, round_: int, timer: Timer) -> Filled:
        """Collects the rollout of a round under `snapshot` into the arrays of `out`.

        The result depends on the lanes' states before it, `snapshot` and `round_` alone.
        """
        ...

    def hand_over(self, states: AnyArray, memory: AnyArray) -> int:
        """Writes what the lanes' future depends on, besides the last observation.

        Args:
            states: [L, W] bytes, receives `Lanes.state`.
            memory: [L, S] receives the policy's memory.

        Returns:
            the bytes written of each lane's state; 0 if it was not worth its time now.
        """
        ...

    def close(self) -> None:
        """Closes the lanes."""
        ...


class LaneSampler:
    """A sampler whose lanes run for a fixed number of steps."""

    def __init__(
        self,
        make_group: Callable[[Sequence[int]], LaneGroup],
        numbers: Sequence[int],
        start: LaneBlock | None = None,
        lender: Lender | None = None,
    ) -> None:
        """Begins episodes in all lanes, or goes on from `start`.

        Args:
            make_group: makes lanes with these numbers of the run.
            numbers: the numbers of this sampler's lanes.
            start: the lanes' states; None for new episodes.
            lender: lends lanes to other samplers; None if nobody may borrow.
        """
        self._make_group = lru_cache(_PARTS)(make_group)
        self._numbers, self._lender = tuple(numbers), lender
        self._group = make_group(self._numbers)
        self._lanes, self._actor = self._group.lanes, self._group.actor
        self._taken_at, self._taking_s = -math.inf, 0.0
        self._begins = start is None
        if start is None:
            self._obs = self._lanes.reset()
        else:
            self._lanes.restore(start.state)
            self._obs, self._actor.state[:] = start.obs, start.memory

    def fill(self, out: Rollout, snapshot: PolicySnapshot, round_: int, timer: Timer) -> Filled:
        """Collects `snapshot.rollout_steps` steps, or as many as `out` can hold if that is None."""
        steps, step = snapshot.rollout_steps or len(out.reward), 0
        rollout = out.between(0, steps)
        self._actor.load(snapshot)
        rollout.obs[0] = self._obs
        rollout.lane[:] = self._numbers
        rollout.policy_version[:] = snapshot.version
        rollout.state[:] = self._actor.state
        rollout.begins[:], self._begins = self._begins, False
        stop = self._lender.asked if self._lender else None
        while step < steps:
            step = self._group.collect(rollout, round_, step, timer, stop)
            if step < steps and self._lend(rollout, snapshot, round_, step, timer):
                step = steps
        self._obs = rollout.obs[-1].copy()
        return Filled(steps, SIDE_BY_SIDE)

    def _lend(
        self, rollout: Rollout, snapshot: PolicySnapshot, round_: int, step: int, timer: Timer
    ) -> bool:
        """Finishes the round with fewer lanes and takes back the others; False if none was lent."""
        assert self._lender is not None
        states, lanes = self._group.states(), len(self._numbers)
        kept = self._lender.lend(states, step)
        if kept == lanes:
            return False

        def finish(first: int, end: int) -> LaneStates:
            part = rollout.columns(first, end)
            group = self._make_group(self._numbers[first:end])
            found = group.go_on(states.of(slice(first, end)), snapshot, part, round_, step, timer)
            assert found is not None
            return found

        ours = finish(0, kept)
        theirs = self._lender.take_back(lanes - kept) or finish(kept, lanes)
        self._lanes.restore(np.concatenate((ours.state, theirs.state)))
        self._actor.state[:] = np.concatenate((ours.memory, theirs.memory))
        return True

    def hand_over(self, states: AnyArray, memory: AnyArray) -> int:
        """See `Sampler.hand_over`; the agent repeats the actions since the last states."""
        memory[:] = self._actor.state
        began = time.perf_counter()
        if not states.size or began - self._taken_at < _SELDOM * self._taking_s:
            return 0
        taken = self._lanes.state()
        self._taken_at = time.perf_counter()
        self._taking_s = self._taken_at - began
        if taken is None or taken.shape[1] > states.shape[1]:
            return 0
        width = int(taken.shape[1])
        states[:, :width] = taken
        return width

    def close(self) -> None:
        """Closes the lanes."""
        self._lanes.close()
