"""Which dead samplers are replaced, and what is said about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from walle.timing import timestamp

AT_MOST_A_ROUND = 2


class Replacement(NamedTuple):
    """A sampler that was replaced, as status.json lists it.

    Attributes:
        sampler: its name.
        when: the time in ISO 8601, UTC.
        round: the round that its successor collects again.
        why: how it ended.
    """

    sampler: str
    when: str
    round: int
    why: str

    @property
    def line(self) -> str:
        """What the terminal shows."""
        return f"{self.sampler} {self.why}; a new one collects round {self.round} again"


class Restarts:
    """Counts replacements: so many in all, and two a round, since a fault may come back."""

    def __init__(self, most: int) -> None:
        """Allows `most` replacements in the run."""
        self._most = most
        self._left = most
        self._by_round: Counter[tuple[int, int]] = Counter()

    def refusal(self, sampler: int, round_: int) -> str:
        """Why the sampler is not replaced in that round; empty, and counted, if it is."""
        if self._left <= 0:
            return f"sampler.restarts={self._most} allows no further replacement"
        if self._by_round[sampler, round_] >= AT_MOST_A_ROUND:
            return f"its round {round_} failed {AT_MOST_A_ROUND + 1} times: the fault comes back"
        self._left -= 1
        self._by_round[sampler, round_] += 1
        return ""


class News:
    """What happens to samplers, kept until somebody listens."""

    def __init__(self) -> None:
        """Keeps everything at first."""
        self._kept: list[Replacement | str] = []
        self._tell: Callable[[Replacement | str], None] = self._kept.append

    def listen(self, tell: Callable[[Replacement | str], None]) -> None:
        """Sends what was kept, and everything from now on, to `tell`."""
        self._tell = tell
        while self._kept:
            tell(self._kept.pop(0))

    def replaced(self, sampler: str, round_: int, why: str) -> None:
        """Tells that a sampler is replaced."""
        self._tell(Replacement(sampler, timestamp(), round_, why))

    def say(self, line: str) -> None:
        """Tells anything else."""
        self._tell(line)


def begins_new_episodes(sampler: str) -> str:
    """The line about lanes that could not go on."""
    return (
        f"{sampler} begins new episodes: the state of this environment cannot be restored exactly, "
        "so the run is not the same bit for bit"
    )
