"""Directories that no other user can change, and temporary ones that leave nothing behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from unittest.mock import patch

from walle.system.locks import locked_file, try_lock


def cache_directory() -> Path:
    """`walle` in the user's cache directory, or a temporary directory if that is not private.

    Every call checks the owner again: whoever can write there chooses the code that a run loads.

    Raises:
        PermissionError: other users can change both directories.
    """
    temporary = Path(tempfile.gettempdir()) / f"walle-{os.getuid()}"  # the same for every run
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "walle"
    try:
        return private_directory(cache, temporary)
    except PermissionError as error:
        cure = "set XDG_CACHE_HOME to a directory that only you can change"
        raise PermissionError(f"no private cache for compiled code: {error}; {cure}") from None


def private_directory(*candidates: Path) -> Path:
    """The first of `candidates` that exists or can be made, and that no other user can change.

    The directory gets mode 0700. No other user but root may own it or a directory above it, or be
    able to replace one of them, because whoever can do that chooses what this process finds there.

    Raises:
        PermissionError: none of the candidates is private; the message says why.
    """
    refused = []
    for path in candidates:
        try:
            return _made_private(path)
        except OSError as error:
            refused.append(str(error))
    raise PermissionError("; ".join(refused))


def _made_private(path: Path) -> Path:
    path = path.parent.resolve() / path.name
    for each in reversed((path, *path.parents)):
        each.mkdir(mode=0o700, exist_ok=True)
        if reason := _reason_against(each, each.lstat(), last=each == path):
            raise PermissionError(f"{each} {reason}")
    path.chmod(0o700)
    return path


def _reason_against(path: Path, found: os.stat_result, *, last: bool) -> str | None:
    """Why other users can change what lies in `path`; None if they cannot."""
    if not stat.S_ISDIR(found.st_mode):
        return "is a link or a file"
    if found.st_uid not in ({os.getuid()} if last else _trusted_owners()):
        return f"belongs to another user (number {found.st_uid})"
    sticky = found.st_mode & stat.S_ISVTX and not last  # users cannot replace each other's files
    if found.st_mode & 0o022 and not sticky:
        return f"can be changed by other users (mode {stat.S_IMODE(found.st_mode):04o})"
    return None if not last or os.access(path, os.W_OK) else "is not writable"


def _trusted_owners() -> set[int]:
    """This user and root; in a container, the number that stands for the machine's root too."""
    owners = {0, os.getuid()}
    with suppress(OSError):  # no Linux, so no such containers
        if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
            owners.add(int(Path("/proc/sys/kernel/overflowuid").read_text()))
    return owners


class TemporaryDirectory:
    """A new directory that lasts as long as this object.

    A process that is killed cannot remove its directory, so the next one with the same parent and
    suffix does it: the lock inside a directory tells whether its process still runs.
    """

    def __init__(self, parent: Path, suffix: str) -> None:
        """Makes a directory in `parent`, with a name that ends in `suffix`."""
        with locked_file(parent / f"{suffix.lstrip('.')}.lock"):
            for path in parent.glob(f"*{suffix}"):
                _remove_abandoned(path)
            self.path = Path(tempfile.mkdtemp(suffix, dir=parent))
            lock = (self.path / "lock").open("w")
            try_lock(lock.fileno(), fcntl.LOCK_EX)  # nobody else knows the file yet
        self.remove = weakref.finalize(self, _remove, self.path, lock)

    @contextmanager
    def used(self) -> Iterator[Path]:
        """Puts the temporary files of the body, and of the programs that it starts, in here."""
        variable = environment({"TMPDIR": str(self.path)})
        with variable, patch.object(tempfile, "tempdir", str(self.path)):
            yield self.path


def _remove_abandoned(path: Path) -> None:
    """Removes a directory whose process has ended, if need be before it made its lock."""
    try:
        lock = (path / "lock").open("a")
    except FileNotFoundError:
        return  # its own process has just removed it
    if try_lock(lock.fileno(), fcntl.LOCK_EX):
        _remove(path, lock)
    else:
        lock.close()


def _remove(path: Path, lock: IO[str]) -> None:
    shutil.rmtree(path, ignore_errors=True)
    lock.close()


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for the body and for the processes that it starts."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)
