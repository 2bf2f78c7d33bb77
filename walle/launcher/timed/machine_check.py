"""The check of the machine around a sweep that measures time: run, printed and recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from walle.launcher.planning import Plan
from walle.launcher.records import write_manifest
from walle.launcher.timed.core_speeds import CoreSpeeds, core_speeds
from walle.launcher.timed.machine_notes import machine_notes
from walle.system.format import count_text
from walle.system.run_files import read_status

log = logging.getLogger(__name__)

Check = Callable[[Sequence[int], Collection[int]], CoreSpeeds | None]


class MachineCheck:
    """Checks the cores before the first and after the last job of a launch.

    The launch's entry in manifest.json gets `machine`: both checks (see `CoreSpeeds`), and `notes`,
    sentences on what makes the sweep's times uncertain.
    """

    def __init__(
        self,
        sweep: Path,
        plan: Plan,
        cores: Sequence[int],
        *,
        enabled: bool,
        check: Check = core_speeds,
    ) -> None:
        """Checks nothing yet.

        Args:
            sweep: the sweep's directory.
            plan: the jobs of the launch.
            cores: of the sweep.
            enabled: whether to time the cores; what jobs ran into is told anyway.
            check: times the cores; ends early when its second argument is not empty.
        """
        self._sweep, self._plan, self._cores = sweep, plan, cores
        self._enabled, self._check = enabled, check
        self._before: CoreSpeeds | None = None
        self._told: list[str] = []

    def before(self, stop: Collection[int]) -> None:
        """Times the cores before the first job; ends early when something is in `stop`."""
        if self._enabled:
            log.info(f"timing the same work on {count_text(len(self._cores), 'core')}")
            self._before = self._check(self._cores, stop)
            self._record(None)

    def after(self, stop: Collection[int]) -> None:
        """Times the cores again, and tells what was not equal, steady or quiet."""
        after = self._check(self._cores, stop) if self._enabled else None
        if self._enabled or self._plan.exclusive:
            self._record(after)

    def _record(self, after: CoreSpeeds | None) -> None:
        jobs = [self._plan.jobs[index] for index in self._plan.order]
        ran = {job.num: read_status(job.directory) for job in jobs} if self._plan.exclusive else {}
        others = {num: status.get("others_busy") for num, status in ran.items()}
        cores = {num: len(status.get("cores") or []) for num, status in ran.items()}
        notes = machine_notes(self._before, after, others, cores)
        checks = {"before": self._before, "after": after}
        found = {when: speeds.as_record() for when, speeds in checks.items() if speeds}
        self._plan.manifest.launches[-1]["machine"] = {**found, "notes": notes}
        write_manifest(self._sweep, self._plan.manifest)
        for note in notes:
            if note not in self._told:
                self._told.append(note)
                log.warning(note)
