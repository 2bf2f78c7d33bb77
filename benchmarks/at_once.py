"""How much slower independent work is on several cores at once than on each core alone.

    python at_once.py CORE

times a piece of work on the core for every line of input. On cores of one's own the answer of
`slowdown_on` is 1. Where it is above 1, for example because other programs take the cores or
the cores share a clock, no program can be as many times as fast as it has cores.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

if not __package__:  # run by its path: make the folder above importable instead of this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from walle.launcher.runner import time_on
from walle.system.machine import usable_cores

PIECES = 5


def _slowdown(processes: list[subprocess.Popen[str]]) -> list[float]:
    """Seconds of a piece on all cores at once over the same core's alone, of each core."""
    alone = [_medians([process])[0] for process in processes]
    return [together / single for together, single in zip(_medians(processes), alone, strict=True)]


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
def slowdown_on(count: int) -> Iterator[Callable[[], list[float]]]:
    """A context with a function that measures the first `count` usable cores."""
    with ExitStack() as stack:
        processes = []
        for core in usable_cores()[:count]:
            process = subprocess.Popen(
                [sys.executable, __file__, str(core)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(stack.enter_context(process))  # leaving closes its input and waits
        yield partial(_slowdown, processes)


def main() -> int:
    """Answers every line until the input ends."""
    for _ in sys.stdin:
        print(time_on(int(sys.argv[1])), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
