"""Locks on files, and the lock that keeps a second run out of a run's directory.

The kernel releases a lock when the last process that holds it ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from walle.errors import ConfigError, WalleError

RUN_LOCK = ".run.lock"
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_WAIT_S, _POLL_S = 0.2, 0.02


@contextmanager
def locked_file(
    path: Path,
    wait_s: float = math.inf,  # seconds to wait until nobody else holds the lock
    *,
    shared: bool = False,  # whether others may share the lock
    # makes, from the file's descriptor, the error that is raised after that time
    refusal: Callable[[int], Exception] = lambda _: BlockingIOError(),
) -> Iterator[int]:
    """Holds the lock of a file in the body; makes the file if it is missing.

    Yields the file's descriptor. A process that inherits it keeps the lock until it ends.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + wait_s
        while not try_lock(descriptor, shared=shared):
            if time.monotonic() > deadline:
                raise refusal(descriptor)
            time.sleep(_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Locks an open file if nobody else holds the lock; returns whether it did.

    If the file system cannot lock files, prints a warning and returns True.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        _warn_without_locks(os.strerror(error.errno))
    return True


def is_locked(path: Path) -> bool:
    """Whether a process on any machine that shares the file holds its lock exclusively."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return not try_lock(file.fileno(), shared=True)
    return False


@cache  # once
def _warn_without_locks(reason: str) -> None:
    print(
        f"walle: {reason}: this file system cannot lock files, so nothing keeps a second run out "
        "of the same directory",
        file=sys.stderr,
    )


class DirectoryLost(WalleError):  # noqa: N818 - it names the fault
    """The directory of a run was deleted or moved while the run wrote to it."""


class RunDirectory(NamedTuple):
    """A directory that this run has locked."""

    path: Path
    descriptor: int  # of the open directory

    def check(self) -> None:
        """Raises DirectoryLost if the path no longer leads to the directory that was locked."""
        try:
            if os.path.samestat(os.stat(self.path), os.fstat(self.descriptor)):
                return
        except OSError as error:
            if error.errno not in _GONE:
                raise
        raise DirectoryLost(
            f"the run's directory {self.path} was deleted or moved while the run wrote to it, so "
            "its results are lost: leave the directory alone until its run has ended"
        )


@contextmanager
def run_directory(path: Path) -> Iterator[RunDirectory]:
    """Makes the directory and locks it for the body; ConfigError if another run uses it."""
    path.mkdir(parents=True, exist_ok=True)
    with _run_lock(path) as file:
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield RunDirectory(path, descriptor)
        finally:
            os.close(descriptor)


def refuse_used(path: Path) -> None:
    """Raises ConfigError if a run uses the directory; writes nothing."""
    if not (path / RUN_LOCK).exists():
        return
    try:
        with _run_lock(path):
            return
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):  # the run itself reports what to do
            raise


def _run_lock(path: Path) -> AbstractContextManager[int]:
    """Locks a run's directory; waits a moment, as another run may only check the lock."""

    def refusal(file: int) -> ConfigError:
        process, _, host = os.pread(file, 1000, 0).decode(errors="replace").strip().partition(" ")
        who = f" (process {process} on {host})" if host else ""
        return ConfigError(
            f"another run{who} uses {path}: wait for its end or end it, or give this run another "
            "directory with hydra.run.dir=..."
        )

    return locked_file(path / RUN_LOCK, _WAIT_S, refusal=refusal)
