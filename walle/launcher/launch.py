"""A launch from start to end: plan, refuse or resume, run, write the records, report."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from hydra import version
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobRuntime, JobStatus, configure_log, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from walle.launcher.composing import Composed, Job, StopRule, distinct, fast_loader, task_config
from walle.launcher.identity import ConfigChangedError
from walle.launcher.jobs.fork_server import preparation
from walle.launcher.jobs.job import HydraState
from walle.launcher.jobs.verdict import Verdict
from walle.launcher.messages import ending_text, failure_list, repeats_text, resume_text
from walle.launcher.planning import Plan, Planner, can_resume, oversubscribed_warning, plan_lines
from walle.launcher.records import LOG, MANIFEST, resume_command, write_index, write_manifest
from walle.launcher.settings import LauncherError, WalleLauncherConf, check_settings
from walle.launcher.workers.backend import LocalBackend, SlurmBackend, WorkersBackend
from walle.launcher.workers.ray_backend import RayBackend
from walle.system.format import count_text
from walle.system.run_files import remove_empty
from walle.system.signals import ENDING, FOR_AGENT, SAVING, signal_handlers

log = logging.getLogger(__name__)

MULTIRUN = "multirun.yaml"
BAD_INPUT = 2
NOT_STARTED = Verdict("pending", "not started: the sweep was stopped before its turn")


class JobFailedError(RuntimeError):
    """Raised by the sweeper's access to the return value of a job that did not complete."""

    state = "failed"  # or how else it ended


class Launch:
    """Runs a launch from Hydra's `setup` to the list of results."""

    def __init__(
        self,
        settings: WalleLauncherConf,
        context: HydraContext,
        task_function: TaskFunction,
        config: DictConfig,
    ) -> None:
        """Checks the settings; with `resume=false`, gives the sweep an unused directory.

        Raises:
            SystemExit: with code 2, when a setting is wrong.
        """
        self._settings, self._context, self._config = settings, context, config
        fast_loader(context)  # before the sweeper composes its jobs
        self.stop_rule: StopRule | None = None  # set by a sweeper that prunes
        self._task_function = task_function
        sweeper = str(config.hydra.sweeper._target_)
        self._hydras_sweeper = sweeper.endswith(".BasicSweeper")
        try:
            self._backend = make_backend(settings)
        except ValueError as error:
            refuse(error)
        if not (settings.wait or self._hydras_sweeper):
            refuse("hydra.launcher.wait=false has no results for this sweeper: leave wait out")
        moved_to = _unused_directory(self._sweep_dir) if settings.resume is False else None
        if moved_to is not None:
            with read_write(config), open_dict(config):
                config.hydra.sweep.dir = moved_to
        self._planner = Planner(settings, context, config, self._backend.resources, moved_to)
        # Hydra's sweeper replaces this file before it calls the launcher; `_restore` undoes that.
        multirun = self._sweep_dir / MULTIRUN
        self._multirun = multirun.read_bytes() if multirun.exists() else None

    @property
    def _sweep_dir(self) -> Path:
        return Path(str(self._config.hydra.sweep.dir))

    def __call__(self, overrides: Sequence[Sequence[str]], first_num: int) -> list[JobReturn]:
        """Runs the jobs, numbered from `first_num` in a directory without jobs.

        Raises:
            SystemExit: with code 2 when nothing could be started, 128 + signal when the sweep was
                stopped, and 1 when a job failed under Hydra's own sweeper.
        """
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        log.info(f"composing and checking {count_text(len(overrides), 'job')}")
        try:
            composed = self._planner.compose(overrides)
            jobs, indices = distinct(composed)
            if len(jobs) < len(composed):
                log.info(repeats_text(overrides, indices))
            results = self._results(jobs, first_num)
        except LauncherError as error:
            self._restore()
            fix = ""
            if isinstance(error, ConfigChangedError):
                fix = (
                    f"\n{self._sweep_dir} keeps the sweep it was made for: undo the change, give "
                    "the new sweep another name, or start a new directory with "
                    "hydra.launcher.resume=false"
                )
            refuse(f"{error}{fix}")
        except KeyboardInterrupt:  # while planning; `_run` handles signals when jobs run
            print("stopped before any job was started", file=sys.stderr)
            raise SystemExit(128 + signal.SIGINT) from None
        return [  # with the overrides of each job, which may share another one's result
            replace(results[i], overrides=[str(text) for text in job.config.hydra.overrides.task])
            for job, i in zip(composed, indices, strict=True)
        ]

    def _results(self, jobs: Sequence[Composed], first_num: int) -> list[JobReturn]:
        if self._settings.dry_run:
            plan = self._planner.plan(jobs, first_num)
            self._restore()
            where, resources = self._backend.where(plan), self._backend.resources
            for line in plan_lines(plan, resources, self._sweep_dir, where):
                log.info(line)
            return [unknown_return(job) for job in plan.jobs]
        with self._backend.locked(self._sweep_dir) as lock_fd:
            return self._run(self._planner.plan(jobs, first_num), lock_fd)

    def _restore(self) -> None:
        """Leaves the sweep's directory as it was before Hydra wrote its multirun.yaml."""
        if self._multirun is not None:
            (self._sweep_dir / MULTIRUN).write_bytes(self._multirun)
        elif not (self._sweep_dir / MANIFEST).exists():
            (self._sweep_dir / MULTIRUN).unlink(missing_ok=True)
            remove_empty(self._sweep_dir)

    def _run(self, plan: Plan, lock_fd: int) -> list[JobReturn]:
        self._planner.manifest = plan.manifest  # the next batch extends it
        write_manifest(self._sweep_dir, plan.manifest)
        done = f", {len(plan.done)} done already" if plan.done else ""
        resumed = f", {len(plan.resumed)} resume from a checkpoint" if plan.resumed else ""
        log.info(f"{count_text(len(plan.jobs), 'job')} in {self._sweep_dir}{done}{resumed}")
        if warning := oversubscribed_warning(plan, self._backend.resources):
            log.warning(warning)
        ending: list[int] = []
        saving: list[int] = []
        handlers = dict.fromkeys(ENDING, ending.append) | dict.fromkeys(SAVING, saving.append)
        verdicts: dict[int, Verdict] | None = {}
        try:
            with signal_handlers(handlers, keep_ignored=FOR_AGENT):
                if plan.order:
                    state = HydraState(self._task_function, self._context, Singleton.get_state())
                    verdicts = self._backend.run(
                        plan,
                        self._sweep_dir,
                        preparation(state, self._settings.preload),
                        lock_fd,
                        ending,
                        saving,
                        self.stop_rule,
                    )
        finally:
            write_index(self._sweep_dir)
        if verdicts is None:  # the jobs run elsewhere, and nobody waits for them
            return [unknown_return(job) for job in plan.jobs]
        return self._report(plan, verdicts, ending)

    def _report(
        self, plan: Plan, verdicts: Mapping[int, Verdict], signals: Sequence[int]
    ) -> list[JobReturn]:
        """Prints the jobs that did not complete; makes the results for the sweeper."""
        ends = {i: verdicts.get(i, NOT_STARTED) for i in plan.order}
        wanted = ("completed", "pruned")
        bad = [(plan.jobs[i], end) for i, end in ends.items() if end.state not in wanted]
        pruned = sum(end.state == "pruned" for end in ends.values())
        complete = f"{len(plan.jobs) - len(bad) - pruned} of {len(plan.jobs)} jobs are complete"
        log.info(f"{complete}, {pruned} pruned" if pruned else complete)
        if bad:
            print(failure_list(bad, len(plan.jobs)), file=sys.stderr, flush=True)
        # Hydra's own sweeper would print a traceback below the list.
        if bad and (signals or self._hydras_sweeper):
            resumable = sum(can_resume(job) for job, _ in bad)
            advice = resume_text(resume_command(plan.manifest), resumable)
            print(advice, file=sys.stderr, flush=True)
            raise SystemExit(128 + signals[0] if signals else 1)
        ends |= {i: Verdict("completed", value=value) for i, value in plan.done.items()}
        return [job_return(job, ends[i]) for i, job in enumerate(plan.jobs)]


