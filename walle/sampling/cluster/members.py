"""The nodes that take part in a run: they start with a canary, and may be lost or suspended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from walle.errors import ConfigError, Interrupted, WorkerError
from walle.sampling.cluster.connection import Connection, NodeLostError, RayNode
from walle.sampling.cluster.node import Facts, Start
from walle.types import PolicySnapshot

START_S, LOOK_S, ALONE_S = 300.0, 1.0, 60.0
State = Literal["starting", "live", "aside"]


class ClusterSettings(NamedTuple):
    """The settings that only `sampler=ray` has."""

    address: str | None  # of a running cluster; None to start a local one for this run
    nodes: int | None  # the most nodes that are used; None for all
    # the samplers of a node; None means one for each core that Ray may use there
    per_node: int | None
    # "error" refuses a node that computes other bits than the agent, "warn" reports it
    mismatch: str


class Canary(NamedTuple):
    """The rollout that every node collects first: how, with which policy, and the right answer."""

    start: Start
    snapshot: PolicySnapshot
    expected: Facts


@dataclass(eq=False)
class Member:
    """A node that takes part."""

    node: RayNode
    actor: Any  # the handle of its actor
    # starting: its canary is awaited; live: it collects; aside: it gets no work until its overdue
    # answer has come
    state: State = "starting"
    awaited: list[Any] = field(default_factory=list)  # references to the answers that it owes
    # when it began to owe the first of them, on the agent's clock
    since: float = field(default_factory=time.monotonic)
    facts: Facts | None = None  # what its canary showed; None before
    samplers: int = 1  # the most that it can have

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name


class Members:
    """All nodes that take part, in order of arrival."""

    def __init__(
        self,
        connection: Connection,  # to the cluster
        settings: ClusterSettings,  # which nodes to use, and what to do about a mismatch
        canary: Canary,  # the first task of every node
        restarts: int,  # how often a node may be lost or set aside and begin again
        say: Callable[[str], None],  # prints a line
    ) -> None:
        self._connection, self._settings, self._canary = connection, settings, canary
        self._restarts, self._say = restarts, say
        self._members: list[Member] = []
        self._failures: Counter[str] = Counter()
        self._refused: set[str] = set()
        self._looked = -LOOK_S
        self._alone_since: float | None = None
        self._last_death = ""

    def live(self) -> list[Member]:
        """The nodes that collect, sorted by name."""
        return sorted(self._in_state("live"), key=lambda member: member.name)

    def references(self) -> list[Any]:
        """The answers that no pool of samplers waits for: canaries and void answers."""
        return [answer for m in self._members if m.state != "live" for answer in m.awaited]

    def _in_state(self, state: State) -> list[Member]:
        return [member for member in self._members if member.state == state]

    def begin(self, is_ending: Callable[[], bool] = lambda: False) -> None:
        """Waits until the present nodes have shown their canaries.

        A node that needs more than five minutes joins later, if another one is live by then. Once
        `is_ending` reports a signal, raises Interrupted: an exception from the signal's handler
        would confuse Ray. Raises ConfigError if no node is live, or one may not take part.
        """
        self.look()
        if not self._members:
            raise ConfigError(
                "sampler=ray: the cluster has no node with cores for Ray (CPU); add one with "
                "`ray start --address=... --num-cpus=N`"
            )
        deadline = time.monotonic() + START_S
        while starting := self._in_state("starting"):
            if is_ending():
                raise Interrupted
            if time.monotonic() > deadline:
                late = ", ".join(f"node {member.name}" for member in starting)
                fault = f"not begun within {START_S:.0f} s, are the cores in use?"
                if not self._in_state("live"):
                    raise ConfigError(f"sampler=ray: {fault} `ray status` shows it: {late}")
                self._say(f"{fault} They join when they have: {late}")
                break
            for reference in self._connection.wait(self.references(), LOOK_S):
                if fault := self._shown(self._owing(reference), reference):
                    raise ConfigError(fault)
        if not self._members:
            raise ConfigError(
                f"sampler=ray: {self._last_death}, and no other node is left; if the node itself "
                "is sound, set RAY_AUTH_MODE here as it was at `ray start`"
            )
        self._alone_since = None

    def look(self) -> list[Member]:
        """Starts new nodes; returns the members whose nodes have left the cluster.

        It asks the cluster once a second at most. Raises WorkerError if the run has had no node for
        a minute, or for five minutes while one was starting.
        """
        now = time.monotonic()
        if now < self._looked + LOOK_S:
            return []
        self._looked = now
        nodes = {node.identity: node for node in self._connection.nodes()}
        used = {member.node.identity for member in self._members}
        room = (self._settings.nodes or len(nodes)) - len(used)
        room += len(self._in_state("aside"))
        fresh = [n for i, n in nodes.items() if i not in used and i not in self._refused]
        for node in fresh[: max(0, room)]:
            samplers = self._settings.per_node or node.cpus
            actor = self._connection.start(node, min(samplers, node.cpus))
            member = Member(node, actor, samplers=samplers)
            start, snapshot, _ = self._canary
            member.awaited.append(self._connection.canary(member.actor, start, snapshot))
            self._members.append(member)
        limit_s = START_S if self._in_state("starting") else ALONE_S
        if self._in_state("live"):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > limit_s:
            raise WorkerError(
                f"no node of the Ray cluster has collected for {limit_s:.0f} s; add nodes, and "
                "resume with resume=..."
            )
        return [member for member in self._members if member.node.identity not in nodes]

    def _owing(self, reference: Any) -> Member:
        return next(member for member in self._members if reference in member.awaited)

    def take(self, reference: Any) -> bool:
        """Takes an answer out of `references`; returns whether this made a node live.

        The answer of a suspended node is void: the node starts again.
        """
        member = self._owing(reference)
        if member.state == "aside":
            try:
                self._connection.get(reference)
                self._say(f"node {member.name} answers again; its answer came too late and is void")
            except (NodeLostError, WorkerError):
                self._say(f"node {member.name}, which was set aside, has ended")
            self._leave(member)
        elif fault := self._shown(member, reference):
            self._say(f"{fault}; it gets no work")
            self._refused.add(member.node.identity)
            self._leave(member)
        return member.state == "live"

    def _shown(self, member: Member, reference: Any) -> str:
        """Lets a node whose canary has come take part; returns why it may not, else ""."""
        member.awaited.remove(reference)
        try:
            facts: Facts = self._connection.get(reference)
        except NodeLostError as error:
            self._last_death = f"node {member.name} died before it began: {error}"
            self._say(self._last_death)
            self.lose(member)
            return ""
        except WorkerError as error:
            return f"node {member.name} cannot collect: {error}"
        member.facts, expected = facts, self._canary.expected
        theirs, ours = facts.versions.get("walle"), expected.versions.get("walle")
        if theirs != ours:
            why = f"has walle {theirs}, the agent {ours}; install the same version on every node"
            return f"node {member.name} {why}"
        if facts.digest != expected.digest:
            here = {"processor": expected.cpu_model, **expected.versions}
            there = {"processor": facts.cpu_model, **facts.versions}
            differing = [name for name in here if here[name] != there.get(name)]
            why = ", ".join(f"{name} {there[name]} there, {here[name]} here" for name in differing)
            why = why or "the environment may use random numbers besides its seed"
            fault = f"node {member.name} computes other bits than the agent ({why})"
            if self._settings.mismatch == "error":
                return f"{fault}; leave the node out, or accept that with sampler.mismatch=warn"
            self._say(f"{fault}; results depend on the nodes (sampler.mismatch=warn)")
        member.state = "live"
        return ""

    def overdue(self, limit_s: float) -> list[Member]:
        """The nodes that collect and whose answer has been due for more than `limit_s`."""
        late = time.monotonic() - limit_s
        return [m for m in self._in_state("live") if m.awaited and m.since < late]

    def set_aside(self, member: Member) -> None:
        """Suspends a node until one of its due answers has arrived."""
        member.state = "aside"
        self._count(member)

    def lose(self, member: Member) -> None:
        """Forgets a node whose actor died; if the cluster still has the node, it starts again."""
        self._leave(member)
        self._count(member)

    def _count(self, member: Member) -> None:
        self._failures[member.node.identity] += 1
        if self._failures[member.node.identity] > self._restarts:
            self._refused.add(member.node.identity)
            self._say(f"node {member.name} is not used again: sampler.restarts={self._restarts}")

    def _leave(self, member: Member) -> None:
        self._members.remove(member)
        self._connection.kill(member.actor)

    def close(self) -> None:
        """Ends all actors."""
        for member in self._members:
            self._connection.kill(member.actor)
        self._members = []
