"""When samplers that died or are silent are replaced, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from walle.timing import timestamp


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
