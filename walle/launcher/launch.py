"""A launch from start to end: plan, refuse or resume, run, write the records, report."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from hydra import version
from hydra.core.utils import JobReturn, JobRuntime, JobStatus, configure_log, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from walle.errors import ConfigError
from walle.launcher import planning, records
from walle.launcher.allocation import thread_settings
from walle.launcher.jobs import Verdict, preparation
from walle.launcher.planning import Job, Plan, StopRule, can_resume, fast_loader
from walle.launcher.records import MANIFEST, Manifest
from walle.launcher.screen import alike, ending_text
from walle.launcher.settings import DEFAULT_REPEAT, WalleLauncherConf, check_settings
from walle.launcher.workers.backend import (
    LOST,
    LocalBackend,
    Run,
    SlurmBackend,
    WorkersBackend,
)
from walle.launcher.workers.ray_backend import RayBackend
from walle.system.commands import command_line
from walle.system.forkserver import without_collector
from walle.system.format import count_text, ranges_text
from walle.system.identity import as_json
from walle.system.run_files import read_status, remove_empty
from walle.system.signals import ENDING, FOR_AGENT, SAVING, leave_terminal, signal_handlers
from walle.timing import timestamp

log = logging.getLogger(__name__)

MULTIRUN = "multirun.yaml"
BAD_INPUT = 2
NOT_STARTED = Verdict("pending", "not started: the sweep was stopped before its turn")


class JobFailedError(RuntimeError):
    """Raised when the sweeper reads the return value of a job that did not complete."""

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
        """Checks the settings; ends with code 2 when one is wrong.

        With `resume=false`, chooses an unused directory for the sweep.
        """
        self._settings, self._context, self._config = settings, context, config
        loader = fast_loader(context)  # before the sweeper composes its jobs
        self.stop_rule: StopRule | None = None  # set by a sweeper that prunes
        self._task_function = task_function
        self._hydras_sweeper = str(config.hydra.sweeper._target_).endswith(".BasicSweeper")
        if self._hydras_sweeper:  # which composes jobs before it launches them
            loader.refused = self._restore
        # To a search failures are results too: it continues however many there are.
        if not self._hydras_sweeper and settings.max_failures is None:
            settings = replace(settings, max_failures=sys.maxsize)
        try:
            self._backend = make_backend(settings)
        except ValueError as error:
            refuse(error)
        if not (settings.wait or self._hydras_sweeper):
            refuse("hydra.launcher.wait=false has no results for this sweeper: leave wait out")
        self._moved_to: str | None = None  # the sweep's directory if it is a new one
        if settings.resume is False and (self._sweep / MANIFEST).exists():
            unused = (f"{self._sweep}-{number}" for number in count(2))
            self._moved_to = next(path for path in unused if not Path(path).exists())
            with read_write(config), open_dict(config):
                config.hydra.sweep.dir = self._moved_to
        resume, name = settings.resume, config.get("name")
        self._resumes = bool(name) if resume is None else resume  # skips what is complete
        self._manifest: Manifest | None = None  # of this launch's earlier batches
        # Hydra's sweeper replaces this file before it calls the launcher; `_restore` undoes that.
        multirun = self._sweep / MULTIRUN
        self._multirun = multirun.read_bytes() if multirun.exists() else None

    @property
    def _sweep(self) -> Path:
        return Path(str(self._config.hydra.sweep.dir))

    def __call__(self, overrides: Sequence[Sequence[str]], first_num: int) -> list[JobReturn]:
        """Runs the jobs; in a directory without jobs, their numbers start at `first_num`.

        Ends with code 2 when nothing could be started, 128 + signal when the sweep was stopped, and
        1 when a job failed under Hydra's own sweeper.
        """
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        log.info(f"composing and checking {count_text(len(overrides), 'job')}")
        try:
            composed = self._compose(overrides)
            jobs, indices = planning.distinct(composed)
            if len(jobs) < len(composed):
                log.info(repeats_text(overrides, indices))
            results = self._results(jobs, first_num)
        except ConfigError as error:
            self._restore()
            refuse(error)
        except KeyboardInterrupt:  # while planning; `_run` handles signals when jobs run
            which = "any" if self._manifest is None else "another"
            print(f"stopped before {which} job was started", file=sys.stderr)
            logging.disable()  # else torch reports on its caches at exit
            raise SystemExit(128 + signal.SIGINT) from None
        return [  # each with the job's own overrides, though jobs may share a result
            replace(results[i], overrides=[str(text) for text in job.config.hydra.overrides.task])
            for job, i in zip(composed, indices, strict=True)
        ]

    @without_collector()
    def _compose(self, overrides: Sequence[Sequence[str]]) -> list[Job]:
        if not overrides:
            raise ConfigError("the sweep has no jobs: one of its settings has no values")
        context, config, ignore = self._context, self._config, self._settings.hash_ignore
        own = planning.ChoiceSettings(context, config, self._settings.own_settings)
        resolved = [own.resolved(job) for job in overrides]
        composed = [planning.compose(context, config, job, ignore) for job in resolved]
        own.refuse_absent(overrides, [job.config for job in composed])
        planning.validate(composed, self._settings.validate)
        return composed

    def _results(self, jobs: Sequence[Job], first_num: int) -> list[JobReturn]:
        if self._settings.dry_run:
            plan = self._plan(jobs, first_num)
            self._restore()
            where, resources = self._backend.where(plan), self._backend.resources
            for line in planning.plan_lines(plan, resources, self._sweep, where):
                log.info(line)
            return [job_return(job, None) for job in plan.jobs]
        with self._backend.locked(self._sweep):
            return self._run(self._plan(jobs, first_num))

    def _plan(self, composed: Sequence[Job], first_num: int) -> Plan:
        """Numbers the jobs (in an empty directory from `first_num`); finds the complete ones."""
        settings, resources = self._settings, self._backend.resources
        before = self._manifest or Manifest((), {}, (), ())
        if self._manifest is None and self._resumes and (self._sweep / MANIFEST).exists():
            before = records.read_manifest(self._sweep)
        known = [job.identity for job in before.jobs]
        composed = planning.without_new_keys(known, composed)
        wanted = [job.identity for job in composed]
        overrides = [job.overrides for job in wanted]
        swept = planning.swept_keys(self._context, self._config, overrides).union(before.swept)
        if self._manifest is None:  # a later batch is always a part of this sweep
            loader = self._context.config_loader
            searched = () if self._hydras_sweeper else swept
            groups = [key for key in searched if planning.group_options(loader, self._config, key)]
            planning.refuse_other_base(known, wanted, swept, groups)
        nums = planning.assign_numbers(known, wanted, first_num)
        jobs = planning.numbered(composed, nums, swept, self._moved_to, resources.gpus)
        recorded = {job.identity.num: job for job in before.jobs}
        done = {}
        for index, job in enumerate(jobs):
            status = read_status(job.directory) if job.num in recorded else {}
            if records.is_done(status, job.identity.config_hash):
                done[index] = status["return_value"]
        exclusive = settings.exclusive
        if exclusive is None:
            alone = len(jobs) > 1 and all(job.need.cores is None for job in jobs)
            exclusive = alone or planning.compares_times(jobs, swept)
        advice = planning.side_by_side(jobs, swept, len(resources.cores))
        if advice and settings.exclusive is not True and self._manifest is None:
            log.info(advice)
        order_name = settings.order or ("blocks" if exclusive else "interleaved")
        key, configs = settings.repeat, [job.config for job in wanted]
        if key != DEFAULT_REPEAT and not any(key in config for config in configs):
            raise ConfigError(
                f"hydra.launcher.repeat={key} is no key of the jobs' configs: name the key that "
                f"distinguishes the repeats of a setting, such as {DEFAULT_REPEAT}"
            )
        blocks = {  # a repeat of an earlier launch keeps its number
            as_json(job.identity.config.get(key)): job.block
            for job in before.jobs
            if job.block is not None
        }
        values = [as_json(config.get(key)) for config in configs]
        for value in values:
            blocks.setdefault(value, 1 + max(blocks.values(), default=-1))
        repeats = [blocks[value] for value in values]
        in_blocks = order_name == "blocks"
        jobs = [
            job._replace(need=job.need._replace(turn=n), block=n if in_blocks else None)
            for job, n in zip(jobs, repeats, strict=True)
        ]
        order = [i for i in planning.in_order(repeats, order_name) if i not in done]
        resumed = [i for i in order if jobs[i].num in recorded and can_resume(jobs[i])]
        for index, job in enumerate(jobs):
            path = os.path.relpath(job.directory, self._sweep)
            block = recorded[job.num].block if index in done else job.block
            recorded[job.num] = records.JobRecord(job.identity, path, job.need.cores, block)
        name = self._config.get("name")
        to_resume: list[str] = []  # a named sweep resumes without further overrides
        if not (self._resumes and name and str(name) in self._sweep.parts):
            directory = f"hydra.sweep.dir={planning.quoted(str(self._sweep))}"
            to_resume = [directory, "hydra.launcher.resume=true"]
        launch = {
            "started": timestamp(),
            "command": command_line(),
            "to_resume": [text for text in to_resume if text not in sys.orig_argv],
            "directory": os.getcwd(),
            "host": os.uname().nodename,
            "order": [jobs[index].num for index in order],
        }
        choices: dict[str, Any] = {
            "order": order_name,
            "repeat": key,
            "exclusive": exclusive,
            "cores": resources.cores,
            "gpus": resources.gpus,
            "threads": thread_settings(settings.threads),
        }
        ordered = tuple(recorded[num] for num in sorted(recorded))
        manifest = Manifest(tuple(sorted(swept)), choices, ordered, (*before.launches, launch))
        return Plan(jobs, done, order, resumed, manifest, exclusive)

    def _restore(self) -> None:
        """Leaves the sweep's directory as it was before Hydra wrote its multirun.yaml."""
        if self._manifest is not None:
            return  # earlier batches have run
        if self._multirun is not None:
            (self._sweep / MULTIRUN).write_bytes(self._multirun)
        elif not (self._sweep / MANIFEST).exists():
            (self._sweep / MULTIRUN).unlink(missing_ok=True)
            remove_empty(self._sweep)

    def _run(self, plan: Plan) -> list[JobReturn]:
        self._manifest = plan.manifest  # the next batch extends it
        records.write_manifest(self._sweep, plan.manifest)
        done = f", {len(plan.done)} done already" if plan.done else ""
        resumed = f", {len(plan.resumed)} resume from a checkpoint" if plan.resumed else ""
        log.info(f"{count_text(len(plan.jobs), 'job')} in {self._sweep}{done}{resumed}")
        jobs, cores = [plan.jobs[index] for index in plan.order], len(self._backend.resources.cores)
        if large := [f"#{job.num}" for job in jobs if (job.need.cores or 0) > cores > 0]:
            log.warning(
                f"{', '.join(large)} need more than the sweep's {cores} cores: each of them runs "
                "alone, and index.csv marks it oversubscribed"
            )
        ending: list[int] = []
        saving: list[int] = []

        def end(number: int) -> None:
            if number == signal.SIGHUP:
                leave_terminal()
            ending.append(number)

        handlers = dict.fromkeys(ENDING, end) | dict.fromkeys(SAVING, saving.append)
        verdicts: dict[int, Verdict] | None = {}
        try:
            with signal_handlers(handlers, keep_ignored=FOR_AGENT):
                if plan.order:
                    preload = self._settings.preload
                    prepared = preparation(self._task_function, self._context, preload)
                    run = Run(plan, self._sweep, prepared, ending, saving, self.stop_rule)
                    verdicts = self._backend.run(run)
        finally:
            records.write_index(self._sweep)
        if verdicts is None:  # the jobs run elsewhere, and nobody waits for them
            return [job_return(job, None) for job in plan.jobs]
        return self._report(plan, verdicts, ending)

    def _report(
        self, plan: Plan, verdicts: Mapping[int, Verdict], signals: Sequence[int]
    ) -> list[JobReturn]:
        """Prints the jobs that did not complete; makes the results for the sweeper."""
        ends = {i: verdicts.get(i, NOT_STARTED) for i in plan.order}
        bad = [(plan.jobs[i], e) for i, e in ends.items() if e.state not in ("completed", "pruned")]
        bad.sort(key=lambda job_and_end: job_and_end[0].num)
        pruned = sum(end.state == "pruned" for end in ends.values())
        complete = f"{len(plan.jobs) - len(bad) - pruned} of {len(plan.jobs)} jobs are complete"
        log.info(f"{complete}, {pruned} pruned" if pruned else complete)
        if bad:
            lines = [f"{len(bad)} of {len(plan.jobs)} jobs did not complete:"]
            first: dict[str, int] = {}  # the number of the first job that failed, by cause
            for job, end in bad:
                if end.state != "pending":
                    ending = ending_text(alike(first, job.num, end))
                    lines += [f"  #{job.num} {job.label}: {ending}", f"      {job.directory}"]
            if waiting := [job.num for job, end in bad if end.state == "pending"]:
                numbers = ranges_text(waiting)
                lines.append(f"  #{numbers}: not started: the sweep was stopped before")
            print("\n".join(lines), file=sys.stderr, flush=True)
        # Hydra's own sweeper would print a traceback below the list, and a search take the jobs of
        # workers that vanished for results, and go on after a Ctrl-C.
        goes_on = not (self._hydras_sweeper or LOST in ends.values())
        if (bad and not goes_on) or (signals and (bad or goes_on)):
            resumable = sum(can_resume(job) for job, _ in bad)
            print(records.resume_text(plan.manifest, resumable), file=sys.stderr, flush=True)
            raise SystemExit(128 + signals[0] if signals else 1)
        ends |= {i: Verdict("completed", value=value) for i, value in plan.done.items()}
        return [job_return(job, ends[i]) for i, job in enumerate(plan.jobs)]


