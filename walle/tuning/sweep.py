"""A search from start to end: asks for settings, launches jobs, records their results."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from optuna.pruners import BasePruner
from optuna.trial import Trial, TrialState

from walle.errors import ConfigError
from walle.launcher.composing import Composed, compose, hydra_config, validate
from walle.launcher.launch import JobFailedError
from walle.launcher.records import MANIFEST
from walle.system.format import count_text
from walle.tuning.optimizers import make_pruner, make_sampler
from walle.tuning.pruning import TrialPruner
from walle.tuning.results import Results
from walle.tuning.settings import WalleOptunaConf, check_settings, seeds_of
from walle.tuning.space import Space, read_space
from walle.tuning.study import ERROR, JOURNAL, JobEnd, Study, only_search

log = logging.getLogger(__name__)

BAD_INPUT = 2
BY_EVALUATION = (None, "eval", "best")  # values of `objective` that evaluations show in advance


@contextmanager
def _refusing() -> Iterator[None]:
    """Ends the program with one line and code 2 where settings cannot work."""
    try:
        yield
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise SystemExit(BAD_INPUT) from None


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
        with _refusing():
            check_settings(settings)
        launcher = config.hydra.launcher
        exists = (Path(str(config.hydra.sweep.dir)) / MANIFEST).exists()
        if "resume" in launcher and launcher.resume is None and exists:  # a study always resumes
            with read_write(config), open_dict(config):
                launcher.resume = True
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task_function, config=config
        )

    def __call__(self, arguments: Sequence[str]) -> None:
        """Runs the trials that the study still lacks.

        Raises:
            SystemExit: with code 2 when nothing could be started, 1 when too many jobs failed or no
                trial is complete, and 128 + signal when the search was stopped.
        """
        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._sweep = Path(str(self._config.hydra.sweep.dir))  # the launcher may have moved it
        with _refusing():
            parser = OverridesParser.create(config_loader=self._context.config_loader)
            self._space = read_space(self._settings.params, arguments, parser)
            self._seeds = read_seeds(self._settings, self._space, self._config)
            self._pruner = checked_pruner(self._settings, self._space, self._launcher, self._config)
            prunes = self._settings.pruner is not None
            check_ends(self._context, self._config, self._space, prunes=prunes)
            if self._config.hydra.launcher.get("dry_run"):  # the plan of the first trial
                for key, written in self._space.written.items():
                    log.info(f"searches {key}={written}")
                self._launcher.launch(self._jobs(next(self._space.ends())), initial_job_idx=0)
                return
            with only_search(self._sweep):
                OmegaConf.save(self._config, self._sweep / "multirun.yaml")
                self._search(self._open())

    def _jobs(self, point: Any) -> list[list[str]]:
        """The overrides of each job of a trial."""
        overrides = self._space.overrides(point)
        if self._seeds is None:
            return [overrides]
        rest = [text for text in overrides if not text.lstrip("+").startswith("seed=")]
        return [[*rest, f"seed={seed}"] for seed in self._seeds]

    def _open(self) -> Study:
        settings, config = self._settings, self._config
        ignored = ("name", *(config.hydra.launcher.get("hash_ignore") or ()))
        fixed = [text for text in self._space.fixed if text.partition("=")[0] not in ignored]
        objective = config.get("objective")
        direction = settings.direction or ("minimize" if objective == "wall_s" else "maximize")
        return Study(
            Path(settings.storage) if settings.storage else self._sweep / JOURNAL,
            self._sweep,
            name=settings.study_name,
            direction="minimize" if direction == "minimize" else "maximize",
            search={
                "space": self._space.written,
                "fixed": sorted(fixed),
                "seeds": self._seeds,
                "objective": objective,
                "every": OmegaConf.select(config, "eval.every"),
            },
            space=self._space.distributions,
            sampler=lambda number: make_sampler(
                settings.sampler, settings.seed, number, self._space.distributions
            ),
            pruner=self._pruner,
            n_trials=settings.n_trials,
        )

    def _search(self, study: Study) -> None:
        """Runs batches of trials until the study has all of them, or time is over."""
        ended = len(study.finished())
        parts = [f"{ended} of {study.n_trials} trials have ended"] if ended else []
        if study.resumed:
            parts.append(f"{count_text(study.resumed, 'interrupted trial')} will resume")
        log.info("; ".join([f"study {study.journal}", *parts]))
        if ended >= study.n_trials and not study.resumed:
            log.info(f"raise hydra.sweeper.n_trials={study.n_trials} to continue the search")
        results = Results(study, self._sweep, self._context, self._config)
        start_s, limit_s = time.monotonic(), self._settings.timeout_s
        try:
            while trials := study.ask(self._settings.n_jobs):
                self._run(study, trials)
                results.write()
                if limit_s is not None and time.monotonic() - start_s > limit_s:
                    log.info(f"no further trial: hydra.sweeper.timeout_s={limit_s:g} have passed")
                    break
        finally:
            results.write()
        if study.exhausted:
            log.info("the sampler has tried every point of the search space")
        if others := study.elsewhere():
            log.info(f"trials of other launchers have not ended: {', '.join(others)}")
        best = study.best()
        if best is None:
            print("no trial is complete, so there are no best settings", file=sys.stderr)
            raise SystemExit(1)
        log.info(f"best: trial {best.number} with {best.value:.6g}; see {self._sweep}")

    def _run(self, study: Study, trials: Sequence[Trial]) -> None:
        """Launches the jobs of some trials, and records in the study how they ended."""
        possible = [trial for trial in trials if not self._refuse(study, trial)]
        jobs = {trial.number: self._jobs(trial.params) for trial in possible}
        if jobs:
            if self._settings.pruner is not None:
                owners = [(tuple(job), trial) for trial in possible for job in jobs[trial.number]]
                launcher: Any = self._launcher  # `checked_pruner` has looked at it
                launcher.watch(TrialPruner(dict(reversed(owners))))
            listed = [job for each in jobs.values() for job in each]
            # The number of the next job, for launchers that keep no record of the directory.
            numbers = [int(path.name) for path in self._sweep.glob("*") if path.name.isdigit()]
            first_num = 1 + max(numbers, default=-1)
            results = list(self._launcher.launch(listed, initial_job_idx=first_num))
            for trial in possible:
                ends = [job_end(results.pop(0), self._sweep) for _ in jobs[trial.number]]
                self._failures += sum(end.state == "failed" for end in ends)
                self._tell(study, trial, ends)
        launcher = self._config.hydra.launcher
        most = 1 if launcher.get("on_failure") == "stop" else launcher.get("max_failures")
        if most is not None and self._failures >= most:
            print(
                f"{count_text(self._failures, 'job')} failed, and the launcher allows no more: the "
                "search ends; start it again to continue",
                file=sys.stderr,
            )
            raise SystemExit(1)

    def _refuse(self, study: Study, trial: Trial) -> bool:
        """Whether no job can have the trial's settings, which then counts as a failure."""
        overrides = self._space.overrides(trial.params)
        reason = refusal(self._context, self._config, overrides)
        if reason is not None:
            trial.set_user_attr(ERROR, reason)
            self._failures += 1
            self._tell(study, trial, [])
        return reason is not None

    def _tell(self, study: Study, trial: Trial, ends: Sequence[JobEnd]) -> None:
        state = study.tell(trial, self._space.overrides(trial.params), ends)
        if state == TrialState.RUNNING:
            return
        ended, best = study.study.get_trials(deepcopy=False)[trial.number], study.best()
        what = f"failed: {ended.user_attrs.get(ERROR)}"
        if state == TrialState.PRUNED:
            what = "pruned"
        elif ended.value is not None:
            what = f"{ended.value:.6g}"
        so_far = f", best {best.value:.6g} (trial {best.number})" if best else ""
        values = " ".join(self._space.overrides(trial.params)[len(self._space.fixed) :])
        log.info(f"trial {trial.number} of {study.n_trials}: {what}{so_far}: {values}")


