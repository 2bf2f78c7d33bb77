"""Final scores of runs, their returns in training, and which values are possible."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import BadInputError, Run, Sweep
from walle.analysis.writing.format import counted

TRAINING = "training_return"  # the column that `with_training` adds
PARTS = 10  # a window is one of so many parts of a run
SAME_END = 0.95
RETURNS = Path(__file__).parents[1] / "reference" / "possible_returns.csv"
NEVER_NEGATIVE = ("_s", "_share", "_std")
Ends = tuple[float, float]
ANY: Ends = (-math.inf, math.inf)


class Scores(NamedTuple):
    """Final scores."""

    of: dict[str, float]  # the score of each run that has one
    source: str  # what they are and at which environment steps, in words


class Experience(NamedTuple):
    """The finished episodes of a run as piecewise linear functions of environment steps.

    An episode is spread evenly over the run's steps since the previous episode of its lane, so that
    a window covers the same steps for any number of lanes.
    """

    steps: FloatArray  # [knots] where episodes start or end, from 0
    episodes: FloatArray  # [knots] the number of episodes up to there
    returns: FloatArray  # [knots] the sum of their returns
    end: float  # the last step to which all lanes with a finished episode have some

    def mean(self, start: FloatArray | float, stop: FloatArray | float) -> FloatArray:
        """[windows] the mean return over the steps from `start` to `stop`; NaN beyond `end`."""
        at = np.stack(np.broadcast_arrays(start, stop))
        episodes, returns = (np.diff(np.interp(at, self.steps, y), axis=0)[0] for y in self[1:3])
        episodes = np.where((at[1] <= self.end) & (episodes > 0), episodes, np.nan)
        return np.asarray(returns / episodes, np.float64)


@lru_cache(maxsize=1)
def experience(sweep: Sweep) -> dict[str, Experience]:
    """The experience of each run in which an episode has ended, from episodes.csv."""
    found = {}
    for run, rows in sweep.episodes.groupby("run", observed=True):
        # Free-running, two rollouts of a lane can be in one round, where its steps may fall.
        lanes = rows.groupby("lane")["env_steps"].cummax().groupby(rows["lane"])
        stop = lanes.obj.to_numpy(float)
        start = np.minimum(lanes.shift(fill_value=0).to_numpy(float), stop - 1)
        order = np.argsort(knots := np.concatenate([start, stop]), kind="stable")
        steps, totals = knots[order], []
        for value in (1.0, rows["return"].to_numpy(float)):
            rate = value / (stop - start)
            slope = np.concatenate([rate, -rate])[order].cumsum()
            totals.append(np.append(0.0, (slope[:-1] * np.diff(steps)).cumsum()))
        found[str(run)] = Experience(steps, totals[0], totals[1], float(lanes.max().min()))
    return found


def starts(sweep: Sweep) -> dict[str, float]:
    """The mean return of each run's first episodes in training."""
    known = experience(sweep).items()
    return {run: float(x.mean(0.0, x.steps[x.steps > 0][0])) for run, x in known}


def window(sweep: Sweep) -> float:
    """The environment steps of a window: a tenth of the planned steps of the shortest run."""
    return min(float(run.config.get("total_steps", math.nan)) for run in sweep.runs) / PARTS


