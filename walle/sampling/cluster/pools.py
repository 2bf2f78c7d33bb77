"""The pools of samplers on the nodes: dealt between rounds, moved when a node is lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, TypeVar

from walle.sampling.cluster.members import Member
from walle.sampling.cluster.node import Start, restored
from walle.sampling.lane_book import LaneBook, deal
from walle.sampling.queues import Received
from walle.sampling.rounds import split_lanes
from walle.sampling.sampler_process import SamplerTask
from walle.sampling.sampling import Patience
from walle.sampling.slots import RolloutShape, Slot

Name = TypeVar("Name")


class Share(NamedTuple):
    """The samplers of a node: their numbers, and the lanes of each."""

    samplers: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]


def deal_lanes(most: Mapping[Name, int], lanes: int) -> dict[Name, Share]:
    """Deals the lanes 0 to `lanes` - 1 in contiguous blocks to samplers, node after node.

    A node can have `most[node]` samplers. With fewer lanes than samplers every node gets a first
    sampler before any gets a second one. Nodes without a sampler have no share.
    """
    counts = dict.fromkeys(most, 0)
    for turn in range(max(most.values())):
        for name, limit in most.items():
            if turn < limit and sum(counts.values()) < lanes:
                counts[name] += 1
    blocks = split_lanes(lanes, sum(counts.values()))
    shares, first = {}, 0
    for name, count in counts.items():
        if count:
            numbers = range(first, first + count)
            shares[name] = Share(tuple(numbers), tuple(blocks[i] for i in numbers))
        first += count
    return shares


def spread(samplers: Iterable[int], loads: Mapping[Name, int]) -> dict[Name, list[int]]:
    """Assigns each sampler to the least loaded node; `loads` has each node's number of samplers."""
    loads, homes = dict(loads), dict[Name, list[int]]()
    for sampler in samplers:
        name = min(loads, key=lambda node: loads[node])
        loads[name] += 1
        homes.setdefault(name, []).append(sampler)
    return homes


@dataclass(frozen=True)
class Plan:
    """How samplers are made for any lanes of the run."""

    task: SamplerTask  # describes a sampler with all lanes
    # the shape of the rollouts of a sampler with so many lanes
    shape: Callable[[int], RolloutShape]
    vector_length: int  # length of a snapshot's vector
    slots: int  # places for rollouts of each sampler
    patience: Patience  # when samplers are replaced, and nodes set aside

    def start(self, tasks: Sequence[SamplerTask]) -> Start:
        """Arguments of a pool. The node replaces silent samplers before the agent gives it up."""
        shapes = [self.shape(len(task.lanes)) for task in tasks]
        limit_s, pin = self.patience.timeout_s, self.task.core is not None
        patience = self.patience._replace(timeout_s=limit_s and limit_s / 3)
        return Start(tasks, shapes, self.vector_length, self.slots, pin, patience)

    @property
    def saved(self) -> bool:
        """Whether lanes can give their states."""
        return self.shape(1).lane_state > 0


@dataclass(eq=False)
class Pool:
    """Samplers that a node started together."""

    incarnation: int  # the pool's number, which no other pool has
    member: Member  # its node
    samplers: tuple[int, ...]  # the samplers' numbers in the run
    round: int  # the round to ask for next
    start: Start | None  # what the node starts it from; None once that is sent
    ends: tuple[int, ...] = ()  # incarnations that end on the node before

    @property
    def on_node(self) -> tuple[int, ...]:
        """The incarnations that run on the node for it: others as long as it is not sent there."""
        return (self.incarnation,) if self.start is None else self.ends


