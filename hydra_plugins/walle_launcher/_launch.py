"""A launch from end to end: plan, refuse or resume, run, write down, report."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

from hydra_plugins.walle_launcher._compose import PlanError
from hydra_plugins.walle_launcher._cores import Allocator, usable_cores
from hydra_plugins.walle_launcher._identity import ConfigChangedError
from hydra_plugins.walle_launcher._job import Common
from hydra_plugins.walle_launcher._lock import LockedError, locked
from hydra_plugins.walle_launcher._machine import job_environment, thread_settings, visible_gpus
from hydra_plugins.walle_launcher._planning import (
    Plan,
    Planner,
    Resources,
    oversubscribed_warning,
    plan_lines,
)
from hydra_plugins.walle_launcher._records import (
    MANIFEST,
    RecordError,
    write_index,
    write_manifest,
)
from hydra_plugins.walle_launcher._report import NOT_STARTED, failure_list, job_return
from hydra_plugins.walle_launcher._run import Interrupts, Runner
from hydra_plugins.walle_launcher._screen import open_screen
from hydra_plugins.walle_launcher._settings import WalleLauncherConf, check_settings
from hydra_plugins.walle_launcher._verdict import Verdict
from hydra_plugins.walle_launcher._warm import Starter, WarmupError

log = logging.getLogger(__name__)

LOCK_WAIT_S = 15.0
MULTIRUN = "multirun.yaml"
BAD_INPUT = 2


class Launch:
    """Everything between Hydra's `setup` and the list of results."""

    def __init__(
        self,
        settings: WalleLauncherConf,
        context: HydraContext,
        task_function: TaskFunction,
        config: DictConfig,
    ) -> None:
        """Checks the settings; with `resume=false`, gives the sweep a directory not used yet.

        Raises:
            SystemExit: with code 2, when a setting is wrong.
        """
        self._settings, self._context, self._config = settings, context, config
        self._task_function = task_function
        try:
            check_system()
            check_settings(settings)
            cores = usable_cores(settings.cores)
        except ValueError as error:
            refuse(error)
        self._resources = Resources(cores, visible_gpus(settings.gpus, os.environ))
        moved_to = _unused_directory(self._sweep_dir) if settings.resume is False else None
        if moved_to is not None:
            with read_write(config), open_dict(config):
                config.hydra.sweep.dir = moved_to
        self._planner = Planner(settings, context, config, self._resources, moved_to)
        # Hydra's sweeper writes it before it asks us; a refused or dry launch puts it back.
        self._multirun = _read_bytes(self._sweep_dir / MULTIRUN)

    @property
    def _sweep_dir(self) -> Path:
        return Path(str(self._config.hydra.sweep.dir))

    def __call__(self, overrides: Sequence[Sequence[str]], first_num: int) -> list[JobReturn]:
        """Runs the jobs.

        Args:
            overrides: of each job.
            first_num: the number of the first, in a directory that has none yet.

        Raises:
            SystemExit: with code 2 when nothing could be started, 128 + signal when the sweep was
                stopped, and 1 when a job failed under a sweeper that could only end with it.
        """
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        log.info(f"composing and checking {len(overrides)} jobs")
        try:
            jobs = self._planner.compose(overrides)
            if self._settings.dry_run:
                return self._show(self._planner.plan(jobs, first_num))
            with locked(self._sweep_dir, LOCK_WAIT_S) as lock_fd:
                return self._run(self._planner.plan(jobs, first_num), lock_fd)
        except (PlanError, ConfigChangedError, RecordError, LockedError, WarmupError) as error:
            self._restore()
            refuse(error, self._cure(error))
        except KeyboardInterrupt:  # while planning; later on the loop heeds it
            print("stopped before any job was started", file=sys.stderr)
            raise SystemExit(128 + signal.SIGINT) from None

    def _cure(self, error: Exception) -> str:
        if not isinstance(error, ConfigChangedError):
            return ""
        return (
            f"\n{self._sweep_dir} keeps the sweep it was made for: undo the change, give the new "
            "sweep another name, or start a new directory with hydra.launcher.resume=false"
        )

    def _restore(self) -> None:
        """Leaves the sweep's directory as it was before Hydra wrote its multirun.yaml."""
        if self._multirun is not None:
            (self._sweep_dir / MULTIRUN).write_bytes(self._multirun)
        elif not (self._sweep_dir / MANIFEST).exists():
            (self._sweep_dir / MULTIRUN).unlink(missing_ok=True)
            if self._sweep_dir.is_dir() and not any(self._sweep_dir.iterdir()):
                self._sweep_dir.rmdir()

    def _show(self, plan: Plan) -> list[JobReturn]:
        """Prints what would happen."""
        self._restore()
        for line in plan_lines(plan, self._resources, self._sweep_dir):
            log.info(line)
        return [job_return(job, Verdict("completed")) for job in plan.jobs]

    def _run(self, plan: Plan, lock_fd: int) -> list[JobReturn]:
        self._planner.keep(plan)
        write_manifest(self._sweep_dir, plan.manifest)
        verdicts: dict[int, Verdict] = {}
        interrupts = Interrupts()
        skipped = f", {len(plan.done)} are done already" if plan.done else ""
        log.info(f"{len(plan.jobs)} jobs in {self._sweep_dir}{skipped}")
        if warning := oversubscribed_warning(plan, self._resources):
            log.warning(warning)
        try:
            if plan.order:
                with interrupts:
                    self._run_jobs(plan, lock_fd, interrupts, verdicts)
        finally:
            write_index(self._sweep_dir)
        return self._report(plan, verdicts, interrupts.received)

    def _run_jobs(
        self, plan: Plan, lock_fd: int, interrupts: Interrupts, verdicts: dict[int, Verdict]
    ) -> None:
        common = Common(self._task_function, self._context, Singleton.get_state())
        environ = job_environment(os.environ, thread_settings(self._settings.threads))
        starter = Starter(common, self._settings.preload, environ, lock_fd)
        needs = [job.need for job in plan.jobs]
        allocator = Allocator(needs, plan.order, *self._resources, exclusive=plan.exclusive)
        screen = open_screen(len(plan.jobs), len(plan.done))
        runner = Runner(plan.jobs, allocator, self._settings, starter, screen)
        runner.verdicts = verdicts
        try:
            runner.run(interrupts)
        finally:
            screen.close()
            starter.close()

    def _report(
        self, plan: Plan, verdicts: Mapping[int, Verdict], signals: Sequence[int]
    ) -> list[JobReturn]:
        """Lists what did not complete, last of all; makes the results for the sweeper."""
        ends = {i: verdicts.get(i, NOT_STARTED) for i in plan.order}
        bad = [(plan.jobs[i], end) for i, end in ends.items() if end.state != "completed"]
        log.info(f"{len(plan.jobs) - len(bad)} of {len(plan.jobs)} jobs are complete")
        if bad:
            print(failure_list(bad, len(plan.jobs)), file=sys.stderr, flush=True)
        if bad and signals:
            raise SystemExit(128 + signals[0])
        if bad and self._sweeper_ends_with_a_failure():
            raise SystemExit(1)
        skipped = {i: Verdict("completed", value=value) for i, value in plan.done.items()}
        return [job_return(job, (skipped | ends)[i]) for i, job in enumerate(plan.jobs)]

    def _sweeper_ends_with_a_failure(self) -> bool:
        """Hydra's own sweeper would print a traceback of the launcher's inside over our list."""
        return str(self._config.hydra.sweeper._target_).endswith(".BasicSweeper")


def check_system() -> None:
    """Refuses systems without Linux's control over processes and cores.

    Raises:
        ValueError: this is one.
    """
    if sys.platform != "linux":
        raise ValueError(
            f"the walle launcher needs Linux to pin jobs and to end all their processes, and this "
            f"is {sys.platform}: use hydra/launcher=basic"
        )


def refuse(error: Exception, cure: str = "") -> NoReturn:
    """Ends the program with one message and exit code 2."""
    print(f"{error}{cure}", file=sys.stderr)
    raise SystemExit(BAD_INPUT)


def _unused_directory(sweep: Path) -> str | None:
    """`NAME-2`, `-3` and so on, where NAME holds a sweep; None where it holds none."""
    if not (sweep / MANIFEST).exists():
        return None
    number = 2
    while Path(f"{sweep}-{number}").exists():
        number += 1
    return f"{sweep}-{number}"


def _read_bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