def make_backend(settings: WalleLauncherConf) -> LocalBackend | WorkersBackend:
    """The backend of the settings; raises `ValueError` where it cannot work."""
    if sys.platform != "linux":
        raise ValueError(
            f"the walle launcher needs Linux to pin jobs and to end all their processes, and this "
            f"is {sys.platform}: use hydra/launcher=basic"
        )
    check_settings(settings)
    if settings.backend == "local":
        return LocalBackend(settings)
    return SlurmBackend(settings) if settings.backend == "slurm" else RayBackend(settings)


def refuse(error: Exception | str) -> NoReturn:
    """Ends the program with one message and exit code 2."""
    print(error, file=sys.stderr)
    raise SystemExit(BAD_INPUT)


def job_return(job: Job, verdict: Verdict) -> JobReturn:
    """How a job ended, in the form that Hydra's sweepers expect."""
    completed = verdict.state == "completed"
    error = JobFailedError(
        f"#{job.num} {job.label}: {ending_text(verdict)}; see {job.directory / LOG}"
    )
    error.state = verdict.state
    chdir = job.config.hydra.job.chdir  # null: Hydra changed its default with version 1.2
    moves = not version.base_at_least("1.2") if chdir is None else bool(chdir)
    return JobReturn(
        overrides=[str(override) for override in job.config.hydra.overrides.task],
        cfg=task_config(job.config),
        hydra_cfg=OmegaConf.masked_copy(job.config, "hydra"),
        working_dir=str(job.directory) if moves else os.getcwd(),
        task_name=JobRuntime.instance().get("name"),
        status=JobStatus.COMPLETED if completed else JobStatus.FAILED,
        _return_value=verdict.value if completed else error,
    )


def unknown_return(job: Job) -> JobReturn:
    """The result of a job that was only planned, or that continues elsewhere: no value."""
    overrides = [str(override) for override in job.config.hydra.overrides.task]
    return JobReturn(overrides=overrides, status=JobStatus.COMPLETED, _return_value=None)


def _unused_directory(sweep: Path) -> str | None:
    """`NAME-2`, `NAME-3` and so on when NAME holds a sweep; None when it does not."""
    if not (sweep / MANIFEST).exists():
        return None
    number = 2
    while Path(f"{sweep}-{number}").exists():
        number += 1
    return f"{sweep}-{number}"
