"""The agent's interface to the samplers, and the log of their events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from walle.sampling.lane_book import LaneBook
from walle.sampling.rounds import Round
from walle.system.supervision import DeathWatch
from walle.timing import timestamp
from walle.types import PolicySnapshot


class Replacement(NamedTuple):
    """A sampler or a learner that was replaced, as status.json lists it."""

    sampler: str  # its name
    when: str  # the time in ISO 8601, UTC
    round: int  # the round that its successor collects again, or learns from again
    why: str  # how it ended
    exact: bool = True  # whether the results have the same bits as if nothing had happened
    remedy: str = "a new one repeats"  # who does its work

    @property
    def line(self) -> str:
        """The line for the terminal."""
        inexact = "" if self.exact else " (free-running: the run is not the same bit for bit)"
        return f"{self.sampler} {self.why}; {self.remedy} round {self.round}{inexact}"


class NodesInUse(NamedTuple):
    """The nodes of a cluster that collect from a given round onwards, as run.json lists them."""

    round: int  # the first round
    # name, address, number of samplers, processor and cores of each node
    nodes: list[dict[str, Any]]

    @property
    def line(self) -> str:
        """The line for the terminal."""
        who = ", ".join(f"{node['name']} ({node['samplers']})" for node in self.nodes)
        return f"from round {self.round} on these nodes collect (with so many samplers): {who}"


Event = Replacement | NodesInUse | str


class EventLog:
    """The events of samplers, kept until a listener is set."""

    def __init__(self) -> None:
        self._kept: list[Event] = []
        self._listener: Callable[[Event], None] = self._kept.append

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Sends all kept and future events to `listener`."""
        self._listener = listener
        while self._kept:
            listener(self._kept.pop(0))

    def report(self, event: Event) -> None:
        """Forwards an event."""
        self._listener(event)

    def replaced(self, worker: str, round_: int, how: str, *, exact: bool = True) -> None:
        """Reports that a worker is replaced; `how` is a clause that may start with its name."""
        why = how.removeprefix(worker).strip()
        self.report(Replacement(worker, timestamp(), round_, why, exact))

    def started_anew(self, sampler: str) -> None:
        """Reports lanes that could not continue."""
        self.report(
            f"{sampler} starts new episodes: the state of this environment cannot be restored "
            "exactly, so the run is not the same bit for bit"
        )


class Patience(NamedTuple):
    """How to handle samplers that die, are silent, or differ in speed."""

    balance: bool  # whether lanes are dealt in proportion to the samplers' speeds
    restarts: int  # the most replacements in a run
    # seconds without a rollout after which a sampler is named; after twice as many it is replaced;
    # None for ten times the longest round so far, at least a minute; a cluster's node has one
    # limit, by default thirty times the longest round, at least 180 s
    timeout_s: float | None


class OtherProcesses(Protocol):
    """Further processes, such as learners, without which the run cannot continue."""

    @property
    def sentinels(self) -> list[int]:
        """A handle for each process; it becomes ready when the process ends."""

    def check(self) -> None:
        """Raises WorkerError for the first process that has ended, if there is any."""


class Sampling(ABC):
    """The samplers as the agent uses them: it publishes policies and receives rounds.

    Methods that wait raise Interrupted at a signal, and WorkerError if a sampler fails, or dies and
    may not be replaced.
    """

    owners: list[int]  # the sampler of each lane in the last received round; changes in place
    lanes: LaneBook  # the state of all lanes after the last received round
    events: EventLog  # what happened to samplers
    _watch: DeathWatch | None = None

    def wait_ready(self) -> None:  # noqa: B027 - lanes in this process are ready at once
        """Waits until every sampler has built its lanes."""

    @abstractmethod
    def publish(self, snapshot: PolicySnapshot) -> None:
        """Makes the policy available to every sampler."""

    @abstractmethod
    def receive(self) -> Round:
        """Waits for the next round."""

    def busy(self) -> AbstractContextManager[None]:
        """A context for the agent's work in which the death of a worker may raise WorkerError."""
        return self._watch.busy() if self._watch else nullcontext()

    def close(self) -> None:
        """Ends every sampler and frees the queues."""
        if self._watch:
            self._watch.close()
