"""Programs that work for ever, take turns on the same cores, and record their steps.

All programs are started and then stopped by SIGSTOP; each in turn runs for a while. So a
disturbance of the machine affects all programs, and start-up does not count.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.options import chosen
from benchmarks.programs import Need, Program, read_csv, signal_all, whole_lines
from benchmarks.provenance import why_absent

START_UP_S = 180
POLL_S = 0.5  # polling more often would take time from a contestant that needs all cores


class Block(NamedTuple):
    """A piece of work of a contestant's process."""

    worker: int
    steps: int
    seconds: float


class Launch(NamedTuple):
    """The times of a start, in seconds."""

    startup_s: float  # from the command until the first work, without compiling
    compile_s: float  # of compiling
    first_s: float  # from the command to the end of the first piece of work


class Contestant:
    """A contestant whose programs print a line of JSON, [steps, start, end, ...], for each work."""

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
        """The number of processes that report."""
        return len(self._running)

    def signal(self, number: int) -> None:
        """Sends a signal to all its processes, including their descendants."""
        for process in self._running:
            if process.poll() is None:
                signal_all(process, number)

    def resume(self) -> None:
        """Resumes all its processes; blocks that began earlier do not count."""
        self._since_s = time.monotonic()
        self.signal(signal.SIGCONT)

    def pause(self) -> None:
        """Stops all its processes at once."""
        self.signal(signal.SIGSTOP)

    def end(self) -> None:
        """Ends all its processes and waits for those started here."""
        self.signal(signal.SIGKILL)
        for process in self._running:
            process.wait()

    def blocks(self) -> list[Block]:
        """The blocks that began and ended since `resume`."""
        return self.all_blocks(self._since_s)

    def all_blocks(self, since_s: float = 0.0) -> list[Block]:
        """All completed blocks that began after `since_s`."""
        return [
            Block(worker, steps, end - start)
            for worker, file in enumerate(self._files)
            for steps, start, end, *_ in map(json.loads, whole_lines(file))
            if start >= since_s
        ]

    def launch(self, step_s: float) -> Launch:
        """The times of the start, given the mean seconds of a step.

        The first block includes compiling if it took longer than the mean.
        """
        first, begun_s = self.all_blocks()[0], self.first_s or 0.0
        return Launch(
            begun_s - first.seconds, max(0.0, first.seconds - first.steps * step_s), begun_s
        )

    def look(self) -> None:
        """Records the time of the first completed block, in seconds after the launch."""
        if self.first_s is None and self.all_blocks():
            self.first_s = time.monotonic() - self._launched_s

    def check(self, deadline_s: float = math.inf) -> None:
        """Raises with the program's output if a program has ended, or if the time is over."""
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{self.name} did nothing in {START_UP_S} s")
        for process in self._running:
            if process.poll() is not None:
                words = self._errors.read_text()[-2000:]
                raise SystemExit(f"{self.name} ended with {process.returncode}:\n{words}")


class WalleRun(Contestant):
    """A contestant that is a run of walle; iterations.csv holds the time to collect each round."""

    column = "collect_s"
    _seen = 0

    def all_blocks(self, since_s: float = 0.0) -> list[Block]:  # noqa: ARG002
        """All rounds."""
        rows = read_csv(self.directory / "run" / "iterations.csv")
        steps = [int(row["env_steps"]) for row in rows]
        taken = [after - before for before, after in zip([0, *steps], steps, strict=False)]
        return [Block(0, n, float(row[self.column])) for n, row in zip(taken, rows, strict=True)]

    def blocks(self) -> list[Block]:
        """The rounds since `resume`, without two.

        The run was paused in the first. If the row of the round before was not yet written then, it
        was paused in the second.
        """
        return self.all_blocks()[self._seen + 2 :]

    def resume(self) -> None:
        """Resumes all its processes; blocks that began earlier do not count."""
        self._seen = len(self.all_blocks())
        super().resume()

    def launch(self, step_s: float) -> Launch:
        """The times of the start, with the section `compile` of the run."""
        compile_s = charged_to_compiling(self.directory / "run")
        begun_s, round_s = self.first_s or 0.0, self.all_blocks()[0].steps * step_s
        return Launch(begun_s - round_s - compile_s, compile_s, begun_s)


def charged_to_compiling(run: Path) -> float:
    """The seconds of the section `compile` in a run's timing.csv."""
    rows = read_csv(run / "timing.csv")
    return sum(float(row["compile_s"] or 0) for row in rows if row["process"] == "agent")


class WalleRounds(WalleRun):
    """A run of walle whose whole rounds count, with collection, learning and all else."""

    column = "iteration_s"


Kind = Callable[[str, list[Program], Path], Contestant]


class Entry(NamedTuple):
    """An entry: its name, its programs, and the class that reads their reports."""

    name: str
    programs: list[Program]
    kind: Kind = Contestant
    need: Need | None = None


def present(entries: Iterable[Entry], only: Sequence[str] | None = None) -> list[Entry]:
    """The entries whose packages are installed; prints a line for each other entry.

    `only` has the beginnings of the wanted names; None takes all names.
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
    """A context with all contestants, each started alone and paused; they end after the body."""
    contestants: list[Contestant] = []
    try:
        for name, programs, kind, _ in entries:
            contestant = kind(name, programs, directory / name)
            contestants.append(contestant)
            deadline = time.monotonic() + START_UP_S
            while len({block.worker for block in contestant.blocks()}) < contestant.workers:
                contestant.look()
                contestant.check(deadline)
                time.sleep(0.05)
            contestant.look()
            contestant.pause()
        yield contestants
    finally:
        for contestant in contestants:
            contestant.end()


def in_turn(
    contestants: Sequence[Contestant],
    repetitions: int,
    steps: int,
    least_s: float = 0.0,
    most_s: float = math.inf,
) -> dict[str, list[list[Block]]]:
    """The blocks of each paused contestant in each of its turns.

    Every repetition begins with another contestant. A turn ends after `steps` environment steps and
    `least_s` seconds, or after `most_s`.
    """
    turns: dict[str, list[list[Block]]] = {contestant.name: [] for contestant in contestants}
    for repetition in range(repetitions):
        for contestant in rotated(contestants, repetition):
            turns[contestant.name].append(turn(contestant, steps, least_s, most_s))
    return turns


def rotated(items: Sequence[Any], by: int) -> list[Any]:
    """The items rotated by one place more in each repetition; an empty list stays empty."""
    first = by % max(1, len(items))
    return [*items[first:], *items[:first]]


def turn(
    contestant: Contestant, steps: int, least_s: float = 0.0, most_s: float = math.inf
) -> list[Block]:
    """One turn, which ends as in `in_turn`, but not before every worker has completed a block."""
    contestant.resume()
    begin = time.monotonic()
    try:
        while True:
            time.sleep(POLL_S)
            blocks = contestant.blocks()
            took_s = time.monotonic() - begin
            enough = took_s >= least_s and sum(block.steps for block in blocks) >= steps
            over = enough or took_s >= most_s
            if over and len({block.worker for block in blocks}) == contestant.workers:
                return blocks
            contestant.check(begin + START_UP_S)
    finally:
        contestant.pause()


def rate(blocks: Sequence[Block]) -> float:
    """The steps per second: the sum over workers of steps / seconds."""
    total = 0.0
    for worker in {block.worker for block in blocks}:
        own = [block for block in blocks if block.worker == worker]
        total += sum(block.steps for block in own) / sum(block.seconds for block in own)
    return total
