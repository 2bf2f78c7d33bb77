"""Locks on files, and the lock that keeps a second run out of a run's directory.

The kernel releases a lock when the last process that holds it ends, however it ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from walle.errors import ConfigError, WalleError

RUN_LOCK = ".run.lock"
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_WAIT_S, _POLL_S = 0.2, 0.02


@contextmanager
def lock_file(path: Path) -> Iterator[int]:
    """Opens the file, which is made if it is missing, and closes it after the body."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, kind: int) -> bool:
    """Locks an open file if nobody else holds it; returns whether it did.

    Args:
        descriptor: the file.
        kind: `fcntl.LOCK_EX`, or `fcntl.LOCK_SH` to share the lock.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Waits until nobody else holds the file's lock, and holds it in the body."""
    with lock_file(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


class DirectoryLost(WalleError):  # noqa: N818 - it names the fault
    """The directory of a run was deleted or moved while the run wrote to it."""


class RunDirectory:
    """A directory that this run has locked."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use `run_directory`; `descriptor` is the open directory."""
        self.path = path
        self._descriptor = descriptor

    def check(self) -> None:
        """Checks that the path still leads to the directory that was locked.

        Raises:
            DirectoryLost: it does not.
        """
        try:
            if os.path.samestat(os.stat(self.path), os.fstat(self._descriptor)):
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
    """Makes the directory, and keeps every other run out of it in the body.

    Raises:
        ConfigError: another run uses the directory.
    """
    path.mkdir(parents=True, exist_ok=True)
    with lock_file(path / RUN_LOCK) as file:
        if not _locked(file):
            raise ConfigError(_refusal(path, file))
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
        with lock_file(path / RUN_LOCK) as file:
            if not _locked(file):
                raise ConfigError(_refusal(path, file))
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):  # the run itself says what to do
            raise


def _locked(file: int) -> bool:
    """Locks the file; waits a moment, as another run may only look whether it is locked."""
    deadline = time.monotonic() + _WAIT_S
    try:
        while not try_lock(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        print(
            f"walle: {os.strerror(error.errno)}: this file system cannot lock files, so nothing "
            "keeps a second run out of the same directory",
            file=sys.stderr,
        )
    return True


def _refusal(path: Path, file: int) -> str:
    process, _, host = os.pread(file, 1000, 0).decode(errors="replace").strip().partition(" ")
    who = f" (process {process} on {host})" if host else ""
    return (
        f"another run{who} uses {path}: wait for its end or end it, or give this run another "
        "directory with hydra.run.dir=..."
    )
