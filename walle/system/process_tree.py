"""Finds and ends every process that a run or a job has started (Linux).

When a process dies, its children are re-parented. `adopt_orphans` and `mark_processes` let us find
them anyway.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1  # the signal when the thread that started this process ends
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.005
UNKILLABLE_S = 10.0
LINGER_S = 1.0
RUN_MARK, WORKER_MARK = "WALLE_RUN", "WALLE_WORKER"


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent dies; exits if the parent is dead."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies.

    `descendants` then also finds a process that left its session or whose parent has died.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Gives this process a name of up to 15 characters, for `top` and `ps -o comm`."""
    Path("/proc/self/comm").write_text(name[:15])


def prctl(option: int, value: int) -> None:
    """Sets an attribute of this process; see the manual page of prctl."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}, {value}): {os.strerror(errno)}")


def descendants(root: int, spare: Collection[int] = ()) -> list[int]:
    """Process ids of the children of `root`, their children and so on, parents first.

    The processes in `spare` are left out, with all their descendants.
    """
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid in psutil.pids():
        with suppress(psutil.Error):  # it has ended since
            children[psutil.Process(pid).ppid()].append(pid)
    below = [pid for pid in children[root] if pid not in spare]
    for pid in below:
        below.extend(child for child in children[pid] if child not in spare)
    return below


def mark_processes() -> None:
    """Marks all processes that this one will start, by a variable in their environment.

    The mark outlives this process, whose end leaves orphans that nobody adopts. A process that is
    started with a separate environment has no mark.
    """
    os.environ[RUN_MARK] = f"{os.getpid()}-{time.time_ns()}"


def marked_processes() -> list[int]:
    """The other processes with the mark of this one; empty without a mark."""
    mark = os.environ.get(RUN_MARK)
    others = set(psutil.pids()) - {os.getpid()}
    return [pid for pid in others if mark and variable_of(pid, RUN_MARK) == mark]


def variable_of(pid: int, name: str) -> str | None:
    """A variable of the environment that a process was started with.

    None if it had no such variable, has ended or belongs to another user.
    """
    with suppress(psutil.Error, OSError):
        value: str | None = psutil.Process(pid).environ().get(name)
        return value
    return None


def end_descendants(linger_s: float, spare: Collection[int] = ()) -> list[int]:
    """Ends and reaps every descendant of this process; returns what `end_processes` returns.

    The caller must have called `adopt_orphans` before it started the first of these processes. The
    children in `spare` are left alone, with all their descendants.
    """

    def alive() -> list[int]:
        for pid in descendants(os.getpid(), spare):
            with suppress(ChildProcessError):  # not a child of this process, or reaped already
                os.waitpid(pid, os.WNOHANG)
        return descendants(os.getpid(), spare)

    return end_processes(alive, linger_s)


def end_processes(find: Callable[[], Collection[int]], linger_s: float) -> list[int]:
    """Ends processes until `find` returns no more that are alive.

    Each gets SIGTERM first, and SIGKILL if it is still alive `linger_s` later. Python's tracker
    of shared memory uses that time: it ignores SIGTERM, frees the memory that dead processes left
    behind, and then ends by itself. Returns the processes that SIGKILL did not end within ten
    seconds, such as one that waits inside the kernel for a broken disk.
    """
    kill_at = time.monotonic() + linger_s
    signalled: set[int] = set()
    while rest := find():
        if time.monotonic() > kill_at + UNKILLABLE_S:
            return list(rest)
        late = time.monotonic() > kill_at
        for pid in rest:
            if late or pid not in signalled:
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        signalled.update(rest)
        time.sleep(POLL_S)
    return []
