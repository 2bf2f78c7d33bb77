"""The warm process: it has imported everything once, and every job is a fork of it.

The launcher starts it as `python -c "from ... import main; main(fd)"` in a session of its own, with
the jobs' thread settings already in its environment. For each job it forks a supervisor, and the
supervisor forks the job:

    launcher -- warm process -- supervisor -- job -- whatever the job starts
         `---------- link ---------'

The supervisor adopts every orphan below it and ends them all with the job. The link tells it what
the launcher wants; when the launcher dies, by whatever signal, the link closes, and the supervisor
ends the job. Should the supervisor die, the kernel kills the job.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import sys
import traceback
from multiprocessing import reduction, spawn
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from hydra_plugins.walle_launcher import _job
from hydra_plugins.walle_launcher._tree import adopt_orphans, die_with_parent, end_descendants

LINGER_S = 1.0


class Preparation(NamedTuple):
    """What the warm process does before the first job.

    Attributes:
        main: how to import the user's main module, as `multiprocessing.spawn` writes it.
        preload: names of modules to import.
        common: pickled `_job.Common`, what all jobs share.
    """

    main: dict[str, Any]
    preload: tuple[str, ...]
    common: bytes


class Prepared(NamedTuple):
    """The warm process's answer: ready, or the traceback of why not."""

    error: str | None


class Ended(NamedTuple):
    """How a job ended.

    Attributes:
        exit_code: of the job's process; None when a signal ended it.
        signal: the number of that signal, or None.
        outcome: pickled `_job.Outcome`; None when the process ended before it had one.
        peak_memory_bytes: largest resident set of the job's main process.
        survivors: processes of the job that could not be killed.
    """

    exit_code: int | None
    signal: int | None
    outcome: bytes | None
    peak_memory_bytes: int
    survivors: list[int]


def main(link_fd: int, lock_fd: int) -> None:
    """Serves the launcher until its link closes; returns in the jobs' processes, as the job.

    Args:
        link_fd: this end of the socket to the launcher.
        lock_fd: the sweep directory's lock. Each supervisor keeps it until its job is gone, so
            that whoever has the lock knows that no job of an earlier launcher is left.
    """
    link = Connection(link_fd)
    adopt_orphans()
    try:
        common = _prepare(link)
    except (EOFError, ConnectionError):
        return  # the launcher is gone
    fork = _serve(link) if common is not None else None
    if common is not None and fork is not None:
        outcome_fd = _supervise(fork.link)
        os.close(lock_fd)
        sys.exit(_job.run(pickle.loads(fork.request), common, outcome_fd))


def _prepare(link: Connection) -> _job.Common | None:
    """Imports what the jobs need, so that a job spends no time on it."""
    wanted: Preparation = pickle.loads(link.recv_bytes())
    try:
        spawn.prepare(wanted.main)
        for module in wanted.preload:
            importlib.import_module(module)
        common: _job.Common = pickle.loads(wanted.common)
        common.install()
    except Exception:  # noqa: BLE001  whatever it is, the launcher shows it to the user
        link.send(Prepared(traceback.format_exc()))
        return None
    gc.collect()
    gc.freeze()  # the forks share these pages as long as no collection touches them
    link.send(Prepared(None))
    return common


class _Fork(NamedTuple):
    """What a new supervisor begins with: its own link, and the job's pickled request."""

    link: Connection
    request: bytes


def _serve(link: Connection) -> _Fork | None:
    """Forks a supervisor for every request; returns in each of them, and None at the end."""
    supervisors: dict[int, int] = {}  # process id -> a file descriptor readable once it ended
    while True:
        readable = wait([link, *supervisors.values()])
        _bury(supervisors, readable)
        if link not in readable:
            continue
        try:
            fork = _Fork(request=link.recv_bytes(), link=Connection(reduction.recv_handle(link)))
        except (EOFError, ConnectionError):
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            link.close()
            for pidfd in supervisors.values():
                os.close(pidfd)
            return fork
        fork.link.close()
        supervisors[pid] = os.pidfd_open(pid)


def _bury(supervisors: dict[int, int], readable: list[Any]) -> None:
    """Forgets the supervisors that ended, and ends what one that was killed left behind."""
    ended = [pid for pid, pidfd in supervisors.items() if pidfd in readable]
    for pid in ended:
        os.waitpid(pid, 0)
        os.close(supervisors.pop(pid))
    if ended:
        end_descendants(LINGER_S, spare=supervisors)


def _supervise(link: Connection) -> int:
    """Starts the job, ends whatever is left of it when it ends, and tells the launcher.

    Returns:
        In the job's process only: the file for its outcome. The supervisor never returns.
    """
    adopt_orphans()
    outcome_fd = os.memfd_create("outcome")
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        link.close()
        os.setsid()
        die_with_parent(supervisor)
        return outcome_fd
    _obey_until_end(pid, link)
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    ended = Ended(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        outcome=_job.read_outcome(outcome_fd),
        peak_memory_bytes=usage.ru_maxrss * 1024,
        survivors=end_descendants(LINGER_S),
    )
    with contextlib.suppress(ConnectionError):  # the launcher may be gone: nobody to tell
        link.send(ended)
    os._exit(0)


def _obey_until_end(pid: int, link: Connection) -> None:
    """Passes the launcher's signals on to the job until it ends; kills it without a launcher."""
    pidfd = os.pidfd_open(pid)
    try:
        while pidfd not in wait([link, pidfd]):
            os.kill(pid, link.recv())
    except (EOFError, ConnectionError):
        os.kill(pid, signal.SIGKILL)
        wait([pidfd])
    os.close(pidfd)
