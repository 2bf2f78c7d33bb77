"""A round: what the agent learns from at once, put together from the rollouts of all samplers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from walle.collecting.episodes import parts
from walle.collecting.sampler import SamplerTask
from walle.timing import SAMPLER_SECTIONS
from walle.transport.queues import Received
from walle.types import Rollout


class Round(NamedTuple):
    """What the agent learns from at once.

    Attributes:
        rollout: all lanes side by side, in lane order when synchronous.
        sections_s: per rollout, the sampler's name and the seconds of its sections.
        began_ns: when the first sampler began to collect it, on the monotonic clock.
        last_sent_ns: when the last rollout was handed over.
        parts: the same experience by lanes, to tell whose episodes they are: all lanes side by
            side, or one after the other where whole episodes are packed.
    """

    rollout: Rollout
    sections_s: list[tuple[str, dict[str, float]]]
    began_ns: int
    last_sent_ns: int
    parts: list[Rollout]

    @property
    def busy_s(self) -> float:
        """Mean seconds a sampler worked for this round, waiting left out."""
        idle = ("wait_policy", "wait_slot")
        busy = [sum(s for name, s in row.items() if name not in idle) for _, row in self.sections_s]
        return sum(busy) / len(busy)


def default_slots(max_lag: int | None) -> int:
    """Rollouts in flight per sampler: a lag of k needs k + 1.

    Free-running gets one: while the agent learns each sampler fills its slot, so the agent never
    waits after learning, and nothing grows staler than that in a queue.
    """
    return 1 if max_lag is None else max_lag + 1


def default_lanes(batch_size: int, most: int = 256, steps: int = 32) -> int:
    """The largest power of two up to `most` that divides the batch, `steps` or more to a lane.

    Many lanes share the cost of a step's Python; long rollouts see further. It depends on nothing
    but the batch, N least of all. docs/collection.md has the measurements.
    """
    lanes = math.gcd(batch_size, most)
    while lanes > 1 and batch_size // lanes < steps:
        lanes //= 2
    return lanes


def split_lanes(lanes: int, samplers: int) -> list[tuple[int, ...]]:
    """Contiguous blocks of lanes, sizes differing by one at most, the larger ones first."""
    return [tuple(int(i) for i in block) for block in np.array_split(range(lanes), samplers)]


def assemble_round(received: Sequence[Received], tasks: Sequence[SamplerTask]) -> Round:
    """Copies rollouts out of their slots: side by side, or packed ones one after the other."""
    rollouts = [item.slot.filled for item in received]
    packed = len(received[0].slot.spans) > 0
    rollout = _in_a_row(rollouts) if packed else _side_by_side(rollouts)
    lanes = [rollout]
    if packed:
        numbers = [lane for item in received for lane in tasks[item.sampler].lanes]
        lanes = parts(rollout, np.concatenate([item.slot.spans for item in received]), numbers)
    sections = [
        (
            f"sampler-{item.sampler}",
            dict(zip(SAMPLER_SECTIONS, item.slot.sections_s.tolist(), strict=True)),
        )
        for item in received
    ]
    began_ns = min(int(item.slot.began_ns[0]) for item in received)
    last_sent_ns = max(int(item.slot.sent_ns[0]) for item in received)
    return Round(rollout, sections, began_ns, last_sent_ns, lanes)


def _side_by_side(rollouts: Sequence[Rollout]) -> Rollout:
    axes = [1] * 7 + [0] * 3
    fields = [
        np.concatenate(arrays, axis)
        for arrays, axis in zip(zip(*rollouts, strict=True), axes, strict=True)
    ]
    return Rollout(*fields)


def _in_a_row(rollouts: Sequence[Rollout]) -> Rollout:
    """One column; each rollout ends with an episode, so nobody looks for what follows its last."""
    obs = [rollout.obs[:-1] for rollout in rollouts]
    first, *timed = zip(*(rollout[:-3] for rollout in rollouts), strict=True)
    fields: list[Any] = [np.concatenate((*obs, first[-1][-1:])), *map(np.concatenate, timed)]
    return Rollout(*fields, *(array.copy() for array in rollouts[0][-3:]))
