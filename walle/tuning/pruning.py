"""Pruning: evaluations of running jobs are shown to Optuna's pruner, which may stop their trial."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping

from optuna.trial import Trial

from walle.launcher.composing import Job
from walle.launcher.records import finite_number

EVALUATIONS = "eval.csv"


class TrialPruner:
    """The launcher's `StopRule` for a batch of trials: stops jobs because of their evaluations.

    The value of a trial at an evaluation is the median over the seeds that have started, once all
    of them have reached it. The last evaluation is the result itself and prunes nothing.
    """

    def __init__(self, trials: Mapping[tuple[str, ...], Trial]) -> None:
        self._trials = trials
        self._jobs: dict[int, dict[int, Job]] = {}
        # An earlier launch may have reported some evaluations of a trial.
        self._reported = {
            trial.number: set(
                trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
            )
            for trial in trials.values()
        }
        self._pruned: dict[int, str] = {}

    def __call__(self, job: Job, *, starts: bool = True) -> str | None:
        """Returns why the job need not run to its end; None while it must.

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
        values = [evaluations(job) for job in self._jobs[trial.number].values()]
        new = set.intersection(*map(set, values)) - self._reported[trial.number]
        for number in sorted(new):
            value = statistics.median(seed[number] for seed in values)
            trial.report(value, number)
            self._reported[trial.number].add(number)
            if trial.should_prune():
                self._pruned[trial.number] = (
                    f"trial {trial.number} was pruned after evaluation {number} with {value:.4g}"
                )
                return


def evaluations(job: Job) -> dict[int, float]:
    """The mean return of each evaluation of a job so far, by its number, without the last one.

    With the key `eval.every`, an evaluation's number counts how many such intervals had passed:
    runs whose rounds have other lengths are compared at the same point. Otherwise it is its row,
    from 1.
    """
    try:
        text = (job.directory / EVALUATIONS).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    config = job.identity.config
    every, total = (finite_number(config.get(key)) for key in ("eval.every", "total_steps"))
    values: dict[int, float] = {}
    rows = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    for row, cells in enumerate(rows, start=1):
        value, steps = (
            finite_number(cells.get("return_mean")),
            finite_number(cells.get("env_steps")),
        )
        if value is None or (total is not None and steps is not None and steps >= total):
            continue
        values.setdefault(row if not every or steps is None else int(steps // every), value)
    return values
