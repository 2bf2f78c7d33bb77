"""Measures seconds: by environment steps, of the slowest sampler, with the spread of all cells."""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas as pd

from walle.analysis.loading.directories import Run, Scalar, listed
from walle.analysis.measuring.cells import Cell, measure, require
from walle.analysis.measuring.design import sort_key
from walle.analysis.measuring.spread import share_spread
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import Sweep

THOUSAND = 1000
LOCK_STEP, OVERLAPPED, FREE = "lock-step", "overlapped", "free-running"


class Unit(NamedTuple):
    """The number of environment steps that seconds are given for, with its words."""

    steps: int
    words: str


def unit_of(sweep: Sweep) -> Unit:
    """The nominal round, `batch_size`, where all runs have the same; else a thousand steps."""
    sizes = set(sweep.values("batch_size"))
    size = sizes.pop()
    if not sizes and isinstance(size, int):
        return Unit(size, f"round of {size:,} steps")
    return Unit(THOUSAND, f"{THOUSAND:,} steps")


def steps_of(sweep: Sweep) -> pd.Series[float]:
    """[rows of sweep.iterations] the environment steps of each iteration.

    Where rows are missing, it is the mean over the iterations since the row before.
    """
    frame = sweep.iterations
    require(frame, "env_steps", "iteration")
    counts = frame[["env_steps", "iteration"]]
    since = counts.groupby(frame["run"], observed=True).diff().fillna(counts)
    return since["env_steps"] / since["iteration"]


def steps_per_iteration(sweep: Sweep, frame: pd.DataFrame, by: str) -> dict[Scalar, list[float]]:
    """The mean steps of an iteration of each run, at each value of `by`, in ascending order."""
    rows = steps_of(sweep).loc[frame.index].groupby(frame["run"], observed=True).mean()
    values = {run.name: run.config.get(by, "null") for run in sweep.runs}
    found: dict[Scalar, list[float]] = {}
    for run, steps in rows.items():
        found.setdefault(values[str(run)], []).append(float(steps))
    return {value: sorted(found[value]) for value in sorted(found, key=sort_key)}


def seconds_per_run(
    sweep: Sweep, frame: pd.DataFrame, column: str, *, busy: bool = False
) -> dict[str, FloatArray]:
    """The seconds of `unit_of(sweep)` steps in each iteration of each run; their mean is exact.

    Args:
        sweep: the runs.
        frame: the rows of sweep.iterations that count.
        column: `iteration_s`, `learn_s` or `collect_s`, see `_collection`.
        busy: of `collect_s`, leave out what free-running samplers wait.

    The mean of the values is the run's seconds over its steps: R = sum(seconds) / sum(steps). An
    iteration's value is R plus what its seconds differ from R times its steps, over the mean steps.
    """
    require(frame, column)
    unit, steps = unit_of(sweep).steps, steps_of(sweep).loc[frame.index]
    seconds = frame[column].astype(float)
    if column == "collect_s":
        seconds, steps = _collection(sweep, frame, steps, busy=busy)
    rows = pd.DataFrame({"run": frame["run"], "seconds": seconds, "steps": steps}).dropna()
    found = {}
    for run, mine in rows.groupby("run", observed=True):
        took, number = mine["seconds"].to_numpy(float), mine["steps"].to_numpy(float)
        rate = took.sum() / number.sum()
        found[str(run)] = unit * (rate + (took - rate * number) / number.mean())
    return found


def _collection(
    sweep: Sweep, frame: pd.DataFrame, steps: pd.Series[float], *, busy: bool
) -> tuple[pd.Series[float], pd.Series[float]]:
    """[rows] the seconds that collecting took in each iteration, and the steps that it gave.

    In lock-step `collect_s`; with overlap `collect_max_s`, as the slowest sampler holds up a round.
    Free-running it is the throughput, steps that arrived by wall clock: all of the iteration, in
    which the learned and the dropped steps arrived, and in which samplers also wait for free slots.

    Without that waiting (`busy`), a rollout is a sampler's share of a nominal round, so n samplers
    collect `batch_size` steps in the mean time of a rollout.
    """
    seconds = frame["collect_s"].astype(float)
    names = frame["run"].astype(str)
    mode = names.map({run.name: mode_of(run) for run in sweep.runs})
    sizes = pd.Series({run.name: run.config.get("batch_size", math.nan) for run in sweep.runs})
    slowest = frame.get("collect_max_s", pd.Series(math.nan, index=frame.index)).astype(float)
    old = names[(mode == OVERLAPPED) & slowest.isna() & seconds.notna()]
    if len(old):
        sweep.note(
            "Collection is the mean over the samplers, which hides a slow one, in runs without "
            f"the column collect_max_s: {listed(list(dict.fromkeys(old)))}"
        )
    free = mode == FREE
    dropped = frame.get("dropped_steps", pd.Series(0.0, index=frame.index)).fillna(0.0)
    alone = seconds * steps / names.map(sizes).astype(float)
    whole = frame["iteration_s"].astype(float).where(seconds.notna())
    seconds = seconds.mask(mode == OVERLAPPED, slowest.fillna(seconds))
    if busy:
        return seconds.mask(free, alone), steps
    return seconds.mask(free, whole), steps.mask(free, steps + dropped)


def mode_of(run: Run) -> str:
    """How a run's samplers and its agent take turns."""
    lag = run.config.get("sampler.max_lag", 0)
    return FREE if lag == "null" else OVERLAPPED if lag else LOCK_STEP


def measure_seconds(sweep: Sweep, frame: pd.DataFrame, column: str, by: str) -> list[Cell]:
    """The cells of `seconds_per_run`; where runs repeat, with the spread that all cells share."""
    return share_spread(sweep, measure(sweep, seconds_per_run(sweep, frame, column), by))
