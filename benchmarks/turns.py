"""Programs that work for ever, take turns on the same cores, and write down how far they got.

All are started, then stopped by SIGSTOP; each in turn is let go on for a while. So whatever else
the machine does meets all alike, and nobody's start-up counts.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.options import chosen
from benchmarks.programs import Need, Program, read_csv, whole_lines
from benchmarks.provenance import why_absent

START_UP_S = 180
POLL_S = 0.5  # looking more often would take part of a core from whoever needs both


class Block(NamedTuple):
    """A stretch of work of one of a contestant's processes."""

    worker: int
    steps: int
    seconds: float


class Launch(NamedTuple):
    """What a start took, in seconds.

    Attributes:
        startup_s: from the command until it could work, compiling left out.
        compile_s: spent compiling.
        first_s: from the command until the first stretch of work was over.
    """

    startup_s: float
    compile_s: float
    first_s: float


class Contestant:
    """Programs that print a line of JSON, [steps, start, end, ...], for each stretch of work."""

    def __init__(self, name: str, programs: list[Program], directory: Path) -> None:
        """Starts the programs, which report on their standard output."""
        self.name = name
        self.directory = directory
        self.directory.mkdir()
        self.first_s: float | None = None
        self._launched_s = self._since_s = time.monotonic()
        self._files = [directory / f"{i}.jsonl" for i in range(len(programs))]
        self._errors = directory / "stderr"
        self._running = [
            program.start(file, self._errors)
            for program, file in zip(programs, self._files, strict=True)
        ]

    @property
    def workers(self) -> int:
        """How many processes report."""
        return len(self._running)

    def signal(self, number: int) -> None:
        """To all its processes, children included."""
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, number)

    def resume(self) -> None:
        """Goes on; what it began before is not counted."""
        self._since_s = time.monotonic()
        self.signal(signal.SIGCONT)

    def pause(self) -> None:
        """Stops in the middle of whatever it does."""
        self.signal(signal.SIGSTOP)

    def end(self) -> None:
        """Ends all its processes and waits for those started here."""
        self.signal(signal.SIGKILL)
        for process in self._running:
            process.wait()

    def all_blocks(self) -> list[Block]:
        """Everything that was ever ended."""
        return self._begun_since(0.0)

    def blocks(self) -> list[Block]:
        """What was begun and ended since `resume`."""
        return self._begun_since(self._since_s)

    def _begun_since(self, since_s: float) -> list[Block]:
        return [
            Block(worker, steps, end - start)
            for worker, file in enumerate(self._files)
            for steps, start, end, *_ in map(json.loads, whole_lines(file))
            if start >= since_s
        ]

    def launch(self, step_s: float) -> Launch:
        """How it started, given the seconds that a step takes in the long run.

        Code is compiled in the first stretch, wherever that took longer than it should have.
        """
        first, begun_s = self.all_blocks()[0], self.first_s or 0.0
        return Launch(
            begun_s - first.seconds, max(0.0, first.seconds - first.steps * step_s), begun_s
        )

    def look(self) -> None:
        """Notes when it first ended something, in seconds after its launch."""
        if self.first_s is None and self.all_blocks():
            self.first_s = time.monotonic() - self._launched_s

    def check(self, deadline_s: float = math.inf) -> None:
        """Fails with the program's own words if one has ended, or if it is too late."""
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{self.name} did nothing in {START_UP_S} s")
        for process in self._running:
            if process.poll() is not None:
                words = self._errors.read_text()[-2000:]
                raise SystemExit(f"{self.name} ended with {process.returncode}:\n{words}")


class WalleRun(Contestant):
    """A real run: its iterations.csv says how long each round took to collect."""

    column = "collect_s"
    _seen = 0

    def all_blocks(self) -> list[Block]:
        """Every round."""
        rows = read_csv(self.directory / "run" / "iterations.csv")
        steps = [int(row["env_steps"]) for row in rows]
        taken = [after - before for before, after in zip([0, *steps], steps, strict=False)]
        return [Block(0, n, float(row[self.column])) for n, row in zip(taken, rows, strict=True)]

    def blocks(self) -> list[Block]:
        """The rounds since `resume`, without the first, during which the run stood still."""
        return self.all_blocks()[self._seen + 1 :]

    def resume(self) -> None:
        """Goes on; what it began before is not counted."""
        self._seen = len(self.all_blocks())
        super().resume()

    def launch(self, step_s: float) -> Launch:
        """What the run charged to compiling is told from the rest of its start."""
        compile_s = charged_to_compiling(self.directory / "run")
        begun_s, round_s = self.first_s or 0.0, self.all_blocks()[0].steps * step_s
        return Launch(begun_s - round_s - compile_s, compile_s, begun_s)


