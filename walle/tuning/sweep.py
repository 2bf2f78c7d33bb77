"""A search from start to end: asks for settings, launches jobs, records their results.

Its study, a journal that several launchers may share, records the trials and their results.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from walle.errors import ConfigError, check_bounds
from walle.launcher.launch import JobFailedError, refuse
from walle.launcher.planning import (
    ChoiceSettings,
    Job,
    compose,
    hydra_config,
    quoted,
    validate,
    written_values,
)
from walle.launcher.records import MANIFEST, csv_text, python_scalar, same
from walle.system.files import write_atomically
from walle.system.format import count_text
from walle.system.identity import Flat, flatten
from walle.system.locks import locked_file
from walle.tuning.optimizers import make_pruner, make_sampler, read_evaluations, trial_stop_rule
from walle.tuning.settings import WalleOptunaConf
from walle.tuning.space import Space, plain, read_space, text

log = logging.getLogger(__name__)

JOURNAL, ASKING, SEARCHING = "study.journal", ".asking", ".search.lock"
SEARCH, SWEEP, JOBS, ERROR, OVERRIDES = "search", "sweep", "jobs", "error", "overrides"
EXHAUSTED = "exhausted"
WORDS = {"space": "the search space", "fixed": "the settings", "every": "eval.every"}
FAILED = {"failed", "interrupted"}  # interrupted: by somebody, while the search continues
BY_EVALUATION = (None, "eval", "best")  # values of `objective` that evaluations estimate
RESULTS, TRIALS, EXPERIMENT = "optimization_results.yaml", "trials.csv", "experiment/best.yaml"
PRIMARY = "config"  # the experiment holds what is different from it
NOT_SETTINGS = ("name", "seed")  # what an experiment leaves to its user


class Search:
    """Runs a search from Hydra's `setup` to the written results."""

    def __init__(
        self,
        settings: WalleOptunaConf,
        context: HydraContext,
        task_function: TaskFunction,
        config: DictConfig,
    ) -> None:
        self._settings, self._context, self._config = settings, context, config
        self._failures = 0
        self._written: int | None = None  # the number of the best trial when it was last written
        launcher = config.hydra.launcher
        exists = (Path(str(config.hydra.sweep.dir)) / MANIFEST).exists()
        if "resume" in launcher and launcher.resume is None and exists:  # a study always resumes
            with read_write(config), open_dict(config):
                launcher.resume = True
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task_function, config=config
        )

    def __call__(self, arguments: Sequence[str]) -> None:
        """Runs the trials still missing from the study.

        Raises:
            SystemExit: with code 2 when nothing could be started, 1 when too many jobs failed or no
                trial is complete, and 128 + signal when the search was stopped.
        """
        setup_globals()
        settings, context, config = self._settings, self._context, self._config
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._sweep = Path(str(config.hydra.sweep.dir))  # the launcher may have moved it
        try:
            check_bounds(settings, "hydra.sweeper")
            if "://" in (settings.storage or ""):
                storage = f"hydra.sweeper.storage={settings.storage}"
                refuse(f"{storage} is a URL: a study is in a file, such as study.journal")
            parser = OverridesParser.create(config_loader=context.config_loader)
            choices = ChoiceSettings(context, config, config.hydra.launcher.get("own_settings"))
            space = read_space(settings.params, arguments, parser)
            self._space = space = space._replace(resolved=choices.resolved)
            ends = [compose(context, config, space.overrides(end), ()) for end in space.ends()]
            typed = [*space.fixed, *(f"{key}={values}" for key, values in space.written.items())]
            choices.refuse_absent([typed], [job.config for job in ends])
            # With the fixed settings of `hydra.sweeper.params`, which `config` lacks.
            settled = ends[0].config
            self._seeds = read_seeds(settings, space, settled)
            check_optimizers(settings, space, self._launcher, settled)
            check_ends(ends, config, prunes=settings.pruner is not None)
            if config.hydra.launcher.get("dry_run"):  # the plan of the first trial
                for key, written in space.written.items():
                    log.info(f"searches {key.lstrip('+')}={written}")
                self._launcher.launch(self._jobs(next(space.ends())), initial_job_idx=0)
                return
            with only_search(self._sweep):
                ignored = ("name", *(config.hydra.launcher.get("hash_ignore") or ()))
                fixed = [kept for kept in space.fixed if kept.partition("=")[0] not in ignored]
                objective = settled.get("objective")
                usual = "minimize" if objective == "wall_s" else "maximize"
                search = {
                    "space": space.written,
                    "fixed": sorted(fixed),
                    "seeds": self._seeds,
                    "objective": objective,
                    "every": OmegaConf.select(settled, "eval.every"),
                }
                direction, values = settings.direction or usual, space.distributions
                self._study = Study(
                    self._sweep, settings, direction=direction, search=search, space=values
                )
                OmegaConf.save(config, self._sweep / "multirun.yaml")
                self._search()
        except ConfigError as error:
            refuse(error)
        except KeyboardInterrupt:  # the launcher hears those that arrive while jobs run
            print("the search was stopped; start it again to continue", file=sys.stderr)
            raise SystemExit(128 + signal.SIGINT) from None

    def _jobs(self, point: Any) -> list[list[str]]:
        """The overrides of each job of a trial."""
        overrides = self._space.overrides(point)
        if self._seeds is None:
            return [overrides]
        rest = [text for text in overrides if not text.lstrip("+").startswith("seed=")]
        return [[*rest, f"seed={seed}"] for seed in self._seeds]

    def _search(self) -> None:
        """Runs batches of trials until the study has all of them, or the time is up."""
        study = self._study
        recorded = study.study.get_trials(deepcopy=False)
        ended = sum(trial.state.is_finished() for trial in recorded)
        parts = [f"{ended} of {study.n_trials} trials have ended"] if ended else []
        if study.resumed:
            parts.append(f"{count_text(study.resumed, 'interrupted trial')} will resume")
        log.info("; ".join([f"study {study.journal}", *parts]))
        if ended >= study.n_trials and not study.resumed:
            log.info(f"raise hydra.sweeper.n_trials={study.n_trials} to continue the search")
        start_s, limit_s = time.monotonic(), self._settings.timeout_s
        try:
            while trials := study.ask(self._settings.n_jobs):
                self._run(trials)
                self._write()
                if limit_s is not None and time.monotonic() - start_s > limit_s:
                    log.info(f"no further trial: hydra.sweeper.timeout_s={limit_s:g} have passed")
                    break
        finally:
            self._write()
        if study.exhausted:
            log.info("the sampler has tried every point of the search space")
        if others := study.elsewhere():
            log.info(f"trials of other launchers have not ended: {', '.join(others)}")
        best = study.best()
        if best is None:
            print("no trial is complete, so there are no best settings", file=sys.stderr)
            raise SystemExit(1)
        log.info(f"best: trial {best.number} with {best.value:.6g}; see {self._sweep}")

    def _run(self, trials: Sequence[Trial]) -> None:
        """Launches the jobs of some trials, and records in the study how they ended."""
        jobs: dict[Trial, list[list[str]]] = {}
        for trial in trials:
            overrides = self._space.overrides(trial.params)
            reason = None
            if self._config.hydra.launcher.get("validate"):  # else there is no need to compose it
                job = compose(self._context, self._config, overrides, ())
                reason = refusal(job, self._config)
            if reason is None:
                jobs[trial] = self._jobs(trial.params)
            else:  # no job can have the trial's settings
                self._failures += 1
                self._study.tell(trial, overrides, [], reason)
        if jobs:
            if self._settings.pruner is not None:
                owners = [(tuple(job), trial) for trial, texts in jobs.items() for job in texts]
                launcher: Any = self._launcher  # `check_optimizers` has looked at it
                launcher.watch(trial_stop_rule(dict(reversed(owners))))
            listed = [job for texts in jobs.values() for job in texts]
            # The number of the next job, for launchers that keep no record of the directory.
            numbers = [int(path.name) for path in self._sweep.glob("*") if path.name.isdigit()]
            first_num = 1 + max(numbers, default=-1)
            results = list(self._launcher.launch(listed, initial_job_idx=first_num))
            for trial, texts in jobs.items():
                ends = [job_end(results.pop(0), self._sweep) for _ in texts]
                self._failures += sum(end.state == "failed" for end in ends)
                self._study.tell(trial, self._space.overrides(trial.params), ends)
        most = self._config.hydra.launcher.get("max_failures")
        if most is not None and self._failures >= most:
            print(
                f"{count_text(self._failures, 'job')} failed, and the launcher allows no more: the "
                "search ends; start it again to continue",
                file=sys.stderr,
            )
            raise SystemExit(1)

    def _write(self) -> None:
        """Writes trials.csv, and also the best settings if another trial has become the best."""
        study, best = self._study, self._study.best()
        write_atomically(self._sweep / TRIALS, trial_table(study))
        if best is None or best.number == self._written:
            return
        self._written = best.number
        results = {
            "name": "optuna",
            "best_params": {key: plain(value) for key, value in best.params.items()},
            "best_value": best.value,
            "best_trial": best.number,
            "journal": os.path.relpath(study.journal, self._sweep),
            "study": study.study.study_name,
        }
        write_atomically(self._sweep / RESULTS, OmegaConf.to_yaml(OmegaConf.create(results)))
        (self._sweep / EXPERIMENT).parent.mkdir(exist_ok=True)
        seeds = f", the median over the seeds {self._seeds}" if self._seeds else ""
        trial = f"Trial {best.number} of {study.n_trials} of {study.journal.name}"
        head = f"# @package _global_\n# {trial}: {best.value:.6g}{seeds}.\n"
        settings = best_settings(best, self._context, self._config)
        write_atomically(self._sweep / EXPERIMENT, head + OmegaConf.to_yaml(settings))


