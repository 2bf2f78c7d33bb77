"""What worker processes have in common: how they begin, and how they end with the agent."""

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
    """A context whose server is running and has what workers need loaded."""
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
    """Leaves signals to the agent, dies with it, and keeps to its threads.

    A program that an environment starts inherits which signals are ignored or blocked, and no
    handler. So it survives Ctrl-C as this process does, but its environment can terminate it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    threading.Thread(target=_die_with_agent, name="walle-lifeline", daemon=True).start()
    torch.set_num_threads(threads)


def _die_with_agent() -> None:
    """Ends this process when the agent's ends, by whatever signal.

    A waiting worker sees its pipes close; this covers one that is busy.
    """
    agent = multiprocessing.parent_process()
    assert agent is not None
    multiprocessing.connection.wait([agent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


class Watch:
    """Tells the main thread of a process's death in the middle of what it is busy with."""

    def __init__(self, sentinels: Sequence[int], report: Callable[[], object]) -> None:
        """Watches until one of the processes ends; outside the main thread nobody is told.

        Args:
            sentinels: of the processes.
            report: raises what is to be said of the one that ended.
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
        """From now on processes may end."""
        self._closed = True


def how_it_ended(process: Any) -> str:
    """The end of a process that has ended, in a sentence with its name."""
    process.join()
    code = process.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    hint = "; was it out of memory?" if code == -signal.SIGKILL else ""
    return f"{process.name} (pid {process.pid}) {how}{hint}"