def make_backend(settings: WalleLauncherConf) -> LocalBackend | WorkersBackend:
    """The backend of the settings; raises `ValueError` if it cannot work."""
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
    print(f"walle: {error}", file=sys.stderr)
    raise SystemExit(BAD_INPUT)


def repeats_text(overrides: Sequence[Sequence[str]], indices: Sequence[int]) -> str:
    """One line about jobs that repeat another job's configuration: those with equal `indices`."""
    groups: dict[int, list[str]] = {}
    for job, index in zip(overrides, indices, strict=True):
        text = " ".join(override.removeprefix("++") for override in job)
        groups.setdefault(index, []).append(text or "no overrides")
    repeated = [", ".join(group) for group in groups.values() if len(group) > 1]
    more = [f"and {len(repeated) - 3} more"] if len(repeated) > 3 else []
    return (
        f"{len(overrides) - len(groups)} of {len(overrides)} jobs repeat the configuration of "
        f"another job, and are not run a second time: {'; '.join([*repeated[:3], *more])}"
    )


def job_return(job: Job, verdict: Verdict | None) -> JobReturn:
    """How a job ended, in the form that Hydra's sweepers expect.

    Without a verdict the job was only planned or runs elsewhere, and has no value.
    """
    overrides = [str(override) for override in job.config.hydra.overrides.task]
    if verdict is None:
        return JobReturn(overrides=overrides, status=JobStatus.COMPLETED, _return_value=None)
    completed = verdict.state == "completed"
    error = JobFailedError(
        f"#{job.num} {job.label}: {ending_text(verdict)}; see {job.directory / records.LOG}"
    )
    error.state = verdict.state
    chdir = job.config.hydra.job.chdir  # null: Hydra changed its default with version 1.2
    moves = not version.base_at_least("1.2") if chdir is None else bool(chdir)
    return JobReturn(
        overrides=overrides,
        cfg=planning.task_config(job.config),
        hydra_cfg=OmegaConf.masked_copy(job.config, "hydra"),
        working_dir=str(job.directory) if moves else os.getcwd(),
        task_name=JobRuntime.instance().get("name"),
        status=JobStatus.COMPLETED if completed else JobStatus.FAILED,
        _return_value=verdict.value if completed else error,
    )
