"""The pools of samplers on the nodes: dealt between rounds, and moved when a node is lost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from walle.sampling.cluster.answer import read_header, unpack
from walle.sampling.cluster.dealing import deal_lanes, spread
from walle.sampling.cluster.expected import Expected
from walle.sampling.cluster.members import Member
from walle.sampling.cluster.node import Start
from walle.sampling.experience_queue import Received
from walle.sampling.lane_block import deal
from walle.sampling.lane_book import LaneBook
from walle.sampling.sampler_process import SamplerTask
from walle.sampling.sampling import Patience
from walle.sampling.slots import RolloutShape, Slot


@dataclass(frozen=True)
class Plan:
    """How samplers are made for any lanes of the run.

    Attributes:
        task: describes a sampler with all lanes.
        shape: the shape of the rollouts of a sampler with so many lanes.
        vector_length: length of a snapshot's vector.
        slots: places for rollouts of each sampler.
        patience: when samplers are replaced, and nodes set aside.
    """

    task: SamplerTask
    shape: Callable[[int], RolloutShape]
    vector_length: int
    slots: int
    patience: Patience

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
    """Samplers that a node started together.

    Attributes:
        incarnation: the pool's number, which no other pool has.
        member: its node.
        samplers: the samplers' numbers in the run.
        round: the round to ask for next.
        start: what the node starts it from; None once that is sent.
        ends: incarnations that end on the node before.
    """

    incarnation: int
    member: Member
    samplers: tuple[int, ...]
    round: int
    start: Start | None
    ends: tuple[int, ...] = ()

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
        self._expected, self._incarnations = Expected(), 0

    def deal(self, most: Mapping[Member, int], round_: int) -> dict[Member, int]:
        """Deals all lanes, which must stand before the same round, to the nodes.

        Pools that are already as they would be dealt stay.

        Args:
            most: the samplers that each node can have.
            round_: the round that comes next.

        Returns:
            the samplers of each node.
        """
        shares = deal_lanes(most, len(self._plan.task.lanes))
        counts = {member: len(share.samplers) for member, share in shares.items()}
        if [(pool.member, pool.samplers) for pool in self.pools] == [
            (member, share.samplers) for member, share in shares.items()
        ]:
            return counts
        blocks = [each for i in range(len(self.tasks)) for each in self.lanes.after(i, ())]
        blocks = blocks or list(self._plan.task.start)
        self.tasks = [
            replace(self._plan.task, index=i, lanes=own, start=deal(blocks, own), core=None)
            for share in shares.values()
            for i, own in zip(share.samplers, share.lanes, strict=True)
        ]
        self.lanes = LaneBook([task.blocks for task in self.tasks], saved=self._plan.saved)
        self._pending, self.homeless = [deque() for _ in self.tasks], []
        former, self.pools = self.pools, []
        for pool in former:
            self._expected.end(pool.incarnation)
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
        lanes = tuple(lane for task in tasks for lane in task.lanes)
        self._expected.begin(self._incarnations, round_, lanes)

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
            self._expected.end(pool.incarnation)
            self.pools.remove(pool)
            self.homeless += pool.samplers
        return min((self._owed(i) for pool in lost for i in pool.samplers), default=None)

    def keep(self, packed: Any, pool: Pool, version: int, sent_ns: int) -> tuple[str, bool]:
        """Keeps the rollouts of an answer if it counts.

        Args:
            packed: the answer.
            pool: the pool that was asked.
            version: the version of the policy that it was given.
            sent_ns: when it was asked, on this process's clock.

        Returns:
            why the answer does not count, empty if it does; and whether it merely came too late.

        Raises:
            AnswerError: the answer is damaged.
        """
        verdict = self._expected.judge(read_header(packed), version)
        if not verdict.fault:
            shapes = {i: self._plan.shape(len(self.tasks[i].lanes)) for i in pool.samplers}
            for sampler, slot in unpack(packed, shapes).items():
                slot.began_ns[0], slot.sent_ns[0] = sent_ns, time.monotonic_ns()
                self._pending[sampler].append(slot)
        return verdict

    def take_round(self) -> list[Received] | None:
        """The next rollout of every sampler, in their order; None if one is missing.

        The lanes stand behind this round from now on.
        """
        if not self._pending or not all(self._pending):
            return None
        received = [Received(i, 0, slots.popleft()) for i, slots in enumerate(self._pending)]
        for item in received:
            self.lanes.turn(item.sampler, item.slot)
        return received
