"""The process that workers are forked from; it ends everything that a run leaves behind.

The fork server adopts the orphans of workers that die. When the agent ends, by whatever signal, the
server ends too, and ends all other processes of the run. This module imports little: the fork
server imports it before torch.
"""

from __future__ import annotations

import atexit
import gc
import logging
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

from walle.system import process_tree
from walle.system.files import TemporaryDirectory, cache_directory, environment
from walle.system.machine import THREAD_VARIABLES
from walle.system.process_tree import LINGER_S, RUN_MARK, WORKER_MARK
from walle.system.signals import AGENT_ENDED, FOR_AGENT, blocked_signals

AGENT = "WALLE_AGENT"  # the agent's process id, in the environment of the fork server alone
_DYING_S = 0.5  # the kernel closes a process's pipes a moment before its end shows
_LONGEST_PATH = 80  # a socket's name has 107 bytes at most
# Python's own handle: it alone knows the server's process id and the pipe that ends it.
_server: Any = forkserver._forkserver
_util: Any = util
_tracker: Any = resource_tracker._resource_tracker
_kept: list[TemporaryDirectory] = []  # as long as this process lasts
_LIMITS = dict.fromkeys(THREAD_VARIABLES, "1")
_WORKERS = (
    "walle.sampling.sampler_process",
    "walle.envs.gymnasium_lanes",
    "walle.envs.mujoco.registry",
)


def keep_processes() -> None:
    """At exit, ends all processes that this process started; a second call does nothing."""
    if os.environ.get(RUN_MARK, "").startswith(f"{os.getpid()}-"):
        return
    process_tree.adopt_orphans()
    process_tree.mark_processes()
    atexit.register(end_all_processes)


def has_thread_limits() -> bool:
    """Whether the environment of this process has the thread limits of its workers."""
    return all(os.environ.get(name) == limit for name, limit in _LIMITS.items())


def start_fork_server(*, for_workers: bool = True, loaded: bool = False) -> Any:
    """Starts a server that has torch and MuJoCo loaded: a sampler forks from it in milliseconds.

    Started early, it loads them while this process does its own imports. A second call only
    returns the context for processes of the server. `loaded` says that this process has loaded
    torch and no module of the user's; the server is then a fork of it, unless its thread limits
    differ or it has more than one thread.

    The server and its samplers get their thread limits before they import anything, and never see
    the signals that a terminal, a container or Slurm sends to the whole group: the agent handles
    them. (Python's own server ignores SIGINT too, but only after it has imported torch.)
    Without `for_workers` the server only ends the processes that the agent leaves behind.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *(_WORKERS if for_workers else ())])
    with blocked_signals(*FOR_AGENT):
        resource_tracker.ensure_running()  # started first, as it unblocks SIGINT and SIGTERM
    # Multiprocessing would make a directory pymp-* in TMPDIR for the server's socket, which a
    # killed process would leave there. The next run removes our directory.
    settings: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    with suppress(OSError):  # without a private directory, or room in it
        if "tempdir" not in settings:
            directory = TemporaryDirectory(cache_directory(), ".sockets")
            if len(str(directory.path)) <= _LONGEST_PATH:
                settings["tempdir"] = str(directory.path)
                _kept.append(directory)
    forks = loaded and has_thread_limits()
    if forks:
        for name in _WORKERS if for_workers else ():
            import_module(name)
        forks = len(os.listdir("/proc/self/task")) == 1  # threads
    with environment(_LIMITS | {AGENT: str(os.getpid())}), blocked_signals(*FOR_AGENT):
        spawn = _util.spawnv_passfds
        try:
            if forks:
                _util.spawnv_passfds = _fork
            forkserver.ensure_running()
        finally:
            _util.spawnv_passfds = spawn
    return context


def _fork(_: Any, arguments: Sequence[Any], pass_fds: Collection[int]) -> int:
    """Runs Python's command for a fork server in a fork of this process; returns its process id.

    The server gets what it would have as a new process: of this one's open files only `pass_fds`,
    and none of its handlers of log messages. In the server, this function never returns.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    agent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    try:
        for name in (None, *logging.root.manager.loggerDict):
            logging.getLogger(name).handlers.clear()
        logging.root.setLevel(logging.WARNING)
        for descriptor in set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2, *pass_fds}:
            with suppress(OSError):  # that of the listing itself
                os.close(descriptor)
        for state in (_server, _tracker):  # both are this process's, and the server's lock is held
            state.__init__()
        del os.environ[AGENT]
        _become_fork_server(agent)
        with suppress(SystemExit):  # the agent has ended
            exec(arguments[-1], {})
        _end_server(os.getpid())
    except BaseException:  # noqa: BLE001  shown as by a new process
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def fork_server() -> int:
    """The process id of the running fork server."""
    return int(_server._forkserver_pid)


