"""Worker processes: starts them, ends them, and describes how they ended."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from typing import Any

import torch

from walle.errors import ConfigError
from walle.system import forkserver, process_tree
from walle.system.process_tree import LINGER_S
from walle.system.signals import FOR_AGENT

_STARTS = 3  # attempts to start a worker, each with a new fork server
_UNKNOWN = 255  # what multiprocessing reports without its fork server; a process may exit with 255
_REASONS = dict.fromkeys(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL),
    "; native code of the environment or of a library failed",
) | {signal.SIGKILL: "; was it out of memory?"}


class Worker:
    """A process forked from the fork server.

    The fork server reports how its children end. If it is killed, they keep running, but their
    `multiprocessing.Process` looks dead. `sentinel` shows the end of the process itself.
    """

    def __init__(self, name: str, target: Callable[..., None], args: Sequence[Any]) -> None:
        for left in reversed(range(_STARTS)):
            context = forkserver.start_fork_server()
            self._process = context.Process(target=target, args=args, name=name, daemon=True)
            self._server = forkserver.fork_server()
            try:
                self._process.start()
                break
            except (EOFError, OSError):  # another server is started if this one died meanwhile
                if not left or not forkserver.fork_server_died(self._server):
                    raise
        self._server = forkserver.fork_server()
        self.name, self.pid = name, int(self._process.pid)
        try:
            self.sentinel = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended already: use a pipe's end that reads as closed
            self.sentinel, other = os.pipe()
            os.close(other)

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether the process ends within that time."""
        return bool(wait([self.sentinel], max(0.0, within_s)))

    def kill(self) -> None:
        """Ends the process with SIGKILL and waits for its end."""
        with suppress(OSError):
            signal.pidfd_send_signal(self.sentinel, signal.SIGKILL)
        wait([self.sentinel])

    def how_it_ended(self) -> str:
        """Describes how the process ended and the likely reason, starting with its name."""
        self._process.join()
        code = self._process.exitcode
        who = f"{self.name} (pid {self.pid})"
        if code == _UNKNOWN and forkserver.fork_server_died(self._server):
            return f"{who} ended, and the fork server, which could say how, had died"
        if code >= 0:  # nobody asks after an orderly end, and an exception is reported
            reason = "the environment or a library called os._exit or exit in C"
            return f"{who} exited with {code}; {reason}"
        try:
            name = signal.Signals(-code).name
        except ValueError:  # real-time signals have no names
            name = f"signal {-code}"
        return f"{who} was killed by {name}{_REASONS.get(-code, '')}"

    def close(self) -> None:
        """Frees the handles of a process that has ended."""
        self._process.join()
        self._process.close()
        os.close(self.sentinel)


def end_all(workers: Sequence[Worker], grace_s: float) -> None:
    """Waits until all workers have ended; after `grace_s` seconds in total kills the rest."""
    deadline = time.monotonic() + grace_s
    for worker in workers:
        if not worker.ended(deadline - time.monotonic()):
            worker.kill()
        worker.close()


def allow_files(needed: int) -> None:
    """Raises this process's limit of open files; ConfigError if the system allows fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"the samplers need {needed} open files, and the limit is {hard}; raise it "
            "(ulimit -Hn), or use a smaller sampler.n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def become_worker(threads: int) -> None:
    """Leaves signals to the agent, ends with the agent, and limits torch to `threads`.

    The worker has its own session: what a terminal or a scheduler sends to the agent's group
    reaches neither the worker nor the programs that its environments start. A signal to the worker
    itself runs a handler that does nothing. The programs inherit which signals are ignored or
    blocked, but no handler, so every signal still works on them. They inherit no open files: a pipe
    that they held open would not read as closed when the worker ends.
    """
    gc.freeze()  # the imports' objects: no collection visits, and so copies, their memory
    gc.enable()
    os.setsid()
    for number in FOR_AGENT:
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)  # native code need not expect EINTR
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_AGENT)
    forkserver.leave_fork_server()
    os.environ[process_tree.WORKER_MARK] = str(os.getpid())
    process_tree.name_process(multiprocessing.current_process().name)
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
    """Ends this process and its programs when the agent ends: a busy worker sees no closed pipe."""
    _agent_ends_within(None)
    process_tree.end_descendants(LINGER_S)
    _end_without(server)
    os.kill(os.getpid(), signal.SIGKILL)


def _end_without(server: int) -> None:
    """Ends what this worker leaves behind if the fork server, which would do so, was killed."""
    # A server that was killed just before the agent can take longer to end than the agent.
    deadline = time.monotonic() + LINGER_S / 2
    while os.getppid() == server:
        if time.monotonic() > deadline or not _agent_ends_within(process_tree.POLL_S):
            return
        time.sleep(process_tree.POLL_S)
    process_tree.end_descendants(LINGER_S)
    if _agent_ends_within(LINGER_S):
        process_tree.end_processes(process_tree.marked_processes, LINGER_S)


def _agent_ends_within(seconds: float | None) -> bool:
    agent = multiprocessing.parent_process()
    assert agent is not None
    return bool(wait([agent.sentinel], seconds))
