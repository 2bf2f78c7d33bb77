"""Sampling on the nodes of a Ray cluster: the agent's end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from walle.errors import Interrupted, WorkerError
from walle.sampling.cluster.connection import Connection, NodeLostError
from walle.sampling.cluster.members import Canary, ClusterSettings, Member, Members
from walle.sampling.cluster.node import (
    Call,
    Facts,
    Start,
    canary_shape,
    canary_snapshot,
    canary_task,
    collected_here,
    versions,
)
from walle.sampling.cluster.pools import Plan, Pool, Pools
from walle.sampling.lane_book import LaneBook
from walle.sampling.rounds import Round, assemble_round
from walle.sampling.sampling import Event, EventLog, NodesInUse, OtherProcesses, Replacement
from walle.system.machine import cpu_model, usable_cores
from walle.system.signals import Signals
from walle.system.supervision import DeathWatch, TimeLimit
from walle.types import Lag, PolicySnapshot

POLL_S = 0.1
LEAST_S, TIMES_THE_LONGEST = 180.0, 30.0


class Request(NamedTuple):
    """A round that was requested from a pool, and when.

    Whatever comes back under its reference answers this request: Ray runs a call once at most, and
    a request that is void is forgotten with its reference.
    """

    round: int
    pool: Pool
    sent_ns: int


class RaySampling:
    """The agent's end of the samplers on all nodes; implements `Sampling`.

    Lanes are dealt to nodes between two rounds. The samplers of a node that is lost in a round are
    started elsewhere, before the first round that is missing, and all lanes are dealt anew when
    every round that was asked for has come.
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
        connect: Callable[[str | None, int], Connection] = Connection,  # makes the connection
    ) -> None:
        """Connects, and waits until every node has shown that it computes the agent's bits.

        Raises:
            ConfigError: there is no cluster or no node, or a node may not take part.
            Interrupted: a signal came meanwhile.
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
        self._top = self._round - 1  # the last that was asked for
        self._wants_deal = True
        self._in_use: dict[Member, int] = {}
        whole = plan.shape(len(plan.task.lanes)).bytes
        restarts = plan.patience.restarts
        with signals.breaking_off():
            self._connection = connect(settings.address, 4 * plan.slots * whole)
        try:
            with signals.breaking_off():
                canary = _canary(plan, snapshot)
            self._members = Members(
                self._connection, settings, canary, restarts, self.events.report
            )
            self._members.begin(signals.arrived)
        except BaseException:
            self._connection.close()
            raise
        self._watch = DeathWatch(others.sentinels, others.report) if others else None

    def wait_ready(self) -> None:
        """Returns at once, because the nodes have shown their canaries."""

    def busy(self) -> AbstractContextManager[None]:
        """See `Sampling`."""
        return self._watch.busy() if self._watch else nullcontext()

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Asks the nodes for the rounds that the policy makes possible."""
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
        self._snapshots = {v: each for v, each in self._snapshots.items() if v >= oldest}
        self.owners[:] = [task.index for task in self._pools.tasks for _ in task.lanes]
        self._ask()
        return round_

    def _ask(self) -> None:
        """Asks every pool for the rounds that may begin."""
        if self._wants_deal and self._top < self._round:
            self._deal()
        self._pools.rehouse(self._members.live())
        while not self._wants_deal and self._may_begin(self._top + 1):
            self._top += 1
        for pool in self._pools.pools:
            while pool.round <= self._top:
                self._send(pool)

    def _may_begin(self, round_: int) -> bool:
        wanted = self._rounds is None or round_ < self._rounds
        return wanted and self._lag.oldest(round_) <= self._newest

    def _deal(self) -> None:
        """Deals all lanes to the nodes that live, if there are any."""
        most = {member: self._members.samplers(member) for member in self._members.live()}
        if not most:
            return
        self._wants_deal = False
        dealt = self._pools.deal(most, self._round)
        self.lanes = self._pools.lanes
        if dealt != self._in_use:
            self._in_use = dealt
            self.events.report(NodesInUse(self._round, _facts(dealt)))

    def _send(self, pool: Pool) -> None:
        member, version = pool.member, self._lag.oldest(pool.round)
        call = Call(pool.incarnation, pool.round, version, pool.start, pool.ends)
        now_ns = time.monotonic_ns()
        reference = self._connection.collect(member.actor, call, self._snapshots[version])
        if not member.awaited:
            member.since = now_ns * 1e-9
        member.awaited.append(reference)
        self._requests[reference] = Request(pool.round, pool, now_ns)
        pool.start, pool.ends, pool.round = None, (), pool.round + 1

    def _wait(self) -> None:
        """Waits for an answer, a death, a signal, or a node that has owed an answer for too long.

        Raises:
            Interrupted: a signal came.
            WorkerError: code failed on a node, or no node is left.
        """
        sentinels = self._others.sentinels if self._others else []
        ended = wait([self._signals.waitable, *sentinels], 0)
        if self._signals.waitable in ended:
            raise Interrupted
        if ended and self._others:
            self._others.report()
        # First what is rare: Ray returns what stands first, so rounds would hide it.
        references = [*self._members.references(), *self._next_answers()]
        owed = sum(request.round == self._round for request in self._requests.values())
        ready = self._connection.wait(references, POLL_S, max(1, owed))
        for reference in ready:
            self._take(reference)
        if not ready:  # else more may have come while the agent learned
            self._set_aside_overdue()
        self._look()
        self._ask()

    def _next_answers(self) -> list[Any]:
        """The first answer that each pool owes: Ray may report a later one before it."""
        first: dict[int, Any] = {}
        for reference, request in self._requests.items():
            first.setdefault(request.pool.incarnation, reference)
        return list(first.values())

    def _set_aside_overdue(self) -> None:
        for member in self._members.overdue(self._limit.seconds):
            seconds = time.monotonic() - member.since
            self._dismiss(member, f"has not answered for {seconds:.0f} s and is set aside")
            self._members.set_aside(member)

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
            self.events.report(_named(event, member.name))
        now = time.monotonic()
        self._limit.note(now - member.since)
        member.since = now

    def _lose(self, member: Member, why: str) -> None:
        self._dismiss(member, why)
        self._members.lose(member)

    def _dismiss(self, member: Member, why: str) -> None:
        """Takes the samplers from a node, and all that it was asked for."""
        requests = self._requests.items()
        self._requests = {key: r for key, r in requests if r.pool.member is not member}
        round_ = self._pools.dismiss(member)
        self._wants_deal = True
        if round_ is not None:
            self.events.report(Replacement.of_node(member.name, round_, why))

    def close(self) -> None:
        """Ends all actors with their samplers, and disconnects."""
        if self._watch is not None:
            self._watch.close()
        self._members.close()
        self._connection.close()


def _canary(plan: Plan, snapshot: PolicySnapshot) -> Canary:
    task, policy = canary_task(plan.task), canary_snapshot(snapshot)
    shape = canary_shape(plan.shape(len(task.lanes)), len(task.lanes))
    here = collected_here(task, shape, policy)
    start = Start([task], [shape], plan.vector_length, 1, pin=False, patience=plan.patience)
    return Canary(start, policy, Facts(here, cpu_model(), len(usable_cores()), versions()))


def _facts(dealt: Mapping[Member, int]) -> list[dict[str, Any]]:
    """What run.json says about the nodes; `dealt` has the samplers of each."""
    nodes = []
    for member, samplers in dealt.items():
        known: dict[str, Any] = {"name": member.name, "address": member.node.address}
        if member.facts is not None:
            known |= {"cpu_model": member.facts.cpu_model, "cores": member.facts.cores}
        nodes.append(known | {"samplers": samplers})
    return nodes


def _named(event: Event, node: str) -> Event:
    if isinstance(event, Replacement):
        return event._replace(sampler=f"{event.sampler} of node {node}")
    return f"node {node}: {event}"
