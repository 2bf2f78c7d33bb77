"""What the launcher asks about each job: whether it must run to its end."""

from __future__ import annotations

from typing import Protocol

from walle.launcher.composing import Job


class Watch(Protocol):
    """Tells which jobs need not run to their ends."""

    def __call__(self, job: Job, *, starts: bool = True) -> str | None:
        """Why the job need not run to its end; None as long as it must.

        Args:
            job: the job.
            starts: whether it runs or starts now; false for one that still waits.
        """
