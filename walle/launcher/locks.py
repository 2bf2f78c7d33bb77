"""Locks on a sweep's directory: one launcher at a time, after the jobs of the launcher before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from walle.launcher.settings import LauncherError
from walle.system.locks import is_locked, locked_file

LAUNCHER_LOCK, JOBS_LOCK = ".launcher.lock", ".jobs.lock"


class LockedError(LauncherError):
    """The directory is in use."""


@contextmanager
def launcher_locked(sweep: Path) -> Iterator[None]:
    """Locks the sweep's directory for this launcher, or raises `LockedError`."""
    refusal = LockedError(
        f"another launcher is running the sweep in {sweep}: wait for it or end it, or use another "
        "name"
    )
    sweep.mkdir(parents=True, exist_ok=True)
    with locked_file(sweep / LAUNCHER_LOCK, 0, refusal=lambda _: refusal):
        yield


@contextmanager
def jobs_locked(sweep: Path, wait_s: float, *, shared: bool = False) -> Iterator[int]:
    """Locks the sweep's directory for the jobs of this launcher; the lock ends with the last job.

    The jobs of a launcher that was killed end a moment later than the launcher: waits for that up
    to `wait_s` seconds, then raises `LockedError`. Workers share the lock. A process that inherits
    the yielded file descriptor keeps the lock until it ends.
    """
    refusal = LockedError(
        f"jobs of a launcher that was killed are still running in {sweep}: end them"
    )
    lock = locked_file(sweep / JOBS_LOCK, wait_s, shared=shared, refusal=lambda _: refusal)
    with lock as descriptor:
        yield descriptor


@contextmanager
def locked(sweep: Path, wait_s: float) -> Iterator[int]:
    """Locks the sweep's directory for this launcher and its jobs."""
    with launcher_locked(sweep), jobs_locked(sweep, wait_s) as jobs:
        yield jobs


def has_launcher(sweep: Path) -> bool:
    """True while a launcher runs the sweep in this directory."""
    return is_locked(sweep / LAUNCHER_LOCK)
