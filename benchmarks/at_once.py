"""How much slower independent work is on several cores at once than on each core alone.

    python at_once.py CORE

times a piece of work on the core for every line of input. On cores of one's own the answer of
`Pieces.slowdown` is 1. Where it is above 1, for example because other programs take the cores or
the cores share a clock, no program can be as many times as fast as it has cores.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from walle.launcher.runner import time_on

PIECES = 5


class Pieces:
    """Processes that do nothing in common, one on each core."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        """`processes` run this file."""
        self._processes = processes

    def slowdown(self) -> list[float]:
        """Seconds of a piece on all cores at once over the same core's alone, of each core."""
        alone = [self._medians([process])[0] for process in self._processes]
        at_once = self._medians(self._processes)
        return [together / single for together, single in zip(at_once, alone, strict=True)]

    @staticmethod
    def _medians(processes: list[subprocess.Popen[str]]) -> list[float]:
        """Each process's median seconds of several pieces that all do at the same time."""
        for process in processes:
            assert process.stdin
            process.stdin.write("\n" * PIECES)
            process.stdin.flush()
        found = []
        for process in processes:
            assert process.stdout
            found.append([float(process.stdout.readline()) for _ in range(PIECES)])
        return [statistics.median(each) for each in found]


@contextmanager
def pieces_on(count: int) -> Iterator[Pieces]:
    """A context with `Pieces` on the first `count` usable cores; its processes end with it."""
    with ExitStack() as stack:
        processes = []
        for core in sorted(os.sched_getaffinity(0))[:count]:
            process = subprocess.Popen(
                [sys.executable, __file__, str(core)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(stack.enter_context(process))  # leaving closes its input and waits
        yield Pieces(processes)


def main() -> int:
    """Answers every line until the input ends."""
    for _ in sys.stdin:
        print(time_on(int(sys.argv[1])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
