"""Begins worker processes, and ends them with the agent."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from walle.errors import ConfigError
from walle.processes.forkserver import start_fork_server


def forkserver_context() -> Any:
    """A multiprocessing context whose fork server runs and has loaded the workers' modules."""
    start_fork_server()
    return multiprocessing.get_context("forkserver")


def allow_files(needed: int) -> None:
    """Raises this process's limit of open files to `needed` where it is lower.

    Raises:
        ConfigError: the system allows fewer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"so many samplers need {needed} open files, and the limit is {hard}; raise it "
            "(ulimit -Hn), or use a smaller sampler.n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def become_worker(threads: int) -> None:
    """Leaves signals to the agent, ends with the agent, and limits torch to `threads`.

    A program that an environment starts inherits which signals are ignored or blocked, but no
    handler. So the program survives Ctrl-C as this process does, and SIGTERM can still end it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    threading.Thread(target=_die_with_agent, name="walle-lifeline", daemon=True).start()
    torch.set_num_threads(threads)


def _die_with_agent() -> None:
    """Ends this process when the agent's process ends, for whatever reason.

    A waiting worker sees its pipes close; this thread ends a busy worker.
    """
    agent = multiprocessing.parent_process()
    assert agent is not None
    multiprocessing.connection.wait([agent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


class Watch:
    """Interrupts the main thread when a watched process ends."""

    def __init__(self, sentinels: Sequence[int], report: Callable[[], object]) -> None:
        """Watches until one of the processes ends; does nothing outside the main thread.

        Args:
            sentinels: the sentinels of the processes to watch.
            report: raises an error that describes the end of the process.
        """
        self._report = report
        self._busy = self._somebody_died = self._closed = False
        if threading.current_thread() is not threading.main_thread():
            return
        signal.signal(signal.SIGUSR1, self._on_death)
        main = threading.get_ident()

        def watch() -> None:
            multiprocessing.connection.wait(sentinels)
            if not self._closed:
                signal.pthread_kill(main, signal.SIGUSR1)

        threading.Thread(target=watch, name="walle-watch", daemon=True).start()

    def _on_death(self, *_: Any) -> None:
        self._somebody_died = True
        if self._busy and not self._closed:
            self._report()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Lets a death raise in the middle of the body."""
        self._busy = True
        try:
            if self._somebody_died:  # while the main thread was not busy
                self._report()
            yield
        finally:
            self._busy = False

    def close(self) -> None:
        """Ends the watch: from now on processes may end."""
        self._closed = True


def how_it_ended(process: Any) -> str:
    """Describes how a process ended, in a clause that begins with its name."""
    process.join()
    code = process.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    hint = "; was it out of memory?" if code == -signal.SIGKILL else ""
    return f"{process.name} (pid {process.pid}) {how}{hint}"
