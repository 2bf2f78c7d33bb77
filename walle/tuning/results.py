"""The results of a search: best settings, all trials, and an experiment to use at once."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf
from optuna.trial import FrozenTrial, TrialState

from walle.launcher.composing import written_values
from walle.launcher.records import same
from walle.system.files import write_atomically
from walle.system.identity import Flat, flatten
from walle.tuning.space import plain, text
from walle.tuning.study import ERROR, JOBS, OVERRIDES, SEARCH, SWEEP, Study

RESULTS, TRIALS, EXPERIMENT = "optimization_results.yaml", "trials.csv", "experiment/best.yaml"
PRIMARY = "config"  # of which the experiment holds what is different
NOT_SETTINGS = ("name", "seed")  # what an experiment leaves to its user


class Results:
    """Writes the results of a search into a directory."""

    def __init__(
        self, study: Study, sweep: Path, context: HydraContext, config: DictConfig
    ) -> None:
        self._study, self._sweep = study, sweep
        self._context, self._config = context, config
        self._written: int | None = None

    def write(self) -> None:
        """Writes trials.csv, and the best settings where another trial is the best one."""
        write_atomically(self._sweep / TRIALS, _table(self._study))
        best = self._study.best()
        if best is None or best.number == self._written:
            return
        self._written = best.number
        results = {
            "name": "optuna",
            "best_params": {key: plain(value) for key, value in best.params.items()},
            "best_value": best.value,
            "best_trial": best.number,
            "journal": os.path.relpath(self._study.journal, self._sweep),
            "study": self._study.study.study_name,
        }
        write_atomically(self._sweep / RESULTS, OmegaConf.to_yaml(OmegaConf.create(results)))
        (self._sweep / EXPERIMENT).parent.mkdir(exist_ok=True)
        experiment = _experiment(self._study, best, self._context, self._config)
        write_atomically(self._sweep / EXPERIMENT, experiment)


def _table(study: Study) -> str:
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
    output = io.StringIO()
    names = dict.fromkeys(["trial", "state", "value", *(name for row in rows for name in row)])
    writer = csv.DictWriter(output, fieldnames=list(names))
    writer.writeheader()
    writer.writerows(rows)
    return output.getvalue()


def _experiment(study: Study, best: FrozenTrial, context: HydraContext, config: DictConfig) -> str:
    """The best trial's settings as an experiment.

    It holds what was searched, and whatever else differs from the primary config.
    """
    search = study.study.user_attrs[SEARCH]
    seeds = f", the median over the seeds {search['seeds']}" if search["seeds"] else ""
    trial = f"Trial {best.number} of {study.n_trials} of {study.journal.name}"
    head = f"# @package _global_\n# {trial}: {best.value:.6g}{seeds}.\n"
    overrides = best.user_attrs.get(OVERRIDES, [])
    job = context.config_loader.load_sweep_config(config, list(overrides))
    groups, before = _defaults(context, job)
    absent, searched = object(), {key.lstrip("+") for key in best.params}
    content: dict[str, Any] = {}
    if groups:
        content["defaults"] = [{f"override /{key}": option} for key, option in groups.items()]
    for key, value in flatten(written_values(job)).items():
        differs = key not in NOT_SETTINGS and not same(before.get(key, absent), value)
        if key in searched or differs:
            *parents, last = key.split(".")
            node = content
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
    return head + OmegaConf.to_yaml(OmegaConf.create(content))


def _defaults(context: HydraContext, job: DictConfig) -> tuple[dict[str, str], Flat]:
    """The options of groups in which a job differs from the primary config; that, with them.

    An application without a primary config of that name has no defaults.
    """
    loader = context.config_loader
    if not loader.repository.config_exists(PRIMARY):  # type: ignore[attr-defined]
        return {}, {}
    usual = loader.load_configuration(PRIMARY, [], run_mode=RunMode.RUN).hydra.runtime.choices
    groups = {
        str(key): str(option)
        for key, option in job.hydra.runtime.choices.items()
        if "/" not in str(key) and key in usual and usual[key] != option
    }
    chosen = [f"{key}={option}" for key, option in groups.items()]
    config = loader.load_configuration(PRIMARY, chosen, run_mode=RunMode.RUN)
    return groups, flatten(written_values(config))
