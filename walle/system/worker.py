"""A worker process, watched by a handle that works even when the fork server has died."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from walle.system.forkserver import fork_server, fork_server_died
from walle.system.workers import forkserver_context

_STARTS = 3  # as often a worker is tried to start, each time with a new fork server
_UNKNOWN = 255  # what multiprocessing says without its fork server; a process may say so too
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class Worker:
    """A process forked from the fork server.

    The fork server reports how its children end. If it is killed, they run on, but their
    `multiprocessing.Process` looks dead. A pidfd belongs to the process itself.
    """

    def __init__(self, name: str, target: Callable[..., None], args: Sequence[Any]) -> None:
        """Starts the process; `target` and `args` are pickled."""
        self._process = _started({"target": target, "args": args, "name": name, "daemon": True})
        self._server = fork_server()
        self.name, self.pid = name, int(self._process.pid)
        try:
            self.sentinel = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended already: an end of a pipe that reads as closed
            self.sentinel, other = os.pipe()
            os.close(other)

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether the process ends within that time."""
        return bool(wait([self.sentinel], max(0.0, within_s)))

    def kill(self) -> None:
        """Ends the process with SIGKILL and waits for its end."""
        with suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(self.sentinel, signal.SIGKILL)
        wait([self.sentinel])

    def how_it_ended(self) -> str:
        """Describes how the process ended, in a clause that begins with its name."""
        self._process.join()
        code = self._process.exitcode
        who = f"{self.name} (pid {self.pid})"
        if code == _UNKNOWN and fork_server_died(self._server):
            return f"{who} ended, and the fork server, which could say how, had died"
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with {code}"
        return f"{who} {how}{_hint(code)}"

    def close(self) -> None:
        """Frees the handles of a process that has ended."""
        self._process.join()
        self._process.close()
        os.close(self.sentinel)


def _started(process: Mapping[str, Any]) -> Any:
    """A started process; another fork server is started if this one dies meanwhile."""
    for left in reversed(range(_STARTS)):
        started: Any = forkserver_context().Process(**process)
        server = fork_server()
        try:
            started.start()
            break
        except (EOFError, OSError):
            if not left or not fork_server_died(server):
                raise
    return started


def _signal_name(number: int) -> str:
    """The name of a signal; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _hint(code: int) -> str:
    """The likely reason of an exit code, or of a signal's negative number."""
    if code == -signal.SIGKILL:
        return "; was it out of memory?"
    if -code in _FAULTS:
        return "; native code of the environment or of a library failed"
    if code >= 0:  # a worker that ends in order is not asked, and an exception is reported
        return "; the environment or a library called os._exit or exit in C"
    return ""


def end_all(workers: Sequence[Worker], grace_s: float) -> None:
    """Waits until all workers have ended; after `grace_s` seconds in all kills the rest."""
    deadline = time.monotonic() + grace_s
    for worker in workers:
        if not worker.ended(deadline - time.monotonic()):
            worker.kill()
        worker.close()
