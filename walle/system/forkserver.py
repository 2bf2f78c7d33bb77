"""The process that workers are forked from. Imports little: it runs before torch loads."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing import forkserver, resource_tracker
from typing import Any

from walle.system.inside_fork_server import AGENT
from walle.system.machine import THREAD_VARIABLES
from walle.system.private_files import TemporaryDirectory, cache_directory, environment
from walle.system.process_tree import (
    LINGER_S,
    WORKER_MARK,
    descendants,
    end_descendants,
    end_processes,
    variable_of,
)
from walle.system.signals import FOR_AGENT, blocked_signals

_DYING_S = 0.5  # the kernel closes a process's pipes a moment before its end shows
_LONGEST_PLACE = 80  # a socket's name has 107 bytes at most
_kept: list[TemporaryDirectory] = []  # as long as this process
_KEEPER = "walle.system.inside_fork_server"
_WORKERS = (
    "walle.sampling.sampler_process",
    "walle.envs.gymnasium_lanes",
    "walle.envs.mujoco.registry",
)


def start_fork_server(*, for_workers: bool = True) -> None:
    """Starts a server that has torch and MuJoCo loaded: a sampler forks from it in milliseconds.

    Started early, it loads them while this process does its own imports. A second call does
    nothing.

    The server and its samplers get their thread limits before they import anything, and never see
    the signals that a terminal, a container or Slurm sends to the whole group: the agent handles
    them. (Python's own server ignores SIGINT too, but only after it has imported torch.)

    Args:
        for_workers: load what workers need; otherwise the server only ends the processes that the
            agent leaves behind.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_KEEPER, *(_WORKERS if for_workers else ())])
    with blocked_signals(*FOR_AGENT):
        resource_tracker.ensure_running()  # started first, as it unblocks SIGINT and SIGTERM
    variables = dict.fromkeys(THREAD_VARIABLES, "1") | {AGENT: str(os.getpid())}
    _keep_sockets_private()
    with environment(variables), blocked_signals(*FOR_AGENT):
        forkserver.ensure_running()


def _keep_sockets_private() -> None:
    """Puts the server's socket into a directory that the next run removes if this one is killed.

    Multiprocessing would make a directory pymp-* in TMPDIR, which a killed process leaves there.
    """
    settings: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if "tempdir" in settings:
        return
    directory = TemporaryDirectory(cache_directory(), ".sockets")
    if len(str(directory.path)) <= _LONGEST_PLACE:
        settings["tempdir"] = str(directory.path)
        _kept.append(directory)


def fork_server() -> int:
    """The process id of the fork server that runs."""
    return int(_server()._forkserver_pid)


def fork_server_died(server: int) -> bool:
    """Whether a fork server of this process has died, even if another one was started since.

    Args:
        server: its process id, as `fork_server` gave it.
    """
    deadline = time.monotonic() + _DYING_S
    while server == _server()._forkserver_pid:
        if os.waitid(os.P_PID, server, os.WEXITED | os.WNOHANG | os.WNOWAIT):  # does not reap it
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def end_orphans() -> None:
    """Ends the programs that workers left behind when they ended or died."""
    server = _server()._forkserver_pid
    if server is not None:
        end_processes(lambda: _orphans(server), LINGER_S)


def _orphans(server: int) -> list[int]:
    """What the server has adopted, but for the programs that left a worker which is alive."""
    workers = {process.pid or 0 for process in multiprocessing.active_children()}
    marks = {str(pid) for pid in workers}
    found = descendants(server, spare=workers)
    return [pid for pid in found if variable_of(pid, WORKER_MARK) not in marks]


def end_all_processes() -> None:
    """Ends every process that this one has started, at its own end."""
    server = _server()
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)  # this process adopts its children
        server._forkserver_pid = None
    tracker: Any = resource_tracker._resource_tracker
    end_descendants(LINGER_S, spare=[tracker._pid])  # the tracker ends with this process


def leave_fork_server() -> None:
    """In a worker: lets the server end with the agent, even if this process still runs."""
    server = _server()
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None


def _server() -> Any:
    """Python's own handle: it alone knows the server's process id and the pipe that ends it."""
    return forkserver._forkserver
