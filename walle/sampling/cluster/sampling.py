"""Sampling on the nodes of a Ray cluster: the agent's side, and where each sampler runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, NamedTuple, TypeVar

from walle.errors import Interrupted, WorkerError
from walle.sampling.cluster.connection import Connection, NodeLostError
from walle.sampling.cluster.members import Canary, ClusterSettings, Member, Members
from walle.sampling.cluster.node import Call, Facts, Start, collected_here, restored
from walle.sampling.lane_book import LaneBook, deal
from walle.sampling.queues import Received
from walle.sampling.rounds import Round, assemble_round, split_lanes
from walle.sampling.sampler_process import SamplerTask
from walle.sampling.sampling import (
    EventLog,
    NodesInUse,
    OtherProcesses,
    Patience,
    Replacement,
    Sampling,
)
from walle.sampling.slots import RolloutShape, Slot
from walle.system.signals import Signals
from walle.system.supervision import DeathWatch, TimeLimit
from walle.timing import timestamp
from walle.types import Lag, PolicySnapshot

POLL_S = 0.1
LEAST_S, TIMES_THE_LONGEST = 180.0, 30.0
CANARY_LANES, CANARY_STEPS = 4, 32

Name = TypeVar("Name")


def deal_lanes(most: Mapping[Name, int], lanes: int) -> dict[Name, list[tuple[int, ...]]]:
    """Deals the lanes 0 to `lanes` - 1 in contiguous blocks to samplers, node after node.

    A node can have `most[node]` samplers. With fewer lanes than samplers every node gets a first
    sampler before any gets a second one. Returns the lanes of each sampler of a node, without the
    nodes that have no sampler.
    """
    counts = dict.fromkeys(most, 0)
    for turn in range(max(most.values())):
        for name, limit in most.items():
            if turn < limit and sum(counts.values()) < lanes:
                counts[name] += 1
    blocks = iter(split_lanes(lanes, sum(counts.values())))
    return {name: list(islice(blocks, count)) for name, count in counts.items() if count}


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
    slots: int  # rollouts that each sampler can hold
    patience: Patience  # when samplers are replaced, and nodes set aside

    def start(self, tasks: Sequence[SamplerTask]) -> Start:
        """Arguments of a pool, which replaces silent samplers before the agent drops the node."""
        shapes = [self.shape(len(task.lanes)) for task in tasks]
        limit_s, pin = self.patience.timeout_s, self.task.core is not None
        patience = self.patience._replace(timeout_s=limit_s and limit_s / 3)
        return Start(tasks, shapes, self.vector_length, self.slots, pin, patience)

    def canary(self, snapshot: PolicySnapshot) -> Canary:
        """A short rollout of the first lanes in their initial states, as collected here."""
        lanes = self.task.lanes[:CANARY_LANES]
        task = replace(
            self.task, lanes=lanes, lag=Lag(0), rounds=1, start=(), episodes_over=None, core=None
        )
        shape = self.shape(len(lanes))._replace(
            steps=CANARY_STEPS, lanes=len(lanes), packed_lanes=0, lane_state=0
        )
        policy = snapshot._replace(version=0, rollout_steps=CANARY_STEPS, episodes=None)
        start = Start([task], [shape], self.vector_length, 1, pin=False, patience=self.patience)
        return Canary(start, policy, Facts.here(collected_here(task, shape, policy)))


@dataclass(eq=False)
class Pool:
    """Samplers that a node started together."""

    incarnation: int  # the pool's number, which no other pool has
    member: Member  # its node
    samplers: tuple[int, ...]  # the samplers' numbers in the run
    round: int  # the next round to request
    start: Start | None  # what the node starts it from; None once it is sent
    # before this pool is sent, earlier incarnations that the node will close; then its own
    on_node: tuple[int, ...] = ()


class Pools:
    """All samplers of the run on all nodes; tracks due rollouts and the lanes' rounds.

    Lanes are dealt between rounds, and samplers moved when a node is lost.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._saved = plan, plan.shape(1).lane_state > 0
        self.pools: list[Pool] = []  # in the order in which they began
        self.tasks: list[SamplerTask] = []
        self.lanes = LaneBook([plan.task.blocks], saved=self._saved)  # after the last taken round
        self.homeless: list[int] = []  # the samplers that have lost their node
        self._pending: list[deque[Slot]] = []
        self._incarnations = 0

    def deal(self, most: Mapping[Member, int], round_: int) -> dict[Member, int]:
        """Deals all lanes, which must have the same next round, to the nodes.

        If that would change no pool's samplers, all pools stay. A node can have `most[node]`
        samplers; returns each node's number of samplers. `round_` is the next round.
        """
        shares = deal_lanes(most, len(self._plan.task.lanes))
        counts = {member: len(share) for member, share in shares.items()}
        numbers = iter(range(sum(counts.values())))
        samplers = {member: tuple(islice(numbers, count)) for member, count in counts.items()}
        if [(pool.member, pool.samplers) for pool in self.pools] == list(samplers.items()):
            return counts
        blocks = self.lanes.all()
        self.tasks = [
            replace(self._plan.task, index=i, lanes=lanes, start=deal(blocks, lanes), core=None)
            for i, lanes in enumerate(lanes for share in shares.values() for lanes in share)
        ]
        self.lanes = LaneBook([task.blocks for task in self.tasks], saved=self._saved)
        self._pending, self.homeless = [deque() for _ in self.tasks], []
        former, self.pools = self.pools, []
        for member, dealt in samplers.items():
            ends = tuple(n for pool in former if pool.member is member for n in pool.on_node)
            self._begin(member, [self.tasks[i] for i in dealt], round_, ends)
        return counts

    def _begin(
        self, member: Member, tasks: Sequence[SamplerTask], round_: int, ends: tuple[int, ...] = ()
    ) -> None:
        self._incarnations += 1
        samplers = tuple(task.index for task in tasks)
        start = self._plan.start(tasks)
        self.pools.append(Pool(self._incarnations, member, samplers, round_, start, ends))

    def rehouse(self, live: Sequence[Member]) -> None:
        """Restarts a lost node's samplers elsewhere, at the start of their first missing round."""
        if not self.homeless or not live:
            return
        loads = {m: sum(len(t.samplers) for t in self.pools if t.member is m) for m in live}
        homes, self.homeless = spread(self.homeless, loads), []
        for member, samplers in homes.items():
            for round_, group in groupby(sorted(samplers, key=self._owed), key=self._owed):
                # Each starts where its last rollout left its lanes, even if it was not taken.
                starts = {i: self.lanes.after(i, self._pending[i]) for i in sorted(group)}
                tasks = [replace(self.tasks[i], start=start) for i, start in starts.items()]
                self._begin(member, tasks, round_)

    def _owed(self, sampler: int) -> int:
        """The first round whose rollout has not arrived from a sampler."""
        return self.lanes.round(sampler) + len(self._pending[sampler])

    def dismiss(self, member: Member) -> int | None:
        """Takes the samplers from a node; returns the first missing round, or None."""
        lost = [pool for pool in self.pools if pool.member is member]
        for pool in lost:
            self.pools.remove(pool)
            self.homeless += pool.samplers
        return min((self._owed(i) for pool in lost for i in pool.samplers), default=None)

    def keep(self, slots: Sequence[Slot], pool: Pool, requested_ns: int) -> None:
        """Keeps the rollouts, made by `node.copied`, of a pool's oldest outstanding round.

        The round was requested at `requested_ns` on this process's clock.
        """
        for sampler, slot in zip(pool.samplers, slots, strict=True):
            self._pending[sampler].append(restored(slot, requested_ns, time.monotonic_ns()))

    def take_round(self) -> list[Received] | None:
        """The next rollout of every sampler, in their order; None if one is missing.

        The lanes are then past this round.
        """
        if not self._pending or not all(self._pending):
            return None
        received = [Received(i, 0, slots.popleft()) for i, slots in enumerate(self._pending)]
        for item in received:
            self.lanes.advance(item.sampler, item.slot)
        return received