def fork_server_died(server: int) -> bool:
    """Whether the fork server with this process id has died, even if another one was started."""
    deadline = time.monotonic() + _DYING_S
    while server == _server._forkserver_pid:
        if os.waitid(os.P_PID, server, os.WEXITED | os.WNOHANG | os.WNOWAIT):  # does not reap it
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def end_orphans() -> None:
    """Ends the programs that workers left behind when they ended or died."""
    server = _server._forkserver_pid
    if server is None:
        return

    def orphans() -> list[int]:  # without the programs of workers that are alive
        workers = {process.pid or 0 for process in multiprocessing.active_children()}
        marks = set(map(str, workers))
        adopted = process_tree.descendants(server, spare=workers)
        return [pid for pid in adopted if process_tree.variable_of(pid, WORKER_MARK) not in marks]

    process_tree.end_processes(orphans, LINGER_S)


def end_all_processes() -> None:
    """When this process exits, ends every process that it has started."""
    server = _server._forkserver_pid
    if server is not None:
        # A program that a module starts while it is imported, as glfw does, shows an error on the
        # terminal if the server, which talks to it, ends first.
        os.kill(server, signal.SIGSTOP)
        workers = {process.pid or 0 for process in multiprocessing.active_children()}
        for pid in process_tree.descendants(server, spare=workers):
            if process_tree.variable_of(pid, WORKER_MARK) is None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        os.kill(server, signal.SIGKILL)  # this process adopts its children
        _server._forkserver_pid = None
    process_tree.end_descendants(LINGER_S, spare=[_tracker._pid])  # it ends with this process


def leave_fork_server() -> None:
    """In a worker: lets the server end with the agent, even if this process still runs."""
    os.close(_server._forkserver_alive_fd)
    _server._forkserver_alive_fd = None


@contextmanager
def without_collector() -> Iterator[None]:
    """Disables the garbage collector while the body imports modules.

    Imports create some hundred thousand objects that live as long as the process. Visiting them
    repeatedly takes a tenth of torch's import time. Later collections skip them too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        gc.freeze()


def _become_fork_server(agent: int) -> None:
    gc.disable()  # `become_worker` enables it
    process_tree.name_process("walle-server")
    process_tree.adopt_orphans()
    server = os.getpid()
    atexit.register(_end_server, server)
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")  # an orphan

    def end_without_agent(*_: object) -> None:
        if os.getppid() != agent:  # the process has ended, and not merely one of its threads
            _end_server(server)

    # The agent's end closes a pipe too, but the server looks at it only after its imports.
    signal.signal(AGENT_ENDED, end_without_agent)
    process_tree.prctl(process_tree.PR_SET_PDEATHSIG, AGENT_ENDED)
    end_without_agent()


def _end_server(server: int) -> None:
    if os.getpid() != server:  # a fork
        return
    process_tree.end_descendants(LINGER_S)
    process_tree.end_processes(process_tree.marked_processes, LINGER_S)
    os._exit(0)  # Python would take its time to unload torch


# Multiprocessing offers no other way to run code in its fork server than to import a module there.
if AGENT in os.environ:
    _become_fork_server(int(os.environ.pop(AGENT)))
