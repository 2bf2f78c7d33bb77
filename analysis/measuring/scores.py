"""Reads off what a run has reached in the end: its final score."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from walle.analysis.loading.directories import counted
from walle.analysis.measuring.cells import column_per_run
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import Sweep

FINAL = 0.1
SAME_END = 0.95


class Scores(NamedTuple):
    """Final scores.

    Attributes:
        of: the score of each run that has one.
        source: what the scores are means of, in words.
        cut: the environment steps at which longer runs are read, because another ended there;
            None where all runs ended within 5% of each other.
    """

    of: dict[str, float]
    source: str
    cut: int | None = None


def final_returns(rows: pd.DataFrame) -> dict[str, FloatArray]:
    """The `return_mean` of each run in the last tenth of its rows, at least one.

    The rows are those of iterations.csv or of eval.csv.
    """
    per_run = column_per_run(rows, "return_mean").items()
    return {run: values[-max(1, round(FINAL * values.size)) :] for run, values in per_run}


def evaluated(sweep: Sweep, names: set[str]) -> bool:
    """Whether each of the runs has an evaluation."""
    rows = sweep.evaluations
    return len(rows) > 0 and names <= set(rows["run"].astype(str))


def final_scores(sweep: Sweep, names: set[str], *, evaluations: bool) -> Scores:
    """The final scores of some runs, read at the same number of environment steps.

    Args:
        sweep: the runs.
        names: the runs to compare with each other, such as all of one task.
        evaluations: scores from eval.csv, otherwise from training episodes.
    """
    iterations = sweep.iterations[sweep.iterations["run"].isin(names)]
    ends = iterations.groupby("run", observed=True)["env_steps"].max()
    cut = int(ends.min()) if ends.min() < SAME_END * ends.max() else None
    rows = iterations
    if evaluations:
        rows = sweep.evaluations[sweep.evaluations["run"].isin(names)]
    if cut is not None:
        rows = rows[rows["env_steps"] <= cut]
    found = {run: float(values.mean()) for run, values in final_returns(rows).items()}
    return Scores(found, _source(rows, evaluations=evaluations), cut)


def _source(rows: pd.DataFrame, *, evaluations: bool) -> str:
    if not evaluations:
        return "mean of the last 100 training episodes, averaged over the last tenth of a run"
    episodes = "episodes"
    if "episodes" in rows and rows["episodes"].nunique() == 1:
        episodes = counted(int(rows["episodes"].iloc[0]), "episode")
    return f"mean return of the last evaluation ({episodes} without exploration noise)"
