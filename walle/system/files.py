"""Files: atomic writes, directories that no other user can change, and temporary directories."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from walle.system.locks import locked_file, try_lock

# 65534, nobody, is how the host's root appears inside a rootless container.
_ROOTS = (0, 65534)


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Replaces the content of `path`: readers find the old or the new one, even after a crash."""
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):  # a signal may arrive after the replacement
            os.unlink(temporary)  # on a full disk this makes room for status.json
        raise


def cache_directory(*, for_code: bool = False) -> Path:
    """Returns walle's directory in the user's cache; one in TMPDIR if the former is not private.

    Every call checks the owner again: whoever can write there chooses the code that a run loads.
    `for_code` also excludes directories from which nothing can be executed.
    Raises PermissionError if neither directory can be used.
    """
    candidates = []
    with suppress(RuntimeError):  # neither HOME nor a name for this uid
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "walle"
        candidates.append(cache)
    with suppress(FileNotFoundError):  # no directory for temporary files
        candidates.append(Path(tempfile.gettempdir()) / f"walle-{os.getuid()}")
    if for_code:  # a command in which torch calls the compiler breaks at spaces in a path
        candidates.sort(key=lambda path: len(str(path).split()))
    try:
        return private_directory(*candidates, for_code=for_code)
    except PermissionError as error:
        fix = "set XDG_CACHE_HOME to a directory that only you can change"
        raise PermissionError(f"no private cache for compiled code: {error}; {fix}") from None


def private_directory(*candidates: Path, for_code: bool = False) -> Path:
    """Returns the first of `candidates` that no other user but root can change or replace.

    Missing directories are created with mode 0700; the last one of a path always gets this mode.
    Raises PermissionError, with the reasons, if none of the candidates is private.
    """
    refused = []
    for candidate in candidates:
        path = candidate.parent.resolve() / candidate.name
        try:
            for directory in reversed((path, *path.parents)):
                directory.mkdir(mode=0o700, exist_ok=True)
                _check_owner(directory, last=directory == path)
            path.chmod(0o700)
            if not os.access(path, os.W_OK):
                refused.append(f"{path} is not writable")
            elif for_code and os.statvfs(path).f_flag & os.ST_NOEXEC:
                refused.append(f"{path} is mounted noexec")
            else:
                return path
        except OSError as error:
            refused.append(str(error))
    raise PermissionError("; ".join(refused))


def _check_owner(directory: Path, *, last: bool) -> None:
    info = directory.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise PermissionError(f"{directory} is a link or a file")
    if info.st_uid != os.getuid() and (last or info.st_uid not in _ROOTS):
        raise PermissionError(f"{directory} belongs to another user (number {info.st_uid})")
    sticky = info.st_mode & stat.S_ISVTX and not last  # users cannot replace each other's files
    if info.st_mode & 0o022 and not sticky:
        mode = f"mode {stat.S_IMODE(info.st_mode):04o}"
        raise PermissionError(f"{directory} can be changed by other users ({mode})")


class TemporaryDirectory:
    """A new directory that lasts as long as this object.

    A process that is killed cannot remove its directory. The next process with the same parent and
    suffix does so: the lock inside a directory shows whether its owner is still running.
    """

    def __init__(self, parent: Path, suffix: str) -> None:
        """Makes a directory in `parent`, with a name that ends in `suffix`."""
        with locked_file(parent / f"{suffix.lstrip('.')}.lock"):
            for directory in parent.glob(f"*{suffix}"):
                # Its owner may have ended before it made the lock, or have just removed it.
                with suppress(FileNotFoundError):
                    with (directory / "lock").open("a") as file:
                        left = try_lock(file.fileno())
                    if left:  # after the lock is closed: NFS would keep an open file
                        shutil.rmtree(directory, ignore_errors=True)
            self.path = parent / f"{os.urandom(4).hex()}{suffix}"
            lock = ExitStack()
            lock.callback(shutil.rmtree, self.path, ignore_errors=True)
            self.remove = weakref.finalize(self, lock.close)  # first: an interrupt may follow
            self.path.mkdir(mode=0o700)
            lock.enter_context(locked_file(self.path / "lock"))

    @contextmanager
    def used(self) -> Iterator[Path]:
        """Puts temporary files of the body, and of programs that it starts, in this directory."""
        before, tempfile.tempdir = tempfile.tempdir, str(self.path)
        try:
            with environment({"TMPDIR": str(self.path)}):
                yield self.path
        finally:
            tempfile.tempdir = before


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
