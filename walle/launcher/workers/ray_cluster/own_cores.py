"""The cores of a worker: Ray counts cores and gives no numbers, so workers of a host share them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence

_NAME = "\0walle-core-{core}"  # of a socket without a file, which ends with its process


class OwnCores:
    """Cores that no other worker on this host has, as long as this process lives."""

    def __init__(self) -> None:
        """Has none yet."""
        self._held: list[socket.socket] = []

    def take(
        self, count: int, usable: Sequence[int], siblings: Mapping[int, Sequence[int]]
    ) -> list[int]:
        """Takes cores; shares cores with other workers where too few are left.

        Args:
            count: how many.
            usable: cores on which this process may run.
            siblings: for each core, all hardware threads of its physical core. A worker gets whole
                physical cores as far as possible.
        """
        if count >= len(usable):
            return list(usable)
        ordered = sorted(usable, key=lambda core: (min(siblings.get(core, (core,))), core))
        found: list[int] = []
        for core in ordered:
            if len(found) < count and self._is_free(core):
                found.append(core)
        if missing := count - len(found):
            logging.warning(f"other workers on this host have the cores: sharing {missing}")
            found += [core for core in reversed(ordered) if core not in found][:missing]
        return sorted(found)

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