def trial_table(study: Study) -> str:
    """The content of trials.csv."""
    rows = [
        {
            "trial": trial.number,
            "state": trial.state.name.lower(),
            "value": trial.value if trial.state == TrialState.COMPLETE else None,
            **{key: text(value) for key, value in trial.params.items()},
            "evaluations": len(trial.intermediate_values),
            "last_evaluation": trial.intermediate_values.get(trial.last_step or 0),
            "duration_s": trial.duration and round(trial.duration.total_seconds(), 1),
            "launcher": trial.user_attrs.get(SWEEP),
            "jobs": " ".join(trial.user_attrs.get(JOBS, [])),
            "error": trial.user_attrs.get(ERROR),
        }
        for trial in study.study.get_trials(deepcopy=False)
    ]
    return csv_text(rows, first=("trial", "state", "value"))


def best_settings(best: FrozenTrial, context: HydraContext, config: DictConfig) -> DictConfig:
    """The best trial's settings as an experiment.

    It holds the searched settings and any others that differ from the config named `config`. An
    application without a config of this name has no defaults to compare with.
    """
    loader: Any = context.config_loader
    job = loader.load_sweep_config(config, list(best.user_attrs.get(OVERRIDES, [])))
    groups: dict[str, str] = {}
    before: Flat = {}
    if loader.repository.config_exists(PRIMARY):
        where = [f"hydra.searchpath=[{','.join(map(quoted, config.hydra.searchpath))}]"]
        found = loader.load_configuration(PRIMARY, where, run_mode=RunMode.RUN)
        usual = found.hydra.runtime.choices
        groups = {
            str(key): str(option)
            for key, option in job.hydra.runtime.choices.items()
            if "/" not in str(key) and key in usual and usual[key] != option
        }
        chosen = [f"{key}={option}" for key, option in groups.items()]
        primary = loader.load_configuration(PRIMARY, [*where, *chosen], run_mode=RunMode.RUN)
        before = flatten(written_values(primary))
    content = OmegaConf.create({})
    if groups:
        content.defaults = [{f"override /{key}": option} for key, option in groups.items()]
    absent, searched = object(), {key.lstrip("+") for key in best.params}
    for key, value in flatten(written_values(job)).items():
        differs = key not in NOT_SETTINGS and not same(before.get(key, absent), value)
        if key in searched or differs:
            OmegaConf.update(content, key, value)
    return content


