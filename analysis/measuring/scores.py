"""Reads off what a run has reached in the end, its final score, and which values are possible."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.measuring.groups import column_per_run, require
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import Run, Sweep
from walle.analysis.writing.format import counted

PARTS = 10  # the last of so many parts of a run is its end
SAME_END = 0.95
RETURNS = Path(__file__).parents[1] / "reference" / "possible_returns.csv"
NEVER_NEGATIVE = ("_s", "_share", "_std")
Ends = tuple[float, float]
ANY: Ends = (-math.inf, math.inf)


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
    finals = {}
    for run, values in column_per_run(full, "return_mean").items():
        end = (ends or {}).get(run, steps[run][-1])
        late = PARTS * (end - steps[run]) < end
        finals[run] = values[late] if late.any() else values[-1:]
    return finals


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
    end_of = {str(run): int(end if cut is None else min(cut, end)) for run, end in ends.items()}
    values = final_returns(rows, end_of)
    scores = {run: float(finals.mean()) for run, finals in values.items()}
    if not (evaluations and values):
        source = "mean of the last 100 training episodes, averaged over the last tenth of a run"
        return Scores(scores, source, cut)
    counts = {run: finals.size for run, finals in values.items()}
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
    """Wall-clock seconds until `return_mean` first reached `target`, of each run that did so."""
    require(iterations, "return_mean")
    reached = iterations[iterations["return_mean"] >= target]
    first = reached.groupby("run", observed=True)["wall_s"].min()
    return {str(run): np.array([seconds]) for run, seconds in first.items()}


def possible_returns(runs: Iterable[Run]) -> Ends:
    """The least and the greatest return of an episode of the runs, where the task is known.

    A task with arguments or a time limit of its own has other rewards or lengths than the table's.
    """
    ends = []
    for run in runs:
        changed = any(key.startswith("env.kwargs.") for key in run.config)
        limited = run.config.get("env.episode_limit", "null") != "null"
        task = str(run.config.get("env.id", ""))
        ends.append(ANY if changed or limited else _possible_returns().get(task, ANY))
    lows, highs = zip(*(ends or [ANY]), strict=True)
    return min(lows), max(highs)


def possible_values(column: str, runs: Iterable[Run] = ()) -> Ends:
    """The least and the greatest value that a column of iterations.csv can have in some runs."""
    if column.startswith("return_") and not column.endswith("_std"):
        return possible_returns(runs)
    if column in ("clip_fraction", "explained_variance"):
        return (0.0 if column == "clip_fraction" else -math.inf), 1.0
    counts = column in ("iteration", "env_steps", "episodes", "grad_norm")
    if counts or column.startswith(("lag_", "length_")) or column.endswith(NEVER_NEGATIVE):
        return 0.0, math.inf
    return ANY


@cache
def _possible_returns() -> dict[str, Ends]:
    rows = pd.read_csv(RETURNS, index_col="task")[["low", "high"]].astype(float)
    return {str(task): (low, high) for task, low, high in rows.itertuples()}