def job_end(result: JobReturn, sweep: Path) -> JobEnd:
    """How a job ended, from what the launcher returned."""
    if result.cfg is None or result.hydra_cfg is None:
        raise TypeError("the launcher returned a job without its configuration")
    config = deepcopy(result.hydra_cfg)
    with read_write(config), open_dict(config):
        config.merge_with(result.cfg)  # the directory's name may hold any of the settings
    with hydra_config(config):
        directory = sweep / str(config.hydra.sweep.subdir)
    value = result._return_value
    if result.status == JobStatus.COMPLETED:
        return JobEnd("completed", value, directory)
    return JobEnd(value.state if isinstance(value, JobFailedError) else "failed", value, directory)


def read_seeds(settings: WalleOptunaConf, space: Space, config: DictConfig) -> list[int] | None:
    """The seeds of each trial; None for jobs with the seed that they have."""
    if "seed" in space.distributions:
        raise ConfigError(
            f"seed={space.written['seed']}: the best seed says nothing about settings; for the "
            "median over seeds give hydra.sweeper.seeds=[1,2,3]"
        )
    given = [text for text in space.fixed if text.lstrip("+").startswith("seed=")]
    if given and isinstance(settings.seeds, list):
        raise ConfigError(
            f"{given[0]} contradicts hydra.sweeper.seeds={settings.seeds}: drop one of the two"
        )
    return seeds_of(settings.seeds, int(config.get("seed") or 0))