def job_end(result: JobReturn, sweep: Path) -> JobEnd:
    """How a job ended, from what the launcher returned."""
    if result.cfg is None or result.hydra_cfg is None:
        raise TypeError("the launcher returned a job without its configuration")
    config = deepcopy(result.hydra_cfg)
    with read_write(config), open_dict(config):
        config.merge_with(result.cfg)  # the directory's name may hold any of the settings
    with hydra_config(config):
        directory = sweep / str(config.hydra.sweep.subdir)
    value = python_scalar(result._return_value)
    if result.status == JobStatus.COMPLETED:
        every = OmegaConf.select(result.cfg, "eval.every")
        return JobEnd("completed", value, directory, read_evaluations(directory, every))
    return JobEnd(value.state if isinstance(value, JobFailedError) else "failed", value, directory)


def read_seeds(settings: WalleOptunaConf, space: Space, config: DictConfig) -> list[int] | None:
    """The seeds of each trial; None if jobs keep their seed."""
    if "seed" in space.distributions:
        raise ConfigError(
            f"seed={space.written['seed']}: the best seed says nothing about settings; for the "
            "median over seeds give hydra.sweeper.seeds=[1,2,3]"
        )
    fixed = [text for text in space.fixed if text.lstrip("+").startswith("seed=")]
    if fixed and isinstance(settings.seeds, list):
        raise ConfigError(
            f"{fixed[0]} contradicts hydra.sweeper.seeds={settings.seeds}: drop one of the two"
        )
    if settings.seeds is None:
        return None
    listed = settings.seeds if isinstance(settings.seeds, list) else []
    if type(settings.seeds) is int and settings.seeds > 0:
        first = int(config.get("seed") or 0)
        listed = list(range(first, first + settings.seeds))
    if not listed or len({seed for seed in listed if type(seed) is int}) < len(listed):
        raise ConfigError(
            f"hydra.sweeper.seeds={settings.seeds}: give a list of different whole numbers, as in "
            "[1,2,3], or how many"
        )
    return listed


