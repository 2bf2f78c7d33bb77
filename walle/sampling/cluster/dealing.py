"""Which samplers and lanes each node gets: pure functions of the nodes that are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from walle.sampling.rounds import split_lanes

Name = TypeVar("Name")


class Share(NamedTuple):
    """The samplers of a node: their numbers, and the lanes of each."""

    samplers: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]


def deal_lanes(most: Mapping[Name, int], lanes: int) -> dict[Name, Share]:
    """Deals the lanes 0 to `lanes` - 1 in contiguous blocks to samplers, node after node.

    Args:
        most: the samplers that each node can have.
        lanes: the lanes of the run; with fewer lanes than samplers nodes get fewer of these, in
            turns, and perhaps none.

    Returns:
        the share of every node that has a sampler.
    """
    counts = _at_most(most, lanes)
    blocks = split_lanes(lanes, sum(counts.values()))
    shares, first = {}, 0
    for name, count in counts.items():
        numbers = range(first, first + count)
        shares[name] = Share(tuple(numbers), tuple(blocks[i] for i in numbers))
        first += count
    return {name: share for name, share in shares.items() if share.samplers}


def _at_most(most: Mapping[Name, int], lanes: int) -> dict[Name, int]:
    """The samplers of each node, `lanes` in all at most; every node gets a first one first."""
    counts = dict.fromkeys(most, 0)
    for turn in range(max(most.values())):
        for name, limit in most.items():
            if turn < limit and sum(counts.values()) < lanes:
                counts[name] += 1
    return counts


def spread(samplers: Iterable[int], loads: Mapping[Name, int]) -> dict[Name, list[int]]:
    """Gives each of some samplers to the node with the fewest, the first of several.

    Args:
        samplers: the numbers of samplers that have lost their node.
        loads: the samplers that each remaining node has already.
    """
    loads, found = dict(loads), dict[Name, list[int]]()
    for sampler in samplers:
        name = min(loads, key=lambda each: loads[each])
        loads[name] += 1
        found.setdefault(name, []).append(sampler)
    return found
