"""Reads off what a run has reached in the end: its final score."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.measuring.groups import column_per_run, require
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import Sweep
from walle.analysis.writing.format import counted

PARTS = 10  # the last of so many parts of a run is its end
SAME_END = 0.95


class Scores(NamedTuple):
    """Final scores."""

    of: dict[str, float]  # the score of each run that has one
    source: str  # what the scores are means of, in words
    # The environment steps at which longer runs are read, because another ended there; None where
    # all runs ended within 5% of each other
    cut: int | None = None
    # The number of evaluations of each run that the score is a mean of; empty for scores from
    # training
    counts: Mapping[str, int] = {}


def final_returns(
    rows: pd.DataFrame, ends: Mapping[str, int] | None = None
) -> dict[str, FloatArray]:
    """The `return_mean` of each run in the last tenth of its environment steps, at least one.

    A run ends at the environment steps in `ends`, or else at those of its last row.
    """
    full = rows.dropna(subset=["return_mean"])
    steps = column_per_run(full, "env_steps")
    found = {}
    for run, values in column_per_run(full, "return_mean").items():
        end = (ends or {}).get(run, steps[run][-1])
        late = PARTS * (end - steps[run]) < end
        found[run] = values[late] if late.any() else values[-1:]
    return found


def evaluated(sweep: Sweep, names: set[str]) -> bool:
    """Whether each of the runs has an evaluation."""
    rows = sweep.evaluations
    return len(rows) > 0 and names <= set(rows["run"].astype(str))


def evaluations_first(sweeps: Sequence[Sweep]) -> list[str]:
    """The sentence that evaluations are drawn, between algorithms that all have them; else none.

    The mean return of the last episodes lags behind learning by as many episodes as run side by
    side, and it has the noise of exploration; both differ between algorithms.
    """
    varies = any("algo.name" in sweep.varying for sweep in sweeps)
    if not varies or not all(evaluated(each, {run.name for run in each.runs}) for each in sweeps):
        return []
    return [
        "Between algorithms evaluations are drawn: training returns have each algorithm's own "
        "noise and delay (-y return_mean draws them)."
    ]


def final_scores(sweep: Sweep, names: set[str], *, evaluations: bool) -> Scores:
    """The final scores of some runs, read at the same number of environment steps."""
    iterations = sweep.iterations[sweep.iterations["run"].isin(names)]
    ends = iterations.groupby("run", observed=True)["env_steps"].max()
    cut = int(ends.min()) if ends.min() < SAME_END * ends.max() else None
    rows = iterations
    if evaluations:
        rows = sweep.evaluations[sweep.evaluations["run"].isin(names)]
    if cut is not None:
        rows = rows[rows["env_steps"] <= cut]
    of_run = {str(run): int(end if cut is None else min(cut, end)) for run, end in ends.items()}
    values = final_returns(rows, of_run)
    counts = {run: found.size for run, found in values.items()} if evaluations else {}
    scores = {run: float(found.mean()) for run, found in values.items()}
    source = "mean of the last 100 training episodes, averaged over the last tenth of a run"
    if counts:
        same = "episodes" in rows and rows["episodes"].nunique() == 1
        episodes = counted(int(rows["episodes"].iloc[0]), "episode") if same else "episodes"
        source = (
            "mean return of the evaluations in the last tenth of a run's steps, at least one "
            f"({count_text(counts.values())}, each of {episodes} without exploration noise)"
        )
    return Scores(scores, source, cut, counts)


def count_text(counts: Collection[int]) -> str:
    """`1 evaluation a run` or `1 to 3 evaluations a run`."""
    low, high = min(counts), max(counts)
    return f"{counted(low, 'evaluation') if low == high else f'{low} to {high} evaluations'} a run"


def first_reached(iterations: pd.DataFrame, target: float) -> dict[str, FloatArray]:
    """Wall-clock seconds until `return_mean` first reached `target`, of each run that did so.

    Raises:
        BadInputError: there is no column `return_mean`.
    """
    require(iterations, "return_mean")
    reached = iterations[iterations["return_mean"] >= target]
    first = reached.groupby("run", observed=True)["wall_s"].min()
    return {str(run): np.array([seconds]) for run, seconds in first.items()}