def check_optimizers(
    settings: WalleOptunaConf, space: Space, launcher: Any, config: DictConfig
) -> None:
    """Makes a sampler and the pruner, to find wrong options.

    Raises:
        ConfigError: an option is wrong, the launcher cannot stop jobs, or evaluations do not show
            the objective.
    """
    make_sampler(settings.sampler, settings.seed, 0, space.distributions)
    make_pruner(settings.pruner)
    if settings.pruner is None:
        return
    what, objective = f"hydra.sweeper.pruner={settings.pruner}", config.get("objective")
    if not hasattr(launcher, "watch"):
        raise ConfigError(
            f"{what}: {type(launcher).__name__} cannot stop jobs; use hydra/launcher=walle, or "
            "leave the pruner out"
        )
    if objective not in BY_EVALUATION:
        raise ConfigError(
            f"{what} compares evaluations, which say nothing of objective={objective}; leave the "
            "pruner out"
        )


def check_ends(jobs: Sequence[Job], config: DictConfig, *, prunes: bool = False) -> None:
    """Checks the jobs at the ends of the search space.

    Raises:
        ConfigError: none of these jobs can run, or there is a pruner and none of them evaluates
            its policy before its last step.
    """
    refused = [refusal(job, config) for job in jobs]
    if all(refused):
        raise ConfigError(f"no end of the search space can run: {refused[0]}")
    settings, names = [job.identity.config for job in jobs], ("eval.every", "total_steps")
    if not prunes or not all({*names, "eval.episodes"} <= keys.keys() for keys in settings):
        return  # another application: unknown
    pairs = [(k["eval.episodes"] and k["eval.every"], k["total_steps"]) for k in settings]
    if not any(every and float(every) < float(total) for every, total in pairs):
        shown = ", ".join(f"{name}={settings[0][name]}" for name in (*names, "eval.episodes"))
        raise ConfigError(
            "hydra.sweeper.pruner would prune nothing: a job has no evaluation before its end, by "
            f"{shown}; use a smaller eval.every, or leave the pruner out"
        )


def refusal(job: Job, config: DictConfig) -> str | None:
    """Why the launcher's `validate` refuses a job; None if it does not."""
    try:
        validate([job], config.hydra.launcher.get("validate"))
    except ConfigError as error:
        return str(error).removeprefix(f"{' '.join(job.identity.overrides)}: ")
    return None