def checked_pruner(
    settings: WalleOptunaConf, space: Space, launcher: Any, config: DictConfig
) -> BasePruner:
    """Makes the pruner; makes a sampler too, to find wrong options.

    Raises:
        ConfigError: an option is wrong, the launcher cannot stop jobs, or evaluations do not show
            the objective.
    """
    make_sampler(settings.sampler, 0, 0, space.distributions)
    pruner = make_pruner(settings.pruner)
    if settings.pruner is None:
        return pruner
    what = f"hydra.sweeper.pruner={settings.pruner}"
    if not hasattr(launcher, "watch"):
        raise ConfigError(
            f"{what}: {type(launcher).__name__} cannot stop jobs; use hydra/launcher=walle, or "
            "leave the pruner out"
        )
    if (objective := config.get("objective")) not in BY_EVALUATION:
        raise ConfigError(
            f"{what} compares evaluations, which say nothing of objective={objective}; leave the "
            "pruner out"
        )
    return pruner


def check_ends(
    context: HydraContext, config: DictConfig, space: Space, *, prunes: bool = False
) -> None:
    """Composes a job at each end of the search space.

    Raises:
        ConfigError: none of them is a possible configuration, or there is a pruner and none has an
            evaluation before its end.
        HydraException: a key or an option does not exist.
    """
    jobs = [compose(context, config, space.overrides(point), ()) for point in space.ends()]
    refused = [_refusal(job, config) for job in jobs]
    if all(refused):
        raise ConfigError(f"no end of the search space can run: {refused[0]}")
    for job in jobs if prunes else ():
        settings = job.identity.config
        if not {"eval.every", "total_steps"} <= settings.keys():
            return  # another application: unknown
        every = settings["eval.every"]
        if every is not None and float(every) < float(settings["total_steps"]):
            return
    if prunes:
        settings = jobs[0].identity.config
        raise ConfigError(
            f"hydra.sweeper.pruner would prune nothing: the only evaluation of a job is at its end,"
            f" by eval.every={settings['eval.every']} and total_steps={settings['total_steps']};"
            " use a smaller eval.every, or leave the pruner out"
        )


def refusal(context: HydraContext, config: DictConfig, overrides: Sequence[str]) -> str | None:
    """Why the launcher's `validate` refuses a job with these overrides; None if it does not."""
    if not config.hydra.launcher.get("validate"):
        return None
    return _refusal(compose(context, config, overrides, ()), config)


def _refusal(job: Composed, config: DictConfig) -> str | None:
    try:
        validate([job], config.hydra.launcher.get("validate"))
    except ConfigError as error:
        return str(error).removeprefix(f"{' '.join(job.identity.overrides)}: ")
    return None
