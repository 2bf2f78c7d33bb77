"""A round: the experience of one update, assembled from the rollouts of all samplers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from walle.sampling.episodes import concatenate, unpack
from walle.sampling.queues import Received
from walle.sampling.sampler_process import SamplerTask
from walle.timing import SAMPLER_SECTIONS
from walle.types import LANE_FIELDS, STEP_FIELDS, Rollout


class Round(NamedTuple):
    """The experience of one update."""

    # a column for each lane; if rounds have whole episodes, a single column with the lanes one
    # after the other. In lane order if the lag is finite
    rollout: Rollout
    # the sampler's name and the seconds of its sections, for each rollout
    sections_s: list[tuple[str, dict[str, float]]]
    began_ns: int  # time at which the first sampler began to collect, on the monotonic clock
    last_sent_ns: int  # time at which the last rollout was sent
    # the same experience as rollouts with a column for each lane; one rollout a lane if `rollout`
    # is packed
    lanes: list[Rollout]
    # rollouts that arrived for this round but were too old to learn from; None without a bound on
    # the age. `sections_s` has their seconds too
    dropped: list[Rollout] | None = None
    faults: int = 0  # of the environment

    @property
    def busy_s(self) -> list[float]:
        """Seconds that the sampler worked for each rollout, without waiting, [rollouts]."""
        idle = ("wait_policy", "wait_slot")
        return [sum(s for name, s in row.items() if name not in idle) for _, row in self.sections_s]


def split_lanes(lanes: int, samplers: int) -> list[tuple[int, ...]]:
    """The contiguous lanes of each sampler; the first samplers may have one lane more."""
    return [tuple(int(i) for i in part) for part in np.array_split(range(lanes), samplers)]


def assemble_round(
    received: Sequence[Received],  # the rollouts of the round
    tasks: Sequence[SamplerTask],
    # rollouts that were too old for it, in memory of their own; see `Round`
    dropped: Sequence[Received] | None = None,
) -> Round:
    """Copies the rollouts out of their slots: side by side, or end to end if they are packed."""
    rollouts = [item.slot.filled for item in received]
    if len(received[0].slot.lane_steps):
        rollout = concatenate(rollouts)
        numbers = [lane for item in received for lane in tasks[item.sampler].lanes]
        lanes = unpack(rollout, np.concatenate([i.slot.lane_steps for i in received]), numbers)
    else:
        rollout = _side_by_side(rollouts)
        lanes = [rollout]
    sections_s = [
        (tasks[sampler].name, dict(zip(SAMPLER_SECTIONS, slot.sections_s.tolist(), strict=True)))
        for sampler, _, slot in (*(dropped or ()), *received)
    ]
    return Round(
        rollout,
        sections_s,
        began_ns=min(int(item.slot.began_ns[0]) for item in received),
        last_sent_ns=max(int(item.slot.sent_ns[0]) for item in received),
        lanes=lanes,
        dropped=None if dropped is None else [item.slot.filled for item in dropped],
        faults=sum(int(item.slot.faults[0]) for item in (*(dropped or ()), *received)),
    )


def _side_by_side(rollouts: Sequence[Rollout]) -> Rollout:
    axes = dict.fromkeys(STEP_FIELDS, 1) | dict.fromkeys(LANE_FIELDS, 0)
    del axes["final_obs"]
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(rollout, name) for rollout in rollouts], axis)
        for name, axis in axes.items()
    }
    # Last observations are copied only where an episode ended: elsewhere they are undefined.
    final_obs = np.empty_like(joined["obs"][1:])
    first = 0
    for rollout in rollouts:
        step, lane = np.nonzero(rollout.ended)
        final_obs[step, first + lane] = rollout.final_obs[step, lane]
        first += rollout.final_obs.shape[1]
    return Rollout(**joined, final_obs=final_obs)