class JobEnd(NamedTuple):
    """How a job of a trial ended."""

    state: str  # completed, failed, pruned, interrupted or pending
    value: Any  # what it returned, or the error of a job that did not complete
    directory: Path  # where it wrote
    evaluations: Mapping[int, float] = {}  # of a complete job: the mean returns, by their numbers


def only_search(sweep: Path) -> AbstractContextManager[int]:
    """Locks a sweep's directory against other searches, or raises `ConfigError`."""
    sweep.mkdir(parents=True, exist_ok=True)
    error = ConfigError(
        f"another search is running in {sweep}: wait for it or end it; to share its study, use "
        "another name and the same hydra.sweeper.storage"
    )
    return locked_file(sweep / SEARCHING, 0.0, refusal=lambda _: error)


class Study:
    """A study in a journal, as one launcher sees it."""

    def __init__(
        self,
        sweep: Path,
        settings: WalleOptunaConf,
        *,
        direction: str,
        search: Mapping[str, Any],
        space: Mapping[str, BaseDistribution],
    ) -> None:
        """Opens the study; makes it if the journal does not hold it.

        All launchers of a study must have the same `search`, compared as JSON.

        Raises ConfigError if the journal holds another study of this name, or is damaged.
        """
        self.journal = Path(settings.storage) if settings.storage else sweep / JOURNAL
        self._settings, self._space, self.n_trials = settings, space, settings.n_trials
        self._home = self.journal.absolute().parent
        self._sweep = os.path.relpath(sweep.absolute(), self._home)
        self._home.mkdir(parents=True, exist_ok=True)
        with locked_file(Path(f"{self.journal}{ASKING}")):
            self.study = _opened(self.journal, settings, direction)
            wanted = json.loads(json.dumps({**search, "direction": direction}))
            recorded = self.study.user_attrs.get(SEARCH)
            if recorded is None:
                self.study.set_user_attr(SEARCH, wanted)
            elif keys := [key for key in wanted if wanted[key] != recorded.get(key)]:
                key = keys[0]
                before, now = (json.dumps(content.get(key)) for content in (recorded, wanted))
                raise ConfigError(
                    f"{self.journal} holds a study with {WORDS.get(key, key)} {before}, not {now}; "
                    "undo the change, or give the new study another name (or "
                    "hydra.sweeper.study_name)"
                )
            running = self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
            # A trial without a launcher belongs to one that was killed while asking for this trial.
            launchers = (self._sweep, None)
            mine = [trial for trial in running if trial.user_attrs.get(SWEEP) in launchers]
        self._interrupted = [Trial(self.study, trial._trial_id) for trial in mine]
        self.resumed = len(self._interrupted)

    def ask(self, count: int) -> list[Trial]:
        """The next trials, at most `count`: first those that were interrupted in an earlier launch.

        Each has a value for every key of the search space; a trial keeps existing values.
        """
        sampler, seed = self._settings.sampler, self._settings.seed
        trials = [self._interrupted.pop(0) for _ in range(min(count, len(self._interrupted)))]
        with locked_file(Path(f"{self.journal}{ASKING}")):  # one launcher at a time counts and asks
            for i, trial in enumerate(trials):
                if trial.params.keys() >= self._space.keys():
                    continue
                # It was interrupted before it had all its values: they are those of its sampler.
                self.study.sampler = make_sampler(sampler, seed, trial.number, self._space)
                trials[i] = Trial(self.study, trial._trial_id)
                for key, values in self._space.items():
                    trials[i]._suggest(key, values)
            # Somebody may have put trials into the queue, to be asked for first.
            waiting = self.study.get_trials(deepcopy=False, states=[TrialState.WAITING])
            started = len(self.study.get_trials(deepcopy=False)) - len(waiting)
            last = started if self.exhausted else min(started + count - len(trials), self.n_trials)
            for number in range(started, last):
                self.study.sampler = make_sampler(sampler, seed, number, self._space)
                trials.append(self.study.ask({**self._space}))
                trials[-1].set_user_attr(SWEEP, self._sweep)
        return trials

    def tell(
        self, trial: Trial, overrides: Sequence[str], ends: Sequence[JobEnd], refused: str = ""
    ) -> TrialState:
        """Records how the jobs of a trial ended; a trial with unfinished jobs resumes later.

        A trial that was `refused` has no jobs.
        """
        directories = [os.path.relpath(end.directory.absolute(), self._home) for end in ends]
        trial.set_user_attr(JOBS, directories)
        trial.set_user_attr(OVERRIDES, list(overrides))
        states = {end.state for end in ends}
        if "pending" in states and not states & FAILED:  # the launcher was stopped before
            return TrialState.RUNNING
        errors = [refused] if refused else [str(end.value) for end in ends if end.state in FAILED]
        state = TrialState.FAIL
        value: float | None = None
        if ends and not errors and "pruned" in states:
            state = TrialState.PRUNED
        elif ends and not errors:
            errors = [
                f"{end.directory} returned {end.value!r}, which is no number: a search needs one; "
                "for walle see objective and eval.episodes"
                for end in ends
                if not isinstance(end.value, int | float) or end.value != end.value
            ]
            if not errors:
                state = TrialState.COMPLETE
                value = float(statistics.median(end.value for end in ends))
                known = self.study.get_trials(deepcopy=False)[trial.number].intermediate_values
                common = set.intersection(*({*end.evaluations} for end in ends)) - {*known}
                for step in sorted(common):  # a pruner has reported all but the last
                    trial.report(statistics.median(end.evaluations[step] for end in ends), step)
        if errors:
            trial.set_user_attr(ERROR, errors[0])
        try:
            self.study.tell(trial, value, state)
        except RuntimeError as error:  # raised by a sampler without further points
            if "Study.stop" not in str(error):
                raise
            self.study.set_user_attr(EXHAUSTED, True)
        what = "pruned" if state == TrialState.PRUNED else f"failed: {next(iter(errors), None)}"
        if value is not None:
            what = f"{value:.6g}"
        best = self.best()
        so_far = f", best {best.value:.6g} (trial {best.number})" if best else ""
        values = " ".join(f"{key}={text(value)}" for key, value in trial.params.items())
        log.info(f"trial {trial.number} of {self.n_trials}: {what}{so_far}: {values}")
        return state

    @property
    def exhausted(self) -> bool:
        """Whether the sampler has tried every point."""
        return EXHAUSTED in self.study.user_attrs

    def elsewhere(self) -> list[str]:
        """The directories of other launchers with unfinished trials."""
        running = self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
        return sorted({str(trial.user_attrs.get(SWEEP)) for trial in running} - {self._sweep})

    def best(self) -> FrozenTrial | None:
        """The best trial; None before one is complete."""
        try:
            return self.study.best_trial
        except ValueError:
            return None