class Request(NamedTuple):
    """A round that was requested from a pool, and when.

    Ray runs a call at most once, so the call's reference has the only answer to the request.
    """

    round: int
    pool: Pool
    sent_ns: int


class RaySampling(Sampling):
    """The agent's side of sampling on all nodes.

    Lanes are dealt to nodes between two rounds. The samplers of a node that is lost in a round are
    started elsewhere, from the start of their first missing round, and all lanes are dealt again
    when every requested round has arrived.
    """

    def __init__(
        self,
        plan: Plan,  # how samplers are made
        snapshot: PolicySnapshot,  # any policy of the run
        settings: ClusterSettings,  # the cluster, and which nodes are used
        *,
        lag: Lag,  # the allowed lag of the samplers
        signals: Signals,  # signals that interrupt a wait
        others: OtherProcesses | None = None,  # further processes whose death ends a wait
    ) -> None:
        """Connects, and waits until every node has shown that it computes the agent's bits.

        Raises ConfigError if there is no cluster or no node, or a node may not take part.
        """
        self._lag, self._rounds = lag, plan.task.rounds
        self._signals, self._others = signals, others
        self._limit = TimeLimit(plan.patience.timeout_s, LEAST_S, TIMES_THE_LONGEST)
        self.events = EventLog()
        self.owners = [0] * len(plan.task.lanes)
        self._pools = Pools(plan)
        self.lanes: LaneBook = self._pools.lanes
        self._requests: dict[Any, Request] = {}
        self._snapshots: dict[int, Any] = {}
        self._newest = -1
        self._round = plan.task.first_round  # the agent takes it next
        self._top = self._round - 1  # the last that was requested
        self._wants_deal = True
        self._in_use: dict[Member, int] = {}
        all_lanes = plan.shape(len(plan.task.lanes)).bytes
        restarts = plan.patience.restarts
        with signals.breaking_off():
            self._connection = Connection(
                settings.address, 4 * plan.slots * all_lanes, settings.nodes
            )
        try:
            with signals.breaking_off():
                canary = plan.canary(snapshot)
            self._members = Members(
                self._connection, settings, canary, restarts, self.events.report
            )
            self._members.begin(signals.arrived)
        except BaseException:
            self._connection.close()
            raise
        if others:
            self._watch = DeathWatch(others.sentinels, others.check)

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Requests the rounds that the policy makes possible."""
        self._snapshots[snapshot.version] = self._connection.sendable(snapshot)
        self._newest = snapshot.version
        self._look()
        self._ask()

    def receive(self) -> Round:
        """See `Sampling`."""
        while (received := self._pools.take_round()) is None:
            self._wait()
        round_ = assemble_round(received, self._pools.tasks)
        del received  # its arrays are views that pin Ray's object store
        self._round += 1
        oldest = self._lag.oldest(self._round)
        self._snapshots = {v: sent for v, sent in self._snapshots.items() if v >= oldest}
        self.owners[:] = [task.index for task in self._pools.tasks for _ in task.lanes]
        self._ask()
        return round_

    def _ask(self) -> None:
        """Requests the rounds that may begin from every pool."""
        live = self._members.live()
        if self._wants_deal and self._top < self._round and live:
            self._deal({member: member.samplers for member in live})
        self._pools.rehouse(live)
        while not self._wants_deal and (self._rounds is None or self._top + 1 < self._rounds):
            if self._lag.oldest(self._top + 1) > self._newest:
                break
            self._top += 1
        for pool in self._pools.pools:
            while pool.round <= self._top:
                self._send(pool)

    def _deal(self, most: Mapping[Member, int]) -> None:
        self._wants_deal = False
        dealt = self._pools.deal(most, self._round)
        self.lanes = self._pools.lanes
        if dealt == self._in_use:
            return
        self._in_use = dealt
        nodes = []
        for member, samplers in dealt.items():
            known: dict[str, Any] = {"name": member.name, "address": member.node.address}
            if member.facts is not None:
                known |= {"cpu_model": member.facts.cpu_model, "cores": member.facts.cores}
            nodes.append(known | {"samplers": samplers})
        self.events.report(NodesInUse(self._round, nodes))

    def _send(self, pool: Pool) -> None:
        member, snapshot = pool.member, self._snapshots[self._lag.oldest(pool.round)]
        ends = pool.on_node if pool.start else ()
        call = Call(pool.incarnation, pool.round, pool.start, ends)
        now_ns = time.monotonic_ns()
        reference = self._connection.collect(member.actor, call, snapshot)
        if not member.awaited:
            member.since = now_ns * 1e-9
        member.awaited.append(reference)
        self._requests[reference] = Request(pool.round, pool, now_ns)
        pool.start, pool.on_node, pool.round = None, (pool.incarnation,), pool.round + 1

    def _wait(self) -> None:
        """Waits for an answer, a death, a signal, or a node that owes an answer for too long."""
        if self._signals.arrived():
            raise Interrupted
        if self._others:
            self._others.check()
        # Rare answers first: Ray returns the first ones in the list, so rounds would hide them.
        references = [*self._members.references(), *self._next_answers()]
        owed = sum(request.round == self._round for request in self._requests.values())
        ready = self._connection.wait(references, POLL_S, max(1, owed))
        for reference in ready:
            self._take(reference)
        if not ready:  # else more may have come while the agent learned
            for member in self._members.overdue(self._limit.seconds):
                seconds = time.monotonic() - member.since
                self._dismiss(member, f"has not answered for {seconds:.0f} s and is set aside")
                self._members.set_aside(member)
        self._look()
        self._ask()

    def _next_answers(self) -> list[Any]:
        """The first answer that each pool owes: Ray may report a later one before it."""
        first: dict[int, Any] = {}
        for reference, request in self._requests.items():
            first.setdefault(request.pool.incarnation, reference)
        return list(first.values())

    def _look(self) -> None:
        for member in self._members.look():
            self._lose(member, "has left the cluster")

    def _take(self, reference: Any) -> None:
        """Takes an answer; if the node is lost, its lanes are collected elsewhere."""
        request = self._requests.pop(reference, None)
        if request is None:  # a canary, an answer that is void, or of a node that was lost just now
            owed = reference in self._members.references()
            self._wants_deal |= owed and self._members.take(reference)
            return
        member = request.pool.member
        member.awaited.remove(reference)
        try:
            slots, news = self._connection.get(reference)
        except NodeLostError as error:
            self._lose(member, f"was lost ({error})")
            return
        except WorkerError as error:
            raise WorkerError(f"node {member.name}: {error}") from None
        self._pools.keep(slots, request.pool, request.sent_ns)
        for event in news:
            if isinstance(event, Replacement):
                sampler = f"{event.sampler} of node {member.name}"
                self.events.report(event._replace(sampler=sampler))
            else:
                self.events.report(f"node {member.name}: {event}")
        now = time.monotonic()
        self._limit.note(now - member.since)
        member.since = now

    def _lose(self, member: Member, why: str) -> None:
        self._dismiss(member, why)
        self._members.lose(member)

    def _dismiss(self, member: Member, why: str) -> None:
        requests = self._requests.items()
        self._requests = {key: r for key, r in requests if r.pool.member is not member}
        round_ = self._pools.dismiss(member)
        self._wants_deal = True
        if round_ is not None:
            remedy = "its lanes are collected again from"
            who = f"node {member.name}"
            self.events.report(Replacement(who, timestamp(), round_, why, remedy=remedy))

    def close(self) -> None:
        """Ends all actors with their samplers, and disconnects."""
        super().close()
        self._members.close()
        self._connection.close()