def with_training(sweep: Sweep, frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of iterations with `TRAINING`, the mean return over the window that ends there."""
    known, values = experience(sweep), pd.Series(np.nan, frame.index)
    sweep.note(f"Returns in training are means over windows of {window(sweep):,.0f} steps")
    for run, rows in frame[frame["run"].isin(known)].groupby("run", observed=True):
        steps = rows["env_steps"].to_numpy(float)
        values[rows.index] = known[str(run)].mean(np.maximum(steps - window(sweep), 0), steps)
    return frame.assign(**{TRAINING: values})


def training(sweep: Sweep, names: Collection[str]) -> Scores:
    """The mean returns of some runs in training, over the last window that all have finished."""
    known = {run: x for run, x in experience(sweep).items() if run in names}
    stop = min((x.end for x in known.values()), default=0.0)
    start = max(0.0, stop - window(sweep))
    of = {run: float(x.mean(start, stop)) for run, x in known.items()}
    return Scores(of, f"mean return in training from {start:,.0f} to {stop:,.0f} steps")


def at_end(sweep: Sweep, names: Collection[str]) -> Scores | None:
    """The evaluations of some runs at their ends; None unless all have one, at similar steps."""
    rows = sweep.evaluations[sweep.evaluations["run"].isin(names)]
    last = rows.groupby(rows["run"].astype(str)).tail(1)
    if len(last) < len(names) or last["env_steps"].min() < SAME_END * last["env_steps"].max():
        return None
    of = dict(zip(last["run"].astype(str), last["return_mean"].astype(float), strict=True))
    return Scores(of, f"evaluation without noise after {last['env_steps'].max():,.0f} steps")


def final_scores(
    sweep: Sweep, tasks: Mapping[str, Collection[str]], *, evaluations: bool | None = None
) -> dict[str, Scores]:
    """The final scores of the runs of each task: evaluations if all have them, else training.

    Raises BadInputError if `evaluations` are asked for, and a run has none at its task's end.
    """
    ends = {task: found for task, of in tasks.items() if (found := at_end(sweep, of)) is not None}
    if evaluations and len(ends) < len(tasks):
        there = {*sweep.evaluations["run"]}
        lacking = sum(name not in there for names in tasks.values() for name in names)
        reason = "the last evaluations of runs are after different steps"
        if lacking:
            reason = f"{counted(lacking, 'run')} without an evaluation"
        raise BadInputError(f"{reason}; compare returns in training instead")
    if evaluations is not False and len(ends) == len(tasks):
        return ends
    return {task: training(sweep, names) for task, names in tasks.items()}


def evaluations_first(sweeps: Sequence[Sweep]) -> list[str]:
    """A sentence that evaluations are drawn, if algorithms differ and all runs have them."""
    varies = any("algo.name" in each.varying for each in sweeps)
    if not varies or any(each.evaluations["run"].nunique() < len(each.runs) for each in sweeps):
        return []
    noise = f"each algorithm's own noise (-y {TRAINING} draws them)"
    return [f"Between algorithms evaluations are drawn: returns in training have {noise}."]


def first_reached(iterations: pd.DataFrame, target: float) -> dict[str, FloatArray]:
    """Wall-clock seconds until `TRAINING` first reached `target`, of each run that did so."""
    reached = iterations[iterations[TRAINING] >= target]
    first = reached.groupby("run", observed=True)["wall_s"].min()
    return {str(run): np.array([seconds]) for run, seconds in first.items()}


def possible_returns(runs: Iterable[Run]) -> Ends:
    """The least and the greatest return of an episode of the runs, if the task is known.

    A task with arguments, wrappers or a time limit of its own may have other rewards or lengths
    than the table's.
    """
    ends = []
    for run in runs:
        changed = any(key.startswith("env.kwargs.") for key in run.config)
        changed = changed or run.config.get("env.wrappers", "[]") not in ("[]", "null")
        limited = run.config.get("env.episode_limit", "null") != "null"
        task = str(run.config.get("env.id", ""))
        ends.append(ANY if changed or limited else returns_by_task().get(task, ANY))
    lows, highs = zip(*(ends or [ANY]), strict=True)
    return min(lows), max(highs)


def possible_values(column: str, runs: Iterable[Run] = ()) -> Ends:
    """The least and the greatest value that a column of iterations.csv can have in some runs."""
    if column.startswith(("return_", TRAINING)) and not column.endswith("_std"):
        return possible_returns(runs)
    if column in ("clip_fraction", "explained_variance"):
        return (0.0 if column == "clip_fraction" else -math.inf), 1.0
    counts = column in ("iteration", "env_steps", "episodes", "grad_norm")
    if counts or column.startswith(("lag_", "length_")) or column.endswith(NEVER_NEGATIVE):
        return 0.0, math.inf
    return ANY


@cache
def returns_by_task() -> dict[str, Ends]:
    """The least and the greatest return of an episode of every known task, by its id."""
    rows = pd.read_csv(RETURNS, index_col="task")[["low", "high"]].astype(float)
    return {str(task): (low, high) for task, low, high in rows.itertuples()}