class JournalLock(JournalFileOpenLock):
    """Lock of the journal: unlike those of Optuna, it is released when its process is killed.

    Its holder sees only complete lines: Optuna fails at a line left incomplete by a killed process.
    """

    def __init__(self, journal: Path) -> None:
        super().__init__(str(journal))
        self._journal = journal

    def acquire(self) -> bool:
        """Waits for the lock."""
        holder = locked_file(self._journal)
        file = holder.__enter__()
        self._holder = holder  # only now: until now, other threads may have held the lock
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            lines = os.pread(file, size, 0)
            if not lines.startswith(b'{"op_code"'):
                self.release()
                raise ValueError("its last line is incomplete, and its first one not Optuna's")
            os.ftruncate(file, lines.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Releases the lock."""
        self._holder.__exit__(None, None, None)


def _opened(journal: Path, settings: WalleOptunaConf, direction: str) -> optuna.Study:
    pruner = make_pruner(settings.pruner)
    try:
        storage = JournalStorage(JournalFileBackend(str(journal), JournalLock(journal)))
        return optuna.create_study(
            study_name=settings.study_name,
            storage=storage,
            direction=optuna.study.StudyDirection[direction.upper()],
            pruner=pruner,
            load_if_exists=True,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{journal} is no journal of Optuna, or damaged ({error}); give another file with "
            "hydra.sweeper.storage"
        ) from error
