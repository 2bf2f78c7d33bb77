"""Locks on a sweep's directory: one launcher at a time, after the jobs of the launcher before."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from walle.processes.locks import lock_file, try_lock

LAUNCHER_LOCK, JOBS_LOCK = ".launcher.lock", ".jobs.lock"
LOCK_POLL_S = 0.05


class LockedError(ValueError):
    """The directory is in use."""


@contextmanager
def locked(sweep: Path, wait_s: float) -> Iterator[int]:
    """Locks the sweep's directory for this launcher and its jobs.

    The launcher's lock ends with the launcher. The jobs' lock ends with its last job: the jobs of
    a launcher that was killed end a moment later than the launcher.

    Args:
        sweep: the directory.
        wait_s: seconds to wait until the jobs of a launcher that was killed have ended.

    Yields:
        The jobs' lock: a file descriptor. A process that inherits it keeps the lock until it ends.

    Raises:
        LockedError: another launcher uses the directory, or jobs of an earlier one do not end.
    """
    sweep.mkdir(parents=True, exist_ok=True)
    with lock_file(sweep / LAUNCHER_LOCK) as launcher, lock_file(sweep / JOBS_LOCK) as jobs:
        if not try_lock(launcher, fcntl.LOCK_EX):
            raise LockedError(
                f"another launcher is running the sweep in {sweep}: wait for it or end it, or use "
                "another name"
            )
        deadline = time.monotonic() + wait_s
        while not try_lock(jobs, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise LockedError(
                    f"jobs of a launcher that was killed are still running in {sweep}: end them"
                )
            time.sleep(LOCK_POLL_S)
        yield jobs


def has_launcher(sweep: Path) -> bool:
    """True while a launcher runs the sweep in this directory."""
    if not os.path.exists(sweep / LAUNCHER_LOCK):
        return False
    with lock_file(sweep / LAUNCHER_LOCK) as descriptor:
        return not try_lock(descriptor, fcntl.LOCK_SH)