def charged_to_compiling(run: Path) -> float:
    """The seconds of that section in a run's timing.csv."""
    rows = read_csv(run / "timing.csv")
    return sum(float(row["compile_s"] or 0) for row in rows if row["process"] == "agent")


class WalleRounds(WalleRun):
    """A real run: how long each round took, collecting and learning and everything else."""

    column = "iteration_s"


Kind = Callable[[str, list[Program], Path], Contestant]


class Entry(NamedTuple):
    """Who takes part: a name, the programs behind it, how they tell what they did."""

    name: str
    programs: list[Program]
    kind: Kind = Contestant
    need: Need | None = None


def present(entries: Iterable[Entry], only: Sequence[str] | None = None) -> list[Entry]:
    """Those whose packages are there; says of each other one in a line why it is left out.

    Args:
        entries: who might take part.
        only: the beginnings of the names asked for; all where None.
    """
    entries = list(entries)
    names = chosen([entry.name for entry in entries], only)
    reasons: dict[Need | None, str | None] = {None: None}
    found = []
    for entry in entries:
        if entry.name not in names:
            continue
        if entry.need not in reasons:
            reasons[entry.need] = why_absent(*entry.need)
        if reason := reasons[entry.need]:
            print(f"{entry.name}: left out, {reason}", flush=True)
        else:
            found.append(entry)
    return found


@contextmanager
def lined_up(entries: Sequence[Entry], directory: Path) -> Iterator[list[Contestant]]:
    """All contestants, each started alone and paused; ended after the body."""
    contestants: list[Contestant] = []
    try:
        for name, programs, kind, _ in entries:
            contestants.append(started(kind(name, programs, directory / name)))
        yield contestants
    finally:
        for contestant in contestants:
            contestant.end()


def started(contestant: Contestant) -> Contestant:
    """Waits until it has done something, then pauses it."""
    deadline = time.monotonic() + START_UP_S
    try:
        while len({block.worker for block in contestant.blocks()}) < contestant.workers:
            contestant.look()
            contestant.check(deadline)
            time.sleep(0.05)
        contestant.look()
        contestant.pause()
    except BaseException:
        contestant.end()
        raise
    return contestant


def in_turn(
    contestants: Sequence[Contestant], repetitions: int, steps: int, seconds: float = math.inf
) -> dict[str, list[list[Block]]]:
    """Lets each go on in turn; every repetition begins with another one.

    Args:
        contestants: paused.
        repetitions: turns of each.
        steps: environment steps of a turn.
        seconds: a turn's end, if sooner.

    Returns:
        what each did in each of its turns.
    """
    turns: dict[str, list[list[Block]]] = {contestant.name: [] for contestant in contestants}
    for repetition in range(repetitions):
        for contestant in rotated(contestants, repetition):
            turns[contestant.name].append(turn(contestant, steps, seconds))
    return turns


def rotated(items: Sequence[Any], by: int) -> list[Any]:
    """The same in the same order, beginning with another one; nothing stays nothing."""
    first = by % max(1, len(items))
    return [*items[first:], *items[:first]]


def turn(contestant: Contestant, steps: int, seconds: float = math.inf) -> list[Block]:
    """One turn of so many environment steps or seconds, whichever comes first."""
    with going(contestant):
        begin = time.monotonic()
        while True:
            time.sleep(POLL_S)
            blocks = contestant.blocks()
            enough = sum(block.steps for block in blocks) >= steps
            if not enough and time.monotonic() - begin < seconds:
                contestant.check(begin + START_UP_S)
                continue
            if len({block.worker for block in blocks}) == contestant.workers:
                return blocks
            contestant.check(begin + START_UP_S)


@contextmanager
def going(contestant: Contestant) -> Iterator[None]:
    """Only in the body."""
    contestant.resume()
    try:
        yield
    finally:
        contestant.pause()


def rate(blocks: Sequence[Block]) -> float:
    """Steps per second: the sum over workers of steps / seconds."""
    total = 0.0
    for worker in {block.worker for block in blocks}:
        own = [block for block in blocks if block.worker == worker]
        total += sum(block.steps for block in own) / sum(block.seconds for block in own)
    return total
