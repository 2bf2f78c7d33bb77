"""The backend of this machine: the jobs run here, and end with the command that started them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from walle.launcher.allocation import Allocator
from walle.launcher.jobs.fork_server import Preparation
from walle.launcher.jobs.verdict import Verdict
from walle.launcher.jobs.watch import Watch
from walle.launcher.lock import locked
from walle.launcher.planning import Plan
from walle.launcher.resources import Resources, sweep_cores, visible_gpus
from walle.launcher.settings import WalleLauncherConf
from walle.launcher.timed.machine_check import MachineCheck
from walle.launcher.workers.running import runner
from walle.system.format import ranges_text

LOCK_WAIT_S = 15.0


class LocalBackend:
    """Runs jobs on the cores of this machine."""

    def __init__(self, settings: WalleLauncherConf) -> None:
        """Finds the cores and GPUs.

        Raises:
            ValueError: a core was asked for that this process may not use.
        """
        self._settings = settings
        cores = sweep_cores(settings.cores)
        self.resources = Resources(cores, visible_gpus(settings.gpus, os.environ))

    def locked(self, sweep: Path) -> AbstractContextManager[int]:
        """Locks the directory for this launcher and its jobs."""
        return locked(sweep, LOCK_WAIT_S)

    def place(self, plan: Plan) -> str:  # noqa: ARG002  the backend of Slurm asks it
        """Where the jobs run, for the text of a dry run."""
        return f"on cores {ranges_text(self.resources.cores)}"

    def run(
        self,
        plan: Plan,
        sweep: Path,
        wanted: Preparation,
        lock_fd: int,
        ending: Sequence[int],
        saving: list[int],
        watch: Watch | None,
    ) -> dict[int, Verdict]:
        """Runs the jobs, with a check of the machine around them where they measure time.

        Args:
            plan: the jobs.
            sweep: the sweep's directory.
            wanted: what the jobs import.
            lock_fd: the jobs' lock on the directory.
            ending: signals that ask for the end so far; grows.
            saving: signals that ask for checkpoints; emptied, and grows again.
            watch: tells which jobs need not run to their ends.

        Returns:
            how each job ended, by index; a job that never started is left out.
        """
        asked = self._settings.check_cores
        enabled = plan.exclusive if asked is None else asked
        machine = MachineCheck(sweep, plan, self.resources.cores, enabled=enabled)
        machine.before(ending)
        needs = [job.need for job in plan.jobs]
        source = Allocator(needs, plan.order, self.resources, exclusive=plan.exclusive)
        where = (self.resources, self._settings, wanted, lock_fd)
        with runner(plan, source, *where, ending, watch) as jobs:
            verdicts = jobs.run(ending, saving)
        machine.after(ending)
        return verdicts
