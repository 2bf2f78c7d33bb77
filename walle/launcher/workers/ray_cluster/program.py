"""A worker's process on a node of a Ray cluster, which ends with the actor that started it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from walle.launcher.resources import read_siblings
from walle.launcher.workers import worker
from walle.launcher.workers.ray_cluster.own_cores import OwnCores
from walle.system.process_tree import die_with_parent


class RayPlace:
    """A worker for which Ray has reserved a number of cores."""

    def __init__(self, name: str, count: int) -> None:
        """Takes no cores yet.

        Args:
            name: of the worker among those of its submission.
            count: of its cores.
        """
        self.name, self._count, self._own = name, count, OwnCores()

    def cores(self, usable: list[int]) -> list[int]:
        """See `worker.Place`."""
        return self._own.take(self._count, usable, read_siblings(usable))

    def jobs_are_over(self, arrays: Sequence[str]) -> None:
        """The actor ends the workers that wait."""

    def start_again(self) -> None:
        """Whoever asked the worker to end wants no other one."""


def main(directory: str, name: str, count: str, parent: str) -> int:
    """Runs jobs until none is left; returns the exit code.

    Args:
        directory: of the submission.
        name: of the worker.
        count: of its cores.
        parent: the process id of the actor.
    """
    die_with_parent(int(parent))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a Ray of the command's own blocks some
    return worker.main(Path(directory), RayPlace(name, int(count)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
