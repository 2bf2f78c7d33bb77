"""Trees of processes: ends everything that a run or a job started (Linux).

A process tree has holes: when a process dies, its children get another parent. `adopt_orphans` and
`mark_processes` are two ways to find them all the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.005
UNKILLABLE_S = 10.0
LINGER_S = 1.0
RUN_MARK, WORKER_MARK = "WALLE_RUN", "WALLE_WORKER"


def die_with_parent(parent: int) -> None:
    """Asks the kernel to send SIGKILL to this process when its parent dies, however it dies.

    Args:
        parent: the parent's process id before the fork. If the parent has already died, this
            process ends here.
    """
    signal_when_parent_ends(signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def signal_when_parent_ends(number: int) -> None:
    """Asks the kernel for a signal when the thread that started this process ends."""
    _prctl(PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies.

    So `descendants` also finds a process that left its session or whose parent has died.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants(root: int, spare: Collection[int] = ()) -> list[int]:
    """Process ids of the children of `root`, their children and so on, parents first.

    Args:
        root: a process id.
        spare: processes to leave out, with all their descendants.
    """
    children = _children_of_all()
    found = [pid for pid in children[root] if pid not in spare]
    for pid in found:
        found.extend(child for child in children[pid] if child not in spare)
    return found


def mark_processes() -> None:
    """Marks all processes that this one will start, by a variable in their environment.

    The mark outlives this process, as its own end makes orphans that nobody adopts. A process that
    is given an environment of its own has no mark.
    """
    os.environ[RUN_MARK] = f"{os.getpid()}-{time.time_ns()}"


def marked_processes() -> list[int]:
    """The other processes with the mark of this one; none without a mark."""
    mark = os.environ.get(RUN_MARK)
    found = [int(entry) for entry in os.listdir("/proc") if mark and entry.isdigit()]
    return [pid for pid in found if pid != os.getpid() and variable_of(pid, RUN_MARK) == mark]


def variable_of(pid: int, name: str) -> str | None:
    """A variable of the environment that a process was started with.

    None if it had no such variable, has ended or belongs to another user.
    """
    try:
        environ = Path("/proc", str(pid), "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    variables = (entry.partition(b"=") for entry in environ.split(b"\0"))
    return next((value.decode() for key, _, value in variables if key == name.encode()), None)


def end_descendants(linger_s: float, spare: Collection[int] = ()) -> list[int]:
    """Ends and reaps every descendant of this process.

    The caller must have called `adopt_orphans` before it started the first of these processes.

    Args:
        linger_s: seconds between SIGTERM and SIGKILL.
        spare: children to leave alone, with all their descendants.

    Returns:
        The processes that did not end; see `end_processes`.
    """
    return end_processes(lambda: _alive_below(os.getpid(), spare), linger_s)


def end_processes(find: Callable[[], Collection[int]], linger_s: float) -> list[int]:
    """Ends processes until none is found.

    Each gets SIGTERM first, and SIGKILL if it is still alive `linger_s` later. Python's tracker
    of shared memory uses that time: it ignores SIGTERM, frees the memory that dead processes left
    behind, and then ends by itself.

    Args:
        find: finds the processes that are alive.
        linger_s: seconds between SIGTERM and SIGKILL.

    Returns:
        The processes that SIGKILL did not end within ten seconds, such as one that waits inside
        the kernel for a broken disk; empty in all other cases.
    """
    kill_at = time.monotonic() + linger_s
    asked: set[int] = set()
    while rest := find():
        if time.monotonic() > kill_at + UNKILLABLE_S:
            return list(rest)
        late = time.monotonic() > kill_at
        for pid in rest:
            if late or pid not in asked:
                _kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        asked.update(rest)
        time.sleep(POLL_S)
    return []


def _alive_below(root: int, spare: Collection[int]) -> list[int]:
    for pid in _children_of_all()[root]:
        if pid not in spare:
            _reap(pid)
    return descendants(root, spare)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # another thread was quicker


def _kill(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return  # it has ended by itself since it was found


def _children_of_all() -> defaultdict[int, list[int]]:
    """The children of each process of this machine, from one pass over /proc."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (parent := _parent_of(entry)):
            children[parent].append(int(entry))
    return children


def _parent_of(pid: str) -> int | None:
    try:
        stat = Path("/proc", pid, "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None  # it ended while /proc was being read
    # The command's name is in parentheses and may contain any character.
    return int(stat.rpartition(")")[2].split()[1])


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}, {value}): {os.strerror(errno)}")
