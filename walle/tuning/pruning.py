"""Pruning: evaluations of running jobs are shown to Optuna's pruner, which may stop their trial."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optuna.trial import Trial

from walle.launcher.composing import Job

EVALUATIONS = "eval.csv"
Evaluations = dict[int, float]  # the mean return of each evaluation, by its number from 1


class Watch:
    """Tells the launcher which jobs need not run to their ends, because of their evaluations.

    The value of a trial at an evaluation is the median over the seeds that have started, as soon
    as all of them have reached it. The last evaluation is the result itself and prunes nothing.
    """

    def __init__(self, trials: Mapping[tuple[str, ...], Trial]) -> None:
        """Begins a batch of trials.

        Args:
            trials: for the overrides of each job, its trial.
        """
        self._trials = trials
        self._jobs: dict[int, dict[int, Job]] = {}
        self._told = {each.number: _reported(each) for each in trials.values()}
        self._pruned: dict[int, str] = {}

    def __call__(self, job: Job, *, starts: bool = True) -> str | None:
        """Why the job need not run to its end; None as long as it must.

        The evaluations of a job count from the first call with `starts`.
        """
        trial = self._trials.get(job.identity.overrides)
        if trial is None:
            return None
        if starts and trial.number not in self._pruned:
            self._jobs.setdefault(trial.number, {})[job.num] = job
            self._report(trial)
        return self._pruned.get(trial.number)

    def _report(self, trial: Trial) -> None:
        """Reports the evaluations that are new; asks the pruner after each of them."""
        found = [evaluations(job) for job in self._jobs[trial.number].values()]
        common = set.intersection(*map(set, found)) - self._told[trial.number]
        for number in sorted(common):
            value = statistics.median(each[number] for each in found)
            trial.report(value, number)
            self._told[trial.number].add(number)
            if trial.should_prune():
                self._pruned[trial.number] = (
                    f"trial {trial.number} was pruned after evaluation {number} with {value:.4g}"
                )
                return


def _reported(trial: Trial) -> set[int]:
    """The evaluations that an earlier launch reported of this trial."""
    frozen = trial.study.get_trials(deepcopy=False)[trial.number]
    return set(frozen.intermediate_values)


def evaluations(job: Job) -> Evaluations:
    """The evaluations of a job so far, without the last one.

    With the key `eval.every`, an evaluation's number says how many such intervals had passed: runs
    whose rounds have other lengths are compared at the same place. Otherwise it is its row.
    """
    config = job.identity.config
    every, total = (_number(config.get(key)) for key in ("eval.every", "total_steps"))
    found: Evaluations = {}
    for row, cells in enumerate(_rows(job.directory / EVALUATIONS), start=1):
        value, steps = _number(cells.get("return_mean")), _number(cells.get("env_steps"))
        if value is None or (total is not None and steps is not None and steps >= total):
            continue
        found.setdefault(row if not every or steps is None else int(steps // every), value)
    return found


def _rows(file: Path) -> list[dict[str, str]]:
    """The whole rows of a CSV file; none where there is no file."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def _number(cell: Any) -> float | None:
    """The cell's number; None for what is none, or not finite."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None
