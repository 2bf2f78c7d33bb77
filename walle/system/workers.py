"""Begins worker processes, and ends them with the agent."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from typing import Any

import torch

from walle.errors import ConfigError
from walle.system.forkserver import leave_fork_server, start_fork_server
from walle.system.process_tree import (
    LINGER_S,
    WORKER_MARK,
    end_descendants,
    end_processes,
    marked_processes,
)
from walle.system.signals import DEATH, FOR_AGENT


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

    The worker leads a session of its own: what a terminal or a scheduler sends to the agent's group
    reaches neither the worker nor the programs that its environments start. What is sent to the
    worker itself meets a handler that does nothing. Such a program inherits which signals are
    ignored or blocked, but no handler, so every signal still works on it. It inherits no open
    files: a pipe that it held open would not read as closed when the worker ends.
    """
    gc.freeze()  # the imports' objects: no collection visits, and so copies, their memory
    gc.enable()
    os.setsid()
    for number in FOR_AGENT:
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)  # native code need not expect EINTR
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_AGENT)
    leave_fork_server()
    os.environ[WORKER_MARK] = str(os.getpid())
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # that of the listing itself
            os.set_inheritable(descriptor, descriptor <= 2)
    server = os.getppid()
    threading.Thread(
        target=_die_with_agent, args=[server], name="walle-lifeline", daemon=True
    ).start()
    Finalize(None, _end_without, args=[server], exitpriority=0)
    torch.set_num_threads(threads)


def _die_with_agent(server: int) -> None:
    """Ends this process and its programs when the agent's process ends, for whatever reason.

    A waiting worker sees its pipes close; this thread ends a busy worker.
    """
    _agent_ends_within(None)
    end_descendants(LINGER_S)
    _end_without(server)
    os.kill(os.getpid(), signal.SIGKILL)


def _end_without(server: int) -> None:
    """Ends what this worker leaves behind if the fork server, which would do so, was killed."""
    if os.getppid() == server:
        return
    end_descendants(LINGER_S)
    if _agent_ends_within(LINGER_S):
        end_processes(marked_processes, LINGER_S)


def _agent_ends_within(seconds: float | None) -> bool:
    agent = multiprocessing.parent_process()
    assert agent is not None
    return bool(multiprocessing.connection.wait([agent.sentinel], seconds))


class Watch:
    """Interrupts the main thread when a watched process ends."""

    def __init__(self, sentinels: Iterable[int], report: Callable[[], object]) -> None:
        """Watches the processes; outside the main thread only `busy` asks whether one has ended.

        Args:
            sentinels: the sentinels of the processes to watch.
            report: called in the main thread when processes have ended; raises an error that
                describes it, or returns if the run can continue. Then the processes that are left
                are still watched.
        """
        self._report = report
        self._watched = frozenset(sentinels)
        self._busy = self._reporting = self._closed = False
        self._changed = os.eventfd(0)
        self._thread: threading.Thread | None = None
        if threading.current_thread() is not threading.main_thread():
            return
        signal.signal(DEATH, lambda *_: self._ask())
        self._thread = threading.Thread(
            target=self._interrupt, args=[threading.get_ident()], name="walle-watch", daemon=True
        )
        self._thread.start()

    def watch(self, sentinels: Iterable[int]) -> None:
        """Watches these processes instead; call it before the former sentinels are closed."""
        self._watched = frozenset(sentinels)
        os.eventfd_write(self._changed, 1)

    def _interrupt(self, main: int) -> None:
        """Sends a signal when a process ends, and waits until the main thread has handled it."""
        while not self._closed:
            watched = self._watched
            ready = multiprocessing.connection.wait([self._changed, *watched])
            if self._changed not in ready and watched is self._watched and not self._closed:
                signal.pthread_kill(main, DEATH)
                multiprocessing.connection.wait([self._changed])
            if multiprocessing.connection.wait([self._changed], 0):
                os.eventfd_read(self._changed)

    def _ask(self) -> None:
        """Reports the processes that have ended, if there are any: anybody may send a signal."""
        if not self._busy or self._reporting or self._closed:
            return
        self._reporting = True
        try:
            while ended := multiprocessing.connection.wait(self._watched, 0):
                self.watch(self._watched.difference(ended))
                self._report()
        finally:
            self._reporting = False

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Lets the end of a process raise in the middle of the body."""
        try:
            self._busy = True
            self._ask()  # a process may have ended while the main thread was not busy
            yield
        finally:
            self._busy = False

    def close(self) -> None:
        """Ends the watch: from now on processes may end."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._changed, 1)
        if self._thread is not None:
            self._thread.join()
        os.close(self._changed)
