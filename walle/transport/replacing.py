"""Which dead samplers are replaced, and what is said about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from walle.timing import timestamp

AT_MOST_A_ROUND = 2


class Replacement(NamedTuple):
    """A sampler or a learner that was replaced, as status.json lists it.

    Attributes:
        sampler: its name.
        when: the time in ISO 8601, UTC.
        round: the round that its successor collects again, or learns from again.
        why: how it ended.
        exact: whether the run goes on with the same bits as if nothing had happened.
    """

    sampler: str
    when: str
    round: int
    why: str
    exact: bool = True

    @property
    def line(self) -> str:
        """What the terminal shows."""
        inexact = "" if self.exact else " (free-running: the run is not the same bit for bit)"
        return f"{self.sampler} {self.why}; a new one repeats round {self.round}{inexact}"


class Restarts:
    """Counts replacements: so many in all, and two a round, since a fault may come back."""

    def __init__(self, most: int, key: str = "sampler.restarts") -> None:
        """Allows `most` replacements in the run, as the setting `key` says."""
        self._most, self._key = most, key
        self._left = most
        self._by_round: Counter[tuple[int, int]] = Counter()

    def refusal(self, sampler: int, round_: int) -> str:
        """Why the sampler is not replaced in that round; empty, and counted, if it is."""
        if self._left <= 0:
            return f"{self._key}={self._most} allows no further replacement"
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

    def tell(self, found: Replacement | str) -> None:
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