class Pools:
    """All samplers of the run, on whichever nodes; knows what is owed, and where lanes stand.

    Attributes:
        pools: the pools, in the order in which they began.
        tasks: the samplers.
        lanes: the lanes after the last round that was taken.
        homeless: the numbers of samplers that have lost their node.
    """

    def __init__(self, plan: Plan) -> None:
        """Begins without samplers; the lanes stand before the run's next round."""
        self._plan = plan
        self.pools: list[Pool] = []
        self.tasks: list[SamplerTask] = []
        self.lanes = LaneBook([plan.task.blocks], saved=plan.saved)
        self.homeless: list[int] = []
        self._pending: list[deque[Slot]] = []
        self._incarnations = 0

    def deal(self, most: Mapping[Member, int], round_: int) -> dict[Member, int]:
        """Deals all lanes, which must stand before the same round, to the nodes.

        Pools that are already as they would be dealt stay. A node can have `most[node]` samplers;
        returns the number that each one has. `round_` comes next.
        """
        shares = deal_lanes(most, len(self._plan.task.lanes))
        counts = {member: len(share.samplers) for member, share in shares.items()}
        if [(pool.member, pool.samplers) for pool in self.pools] == [
            (member, share.samplers) for member, share in shares.items()
        ]:
            return counts
        blocks = [b for i in range(len(self.tasks)) for b in self.lanes.after(i, ())]
        blocks = blocks or list(self._plan.task.start)
        self.tasks = [
            replace(self._plan.task, index=i, lanes=lanes, start=deal(blocks, lanes), core=None)
            for share in shares.values()
            for i, lanes in zip(share.samplers, share.lanes, strict=True)
        ]
        self.lanes = LaneBook([task.blocks for task in self.tasks], saved=self._plan.saved)
        self._pending, self.homeless = [deque() for _ in self.tasks], []
        former, self.pools = self.pools, []
        for member, share in shares.items():
            ends = tuple(n for pool in former if pool.member is member for n in pool.on_node)
            self._begin(member, [self.tasks[i] for i in share.samplers], round_, ends)
        return counts

    def _begin(
        self,
        member: Member,
        tasks: Sequence[SamplerTask],
        round_: int,
        ends: tuple[int, ...] = (),
    ) -> None:
        self._incarnations += 1
        samplers = tuple(task.index for task in tasks)
        start = self._plan.start(tasks)
        self.pools.append(Pool(self._incarnations, member, samplers, round_, start, ends))

    def rehouse(self, live: Sequence[Member]) -> None:
        """Starts samplers that lost their node on others, before the first round that they owe."""
        if not self.homeless or not live:
            return
        loads = {m: sum(len(t.samplers) for t in self.pools if t.member is m) for m in live}
        homes, self.homeless = spread(self.homeless, loads), []
        for member, samplers in homes.items():
            for round_, group in groupby(sorted(samplers, key=self._owed), key=self._owed):
                self._begin(member, [self._moved(i) for i in sorted(group)], round_)

    def _moved(self, sampler: int) -> SamplerTask:
        """The sampler where its last rollout left it, taken or not."""
        start = self.lanes.after(sampler, self._pending[sampler])
        return replace(self.tasks[sampler], start=start)

    def _owed(self, sampler: int) -> int:
        """The first round of which a sampler's rollout has not come."""
        return self.lanes.round(sampler) + len(self._pending[sampler])

    def dismiss(self, member: Member) -> int | None:
        """Takes the samplers from a node; returns the first round that is owed, None without."""
        lost = [pool for pool in self.pools if pool.member is member]
        for pool in lost:
            self.pools.remove(pool)
            self.homeless += pool.samplers
        return min((self._owed(i) for pool in lost for i in pool.samplers), default=None)

    def keep(self, slots: Sequence[Slot], pool: Pool, requested_ns: int) -> None:
        """Keeps the rollouts, as `copied`, of a pool's oldest outstanding round.

        The round was requested at `requested_ns` on this process's clock.
        """
        for sampler, slot in zip(pool.samplers, slots, strict=True):
            self._pending[sampler].append(restored(slot, requested_ns, time.monotonic_ns()))

    def take_round(self) -> list[Received] | None:
        """The next rollout of every sampler, in their order; None if one is missing.

        The lanes stand behind this round from now on.
        """
        if not self._pending or not all(self._pending):
            return None
        received = [Received(i, 0, slots.popleft()) for i, slots in enumerate(self._pending)]
        for item in received:
            self.lanes.advance(item.sampler, item.slot)
        return received
