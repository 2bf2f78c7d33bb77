"""When samplers that died or are silent are replaced, and what is said about it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from walle.timing import timestamp

AT_MOST_A_ROUND = 2
LEAST_S, TIMES_THE_LONGEST = 60.0, 10.0


class Replacement(NamedTuple):
    """A sampler or a learner that was replaced, as status.json lists it.

    Attributes:
        sampler: its name.
        when: the time in ISO 8601, UTC.
        round: the round that its successor collects again, or learns from again.
        why: how it ended.
        exact: whether the run goes on with the same bits as if nothing had happened.
        remedy: who does its work.
    """

    sampler: str
    when: str
    round: int
    why: str
    exact: bool = True
    remedy: str = "a new one repeats"

    @classmethod
    def of_node(cls, node: str, round_: int, why: str) -> Replacement:
        """A node of a cluster whose samplers are started elsewhere, before that round."""
        who = f"node {node}"
        return cls(who, timestamp(), round_, why, remedy="its lanes are collected again from")

    @property
    def line(self) -> str:
        """What the terminal shows."""
        inexact = "" if self.exact else " (free-running: the run is not the same bit for bit)"
        return f"{self.sampler} {self.why}; {self.remedy} round {self.round}{inexact}"


class NodesInUse(NamedTuple):
    """The nodes of a cluster that collect from a round on, as run.json lists them.

    Attributes:
        round: the first round.
        nodes: name, address, number of samplers, processor and cores of each node.
    """

    round: int
    nodes: list[dict[str, Any]]

    @property
    def line(self) -> str:
        """What the terminal shows."""
        who = ", ".join(f"{node['name']} ({node['samplers']})" for node in self.nodes)
        return f"from round {self.round} on these nodes collect (with so many samplers): {who}"


Told = Replacement | NodesInUse | str


class Restarts:
    """Counts replacements: so many in all, and two a round, since a fault may come back."""

    def __init__(self, most: int, key: str = "sampler.restarts") -> None:
        """Allows `most` replacements in the run, as the setting `key` says."""
        self._most, self._key = most, key
        self._left = most
        self._by_round: Counter[tuple[int, int]] = Counter()

    def reason_against(self, sampler: int, round_: int) -> str:
        """Why the sampler may not be replaced in that round; empty if it may."""
        if self._left <= 0:
            return f"{self._key}={self._most} allows no further replacement"
        if self._by_round[sampler, round_] >= AT_MOST_A_ROUND:
            return f"its round {round_} failed {AT_MOST_A_ROUND + 1} times: the fault comes back"
        return ""

    def refusal(self, sampler: int, round_: int) -> str:
        """Why the sampler is not replaced in that round; empty, and counted, if it is."""
        reason = self.reason_against(sampler, round_)
        if not reason:
            self._left -= 1
            self._by_round[sampler, round_] += 1
        return reason


class News:
    """What happens to samplers, kept until somebody listens."""

    def __init__(self) -> None:
        """Keeps everything at first."""
        self._kept: list[Told] = []
        self._tell: Callable[[Told], None] = self._kept.append

    def listen(self, tell: Callable[[Told], None]) -> None:
        """Sends what was kept, and everything from now on, to `tell`."""
        self._tell = tell
        while self._kept:
            tell(self._kept.pop(0))

    def tell(self, found: Told) -> None:
        """Passes on what happened elsewhere."""
        self._tell(found)

    def replaced(self, worker: str, round_: int, how: str, *, exact: bool = True) -> None:
        """Tells that a worker is replaced; `how` is a clause that may begin with its name."""
        why = how.removeprefix(worker).strip()
        self._tell(Replacement(worker, timestamp(), round_, why, exact))

    def say(self, line: str) -> None:
        """Tells anything else."""
        self._tell(line)


def begins_new_episodes(sampler: str) -> str:
    """The line about lanes that could not go on."""
    return (
        f"{sampler} begins new episodes: the state of this environment cannot be restored exactly, "
        "so the run is not the same bit for bit"
    )


class Silent(NamedTuple):
    """A sampler that is silent: for how long, and what to do about it."""

    sampler: int
    seconds: float
    remedy: Literal["tell", "replace"]


class Silence:
    """The time since each sampler owes its next rollout.

    The limit is `timeout_s`; if that is None, ten times the longest round so far and a minute at
    least. After one limit a sampler is named, after two it is replaced.
    """

    def __init__(
        self, samplers: int, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begins with samplers that owe nothing."""
        self._timeout_s, self._clock = timeout_s, clock
        self._since: list[float | None] = [None] * samplers
        self._told: set[int] = set()
        self._longest_s = 0.0

    @property
    def limit_s(self) -> float:
        """The seconds of silence after which a sampler is named."""
        if self._timeout_s is not None:
            return self._timeout_s
        return max(LEAST_S, TIMES_THE_LONGEST * self._longest_s)

    def update(self, sampler: int, *, owes: bool) -> None:
        """Notes whether the sampler owes a rollout now; its time runs from the first such note."""
        if not owes:
            self.heard(sampler)
        elif self._since[sampler] is None:
            self._since[sampler] = self._clock()

    def heard(self, sampler: int, took_s: float = 0.0) -> None:
        """Notes a sign of life; `took_s` is the time of the round that it delivered, if any."""
        self._since[sampler] = None
        self._told.discard(sampler)
        self._longest_s = max(self._longest_s, took_s)

    def wait_s(self) -> float | None:
        """Seconds until the next sampler is overdue; None if no sampler owes anything."""
        limits = [
            since + self.limit_s * (2 if sampler in self._told else 1)
            for sampler, since in enumerate(self._since)
            if since is not None
        ]
        return max(0.0, min(limits) - self._clock()) if limits else None

    def overdue(self) -> list[Silent]:
        """The samplers to name now, once each, and those to replace."""
        found, now = [], self._clock()
        for sampler, since in enumerate(self._since):
            if since is None or now - since < self.limit_s:
                continue
            if now - since >= 2 * self.limit_s and sampler in self._told:
                found.append(Silent(sampler, now - since, "replace"))
            elif sampler not in self._told:
                self._told.add(sampler)
                found.append(Silent(sampler, now - since, "tell"))
        return found
