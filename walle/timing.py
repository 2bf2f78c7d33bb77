"""Time measurement in exclusive sections on one monotonic clock, and cadences in steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

SAMPLER_SECTIONS = ("act", "env_step", "send", "wait_policy", "wait_slot", "other")
AGENT_SECTIONS = (
    *("compile", "wait_experience", "update", "publish", "evaluate", "checkpoint", "callbacks"),
    *("log", "other"),
)


def timestamp() -> str:
    """The current time in ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Every:
    """A cadence: true once in every `period` environment steps; never if `period` is None."""

    def __init__(self, period: int | None, env_steps: int = 0) -> None:
        """Becomes true for the first time at the next multiple of `period` after `env_steps`."""
        self._period = period
        self._next = None if period is None else (env_steps // period + 1) * period

    def __call__(self, env_steps: int) -> bool:
        """Whether a multiple of the period was passed since the last True."""
        if self._period is None or self._next is None or env_steps < self._next:
            return False
        self._next = (env_steps // self._period + 1) * self._period
        return True


class Span(NamedTuple):
    """An uninterrupted interval in one section, in nanoseconds of the monotonic clock."""

    section: str
    start_ns: int
    end_ns: int


class Timer:
    """A timer splits the wall clock of a process into named sections that never overlap.

    Exactly one section is current at any time, so the sections sum to the elapsed time. Entering a
    section inside another one suspends the outer one.

    The clock is `time.monotonic_ns`, which all processes of one machine share.
    """

    def __init__(
        self,
        sections: tuple[str, ...],
        *,
        trace: bool = False,
        board: Any = None,
        earlier_s: float = 0.0,
    ) -> None:
        """Starts the clock in section `other`; a resumed run has already taken `earlier_s`.

        `trace` keeps every span, for a timeline. `board` is two integers in shared memory, which
        show other processes the number of the current section and the clock at its start.
        """
        if "other" not in sections:
            raise ValueError(f"sections must contain 'other', got {sections}")
        self.sections = sections
        self._index = {name: i for i, name in enumerate(sections)}
        self._ns = [0] * len(sections)
        self._spans: list[Span] | None = [] if trace else None
        self._board = None if board is None else memoryview(board)
        self._current = self._index["other"]
        self.since_ns = time.monotonic_ns()  # when the current section was entered
        self.start_ns = self.since_ns - int(earlier_s * 1e9)

    @property
    def wall_s(self) -> float:
        """The seconds since the start."""
        return (time.monotonic_ns() - self.start_ns) * 1e-9

    def __str__(self) -> str:
        """What the process does, and since when."""
        name, seconds = self.sections[self._current], (time.monotonic_ns() - self.since_ns) * 1e-9
        words = {"wait_experience": "collecting", "update": "learning", "evaluate": "evaluating"}
        words |= {"compile": "compiling", "checkpoint": "saving", "other": "busy"}
        return f"{words.get(name, name)} for {seconds:.0f} s"

    def switch(self, section: str) -> int:
        """Leaves the current section for `section`; returns the clock in nanoseconds.

        It reads the clock once and needs no context manager, for use in hot loops.
        """
        now = time.monotonic_ns()
        self._ns[self._current] += now - self.since_ns
        if self._spans is not None:
            self._spans.append(Span(self.sections[self._current], self.since_ns, now))
        self._current = self._index[section]
        self.since_ns = now
        if self._board is not None:
            self._board[0] = self._current
            self._board[1] = now
        return now

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Measures the body in section `name`, then returns to the outer section."""
        outer = self.sections[self._current]
        self.switch(name)
        try:
            yield
        finally:
            self.switch(outer)

    def take(self) -> dict[str, float]:
        """The seconds of every section since the last call, in the order of `sections`."""
        self.switch(self.sections[self._current])
        seconds = {name: ns * 1e-9 for name, ns in zip(self.sections, self._ns, strict=True)}
        self._ns = [0] * len(self._ns)
        return seconds

    def spans(self) -> list[Span]:
        """The spans since the last call that are longer than 0; an empty list without a trace."""
        if self._spans is None:
            return []
        spans, self._spans = self._spans, []
        return [span for span in spans if span.end_ns > span.start_ns]


class TraceFile:
    """A writer that appends spans to trace.csv; several processes may use the same file."""

    def __init__(self, path: Path, process: str, zero_ns: int) -> None:
        """`zero_ns` is the run's start on the monotonic clock."""
        self._file, self._process, self._zero_ns = path, process, zero_ns

    @staticmethod
    def start(path: Path, earlier_s: float = 0.0) -> str:
        """The file's content at the start: its header and the spans of the first `earlier_s`."""
        kept = ["process,section,start_s,end_s\n"]
        if earlier_s and path.exists():
            with path.open() as file:
                rows = (row for row in islice(file, 1, None) if row.endswith("\n"))
                kept += [row for row in rows if float(row.rsplit(",", 1)[1]) <= earlier_s]
        return "".join(kept)

    def write(self, spans: list[Span]) -> None:
        """Appends a row for each span, in one write."""
        rows = []
        for section, *ends_ns in spans:
            start_s, end_s = (f"{(ns - self._zero_ns) * 1e-9:.6f}" for ns in ends_ns)
            rows.append(f"{self._process},{section},{start_s},{end_s}\n")
        with self._file.open("a") as file:
            file.write("".join(rows))
