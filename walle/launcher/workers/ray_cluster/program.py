"""A worker's process on a node of a Ray cluster, which ends with the actor that started it."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from walle.launcher.allocation import read_siblings
from walle.launcher.workers import worker
from walle.system.process_tree import die_with_parent

_NAME = "\0walle-core-{core}"  # of a socket without a file, which ends with its process


class OwnCores:
    """Cores that no other worker on this host has, while this process lives."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(
        self, count: int, usable: Sequence[int], siblings: Mapping[int, Sequence[int]]
    ) -> list[int]:
        """Takes `count` of the usable cores; shares some with other workers where too few are left.

        `siblings` has all hardware threads of each core's physical core: a worker gets whole
        physical cores as far as possible.
        """
        if count >= len(usable):
            return list(usable)
        ordered = sorted(usable, key=lambda core: (min(siblings.get(core, (core,))), core))
        taken: list[int] = []
        for core in ordered:
            if len(taken) < count and self._is_free(core):
                taken.append(core)
        if missing := count - len(taken):
            logging.warning(f"other workers on this host have the cores: sharing {missing}")
            taken += [core for core in reversed(ordered) if core not in taken][:missing]
        return sorted(taken)

    def _is_free(self, core: int) -> bool:
        """Whether no other process has the core; it is this process's from now on."""
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(_NAME.format(core=core))
        except OSError:
            lock.close()
            return False
        self._held.append(lock)
        return True


class RayHost(worker.WorkerHost):
    """A worker for which Ray has reserved a number of cores.

    Its actor ends the workers that wait, and whoever asks it to end wants no other one.
    """

    def __init__(self, name: str, count: int) -> None:
        self.name, self._count, self._own = name, count, OwnCores()

    def cores(self, usable: list[int]) -> list[int]:
        """See `worker.WorkerHost`."""
        return self._own.take(self._count, usable, read_siblings(usable))


def main(directory: str, name: str, count: str, parent: str) -> int:
    """Runs the jobs of a submission until none is left; returns the exit code.

    `parent` is the process id of the actor.
    """
    die_with_parent(int(parent))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a Ray of the command's own blocks some
    return worker.main(Path(directory), RayHost(name, int(count)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
