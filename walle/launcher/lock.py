"""Locks on a sweep's directory: one launcher at a time, after the jobs of the launcher before."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from walle.system.locks import RUN_LOCK, lock_file, try_lock

LAUNCHER_LOCK, JOBS_LOCK = ".launcher.lock", ".jobs.lock"
LOCK_POLL_S = 0.05


class LockedError(ValueError):
    """The directory is in use."""


@contextmanager
def launcher_locked(sweep: Path) -> Iterator[None]:
    """Locks the sweep's directory for this launcher; the lock ends with the launcher.

    Raises:
        LockedError: another launcher uses the directory.
    """
    sweep.mkdir(parents=True, exist_ok=True)
    with lock_file(sweep / LAUNCHER_LOCK) as launcher:
        if not try_lock(launcher, fcntl.LOCK_EX):
            raise LockedError(
                f"another launcher is running the sweep in {sweep}: wait for it or end it, or use "
                "another name"
            )
        yield


@contextmanager
def jobs_locked(sweep: Path, wait_s: float) -> Iterator[int]:
    """Locks the sweep's directory for the jobs of this launcher; the lock ends with the last job.

    The jobs of a launcher that was killed end a moment later than the launcher.

    Args:
        sweep: the directory.
        wait_s: seconds to wait until the jobs of a launcher that was killed have ended.

    Yields:
        a file descriptor. A process that inherits it keeps the lock until it ends.

    Raises:
        LockedError: jobs of an earlier launcher do not end.
    """
    with _locked_jobs(sweep, wait_s, fcntl.LOCK_EX) as jobs:
        yield jobs


@contextmanager
def share_jobs_lock(sweep: Path, wait_s: float) -> Iterator[int]:
    """Locks the jobs of a sweep for a worker, which shares the lock with the other workers."""
    with _locked_jobs(sweep, wait_s, fcntl.LOCK_SH) as jobs:
        yield jobs


@contextmanager
def _locked_jobs(sweep: Path, wait_s: float, kind: int) -> Iterator[int]:
    with lock_file(sweep / JOBS_LOCK) as jobs:
        deadline = time.monotonic() + wait_s
        while not try_lock(jobs, kind):
            if time.monotonic() > deadline:
                raise LockedError(
                    f"jobs of a launcher that was killed are still running in {sweep}: end them"
                )
            time.sleep(LOCK_POLL_S)
        yield jobs


@contextmanager
def locked(sweep: Path, wait_s: float) -> Iterator[int]:
    """Locks the sweep's directory for this launcher and its jobs; see above."""
    with launcher_locked(sweep), jobs_locked(sweep, wait_s) as jobs:
        yield jobs


def run_is_locked(directory: Path) -> bool:
    """True while a run in this directory, on any machine that shares it, still lives."""
    if not os.path.exists(directory / RUN_LOCK):
        return False
    with lock_file(directory / RUN_LOCK) as descriptor:
        return not try_lock(descriptor, fcntl.LOCK_SH)


def has_launcher(sweep: Path) -> bool:
    """True while a launcher runs the sweep in this directory."""
    if not os.path.exists(sweep / LAUNCHER_LOCK):
        return False
    with lock_file(sweep / LAUNCHER_LOCK) as descriptor:
        return not try_lock(descriptor, fcntl.LOCK_SH)
