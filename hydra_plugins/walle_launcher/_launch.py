"""A launch from end to end: plan, refuse or resume, run, write down, report."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

from hydra_plugins.walle_launcher import _plan
from hydra_plugins.walle_launcher._cores import Allocator, usable_cores
from hydra_plugins.walle_launcher._identity import (
    ConfigChangedError,
    assign_numbers,
    refuse_other_base,
)
from hydra_plugins.walle_launcher._job import Common
from hydra_plugins.walle_launcher._machine import job_environment, thread_settings, visible_gpus
from hydra_plugins.walle_launcher._plan import Composed, Job
from hydra_plugins.walle_launcher._records import (
    MANIFEST,
    JobRecord,
    Manifest,
    RecordError,
    is_done,
    locked,
    now,
    read_manifest,
    read_status,
    write_index,
    write_manifest,
)
from hydra_plugins.walle_launcher._report import NOT_STARTED, failure_list, job_return
from hydra_plugins.walle_launcher._run import Interrupts, Runner
from hydra_plugins.walle_launcher._screen import (
    cores_text,
    label,
    open_screen,
)
from hydra_plugins.walle_launcher._settings import WalleLauncherConf, check_settings
from hydra_plugins.walle_launcher._verdict import Verdict
from hydra_plugins.walle_launcher._warm import Starter, WarmupError

log = logging.getLogger(__name__)

LOCK_WAIT_S = 15.0
BAD_INPUT = 2


class Plan(NamedTuple):
    """A launch before its first job.

    Attributes:
        jobs: in the order of the overrides given.
        done: recorded return values of the jobs to skip, by index.
        order: indices of the jobs to run, first to last.
        manifest: to be written.
        exclusive: one job at a time.
    """

    jobs: list[Job]
    done: dict[int, Any]
    order: list[int]
    manifest: Manifest
    exclusive: bool


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
            self._cores = usable_cores(settings.cores)
        except ValueError as error:
            refuse(error)
        self._gpus = visible_gpus(settings.gpus, os.environ)
        self._moved_to = None
        if settings.resume is False:
            self._moved_to = _unused_directory(self._sweep_dir)
        if self._moved_to is not None:
            with read_write(config), open_dict(config):
                config.hydra.sweep.dir = self._moved_to
        # Hydra's sweeper writes it before it asks us; a refused or dry launch puts it back.
        self._multirun = _read_bytes(self._sweep_dir / "multirun.yaml")
        self._manifest_so_far: Manifest | None = None

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
        dry = self._settings.dry_run
        lock: AbstractContextManager[int] = (
            nullcontext(-1) if dry else locked(self._sweep_dir, LOCK_WAIT_S)
        )
        try:
            with lock as lock_fd:
                plan = self._plan(overrides, first_num)
                if dry:
                    self._restore()
                    return self._show(plan)
                return self._run(plan, lock_fd)
        except (_plan.PlanError, ConfigChangedError, RecordError, WarmupError) as error:
            self._restore()
            refuse(error, self._cure(error))

    def _cure(self, error: Exception) -> str:
        if not isinstance(error, ConfigChangedError):
            return ""
        return (
            f"\n{self._sweep_dir} keeps the sweep it was made for: undo the change, give the new "
            "sweep another name, or start a new directory with hydra.launcher.resume=false"
        )

    def _restore(self) -> None:
        if self._multirun is not None:
            (self._sweep_dir / "multirun.yaml").write_bytes(self._multirun)

    def _plan(self, overrides: Sequence[Sequence[str]], first_num: int) -> Plan:
        composed = _plan.compose(self._context, self._config, overrides, self._settings.hash_ignore)
        _plan.validate(composed, self._settings.validate)
        before = self._recorded()
        swept = _plan.swept_keys(self._context, self._config, overrides).union(before.swept)
        recorded = {job.known.num for job in before.jobs}
        known, wanted = [job.known for job in before.jobs], [job.known for job in composed]
        if (
            self._manifest_so_far is None
        ):  # an adaptive sweeper's later batches are this sweep by definition
            refuse_other_base(known, wanted, swept)
        numbers = assign_numbers(known, wanted, first_num)
        jobs = [
            _plan.place(job, num, label(job.overrides, swept), self._moved_to)
            for job, num in zip(composed, numbers, strict=True)
        ]
        _plan.refuse_shared_directories(jobs)
        self._check_gpus(jobs)
        done = {
            index: status["return_value"]
            for index, job in enumerate(jobs)
            if job.num in recorded
            and is_done(status := read_status(job.directory), job.known.config_hash)
        }
        order = [i for i in _plan.in_order(composed, self._settings.order) if i not in done]
        exclusive = self._is_exclusive(composed, swept)
        manifest = self._manifest(before, jobs, order, swept, exclusive)
        return Plan(jobs, done, order, manifest, exclusive)

    def _recorded(self) -> Manifest:
        """The sweep so far: of this launch's earlier batches, or of the launches before it."""
        if self._manifest_so_far is not None:
            return self._manifest_so_far
        resumes = self._settings.resume
        if resumes is None:
            resumes = bool(self._config.get("name"))
        if resumes and (self._sweep_dir / MANIFEST).exists():
            return read_manifest(self._sweep_dir)
        return Manifest((), {}, (), ())

    def _is_exclusive(self, jobs: Sequence[Composed], swept: Iterable[str]) -> bool:
        if self._settings.exclusive is not None:
            return self._settings.exclusive
        return _plan.compares_times(jobs, set(swept))

    def _check_gpus(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            device = str(job.config.get("device"))
            if job.need.gpus and not self._gpus:
                raise _plan.PlanError(
                    f"#{job.num} ({job.label}) asks for a GPU with device={device}, and this "
                    "machine shows none: use device=cpu, or name them in hydra.launcher.gpus"
                )
            if job.need.gpus and ":" in device:
                raise _plan.PlanError(
                    f"#{job.num} ({job.label}) names device={device}, but the launcher hands out "
                    "the GPUs, and a job sees only its own: use device=cuda"
                )

    def _manifest(
        self,
        before: Manifest,
        jobs: Sequence[Job],
        order: Sequence[int],
        swept: Iterable[str],
        exclusive: bool,
    ) -> Manifest:
        entries = {job.known.num: job for job in before.jobs}
        for job in jobs:
            where = _plan.relative(job.directory, self._sweep_dir)
            entries[job.num] = JobRecord(job.known, where, job.need.cores)
        settings = {
            "order": self._settings.order,
            "exclusive": exclusive,
            "cores": self._cores,
            "gpus": self._gpus,
            "threads": thread_settings(self._settings.threads),
        }
        launch = {
            "started": now(),
            "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
            "directory": os.getcwd(),
            "host": os.uname().nodename,
            "order": [jobs[index].num for index in order],
        }
        ordered = tuple(entries[num] for num in sorted(entries))
        return Manifest(tuple(sorted(swept)), settings, ordered, (*before.launches, launch))

    def _show(self, plan: Plan) -> list[JobReturn]:
        """Prints what would happen."""
        side = "one at a time" if plan.exclusive else "side by side where cores allow"
        log.info(
            f"{len(plan.jobs)} jobs in {self._sweep_dir}, {side}, "
            f"on cores {cores_text(self._cores)}"
        )
        for index, value in plan.done.items():
            log.info(
                f"skip  #{plan.jobs[index].num} (done, returned {value}): {plan.jobs[index].label}"
            )
        for index in plan.order:
            job = plan.jobs[index]
            needs = "all cores" if job.need.cores is None else f"{job.need.cores} core(s)"
            over = " (oversubscribed)" if (job.need.cores or 0) > len(self._cores) else ""
            log.info(f"run   #{job.num} on {needs}{over} in {job.directory}: {job.label}")
        return [job_return(job, Verdict("completed")) for job in plan.jobs]

    def _run(self, plan: Plan, lock_fd: int) -> list[JobReturn]:
        self._manifest_so_far = plan.manifest
        write_manifest(self._sweep_dir, plan.manifest)
        verdicts: dict[int, Verdict] = {}
        interrupts = Interrupts()
        self._announce(plan)
        try:
            if plan.order:
                with interrupts:
                    self._run_jobs(plan, lock_fd, interrupts, verdicts)
        finally:
            write_index(self._sweep_dir)
        return self._report(plan, verdicts, interrupts.received)

    def _announce(self, plan: Plan) -> None:
        skipped = f", {len(plan.done)} are done already" if plan.done else ""
        log.info(f"{len(plan.jobs)} jobs in {self._sweep_dir}{skipped}")
        large = [i for i in plan.order if (plan.jobs[i].need.cores or 0) > len(self._cores)]
        if large:
            numbers = ", ".join(f"#{plan.jobs[i].num}" for i in large)
            log.warning(
                f"{numbers} need more than the {len(self._cores)} cores there are: each runs "
                "alone, and index.csv marks it oversubscribed"
            )

    def _run_jobs(
        self, plan: Plan, lock_fd: int, interrupts: Interrupts, verdicts: dict[int, Verdict]
    ) -> None:
        common = Common(self._task_function, self._context, Singleton.get_state())
        environ = job_environment(os.environ, thread_settings(self._settings.threads))
        starter = Starter(common, self._settings.preload, environ, lock_fd)
        needs = [job.need for job in plan.jobs]
        allocator = Allocator(needs, plan.order, self._cores, self._gpus, exclusive=plan.exclusive)
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
        if signals:
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
