"""Seconds that runs take for a number of environment steps, without compiling and warm-up."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.measuring.groups import Cell, measure, require, share_spread
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.runs import FREE, OVERLAPPED, BadInputError, Run, Sweep
from walle.analysis.writing.format import listed

AGENT = "agent"
PROCESSES = (  # settings that change a speed
    *("device", "learner.n", "learner.threads", "sampler", "sampler.balance", "sampler.n"),
    *("sampler.nodes", "sampler.per_node", "sampler.pin"),
)


def clock(sweep: Sweep, *, compiling: bool = False) -> pd.DataFrame:
    """sweep.iterations without the compiler's time in wall_s, iteration_s and other_s.

    The wall clock of an iteration excludes all compiling of its run so far. The compiler's time
    depends on what it finds in its cache, so a first run would look slower than the next one. The
    wall clock of a resumed run includes the time of its first start-up only. `core_s` is the
    wall clock times the run's cores, `round_steps` the environment steps of an iteration.
    """
    frame, took = sweep.iterations, compile_seconds(sweep)
    number = starts(sweep)
    if {"wall_s", "other_s"} <= set(frame) and (number > 1).any():
        # The `other_s` of the first iteration after a start includes, beside the compiler's time,
        # the start: what exceeds the median of the run's other iterations.
        first = ~pd.concat([frame["run"].astype(str), number], axis=1).duplicated()
        other = frame["other_s"] - took
        usual = other.where(~first).groupby(frame["run"], observed=True).transform("median")
        again = (other - usual).clip(lower=0.0).where(first & (number > 1), 0.0).fillna(0.0)
        so_far = again.groupby(frame["run"], observed=True).cumsum()
        frame = frame.assign(wall_s=frame["wall_s"] - so_far)
    if not compiling:
        so_far = took.groupby(frame["run"], observed=True).cumsum()
        less = {"wall_s": so_far, "iteration_s": took, "other_s": took}
        frame = frame.assign(**{name: frame[name] - s for name, s in less.items() if name in frame})
    if not {"wall_s", "env_steps", "iteration"} <= set(frame):
        return frame
    cores = frame["run"].astype(str).map({run.name: run.cores or math.nan for run in sweep.runs})
    return frame.assign(core_s=frame["wall_s"] * cores.astype(float), round_steps=steps_of(sweep))


def compile_seconds(sweep: Sweep) -> pd.Series[float]:
    """[rows of sweep.iterations] seconds of compiling."""
    frame = sweep.iterations
    return frame.get("compile_s", pd.Series(0.0, frame.index)).astype(float).fillna(0.0)


def starts(sweep: Sweep) -> pd.Series[int]:
    """[rows of sweep.iterations] the number of starts and resumptions of the run by then, from 1.

    Every process of an agent compiles, for microseconds at least, before its first iteration and
    at no other time.
    """
    frame = sweep.iterations
    first = (compile_seconds(sweep) > 0) | ~frame["run"].duplicated()
    return first.astype(int).groupby(frame["run"], observed=True).cumsum()


def counted_rows(sweep: Sweep, warmup: int) -> pd.Series[bool]:
    """[rows of sweep.iterations] false for the first `warmup` after each start or resumption.

    A warm-up includes the iterations before a run's first update, which take less time than others.
    Of a run that was resumed with other processes only the rows since its last start count.
    """
    run, number = sweep.iterations["run"], starts(sweep)
    counted = sweep.iterations.groupby([run, number], observed=True).cumcount() >= warmup
    if warmup and "gradient_steps" in sweep.iterations:
        updates = sweep.iterations["gradient_steps"].gt(0).groupby(run, observed=True)
        before = updates.transform("any") & ~updates.cummax()
        if (counted & before).any():
            names = listed([*dict.fromkeys(run[counted & before].astype(str))])
            sweep.note(f"Iterations before the first update belong to the warm-up: {names}")
        counted &= ~before
    changed = [each.name for each in sweep.runs if _changed(each)]
    if changed:
        last = number.groupby(run, observed=True).transform("max")
        counted &= (number == last) | ~run.isin(changed)
        sweep.note(
            f"Resumed with other processes, so earlier times are excluded: {listed(changed)}"
        )
    return counted


def _changed(run: Run) -> bool:
    """Whether a user resumed it with other samplers, learners or another device.

    A launcher that resumes a job repeats the words with which it started.
    """
    first, *later = [
        {str(word).lstrip("+") for word in start.get("overrides") or []}
        for start in (run.provenance, *(run.provenance.get("resumptions") or []))
    ]
    return any(word.partition("=")[0] in PROCESSES for words in later for word in words - first)


def iterations_after_warmup(sweep: Sweep, warmup: int) -> pd.DataFrame:
    """The iterations after the warm-up; notes the runs that have none.

    The warm-up is the first `warmup` iterations after each start or resumption of a run.
    The times are without compiling.

    Raises BadInputError if no run has an iteration after the warm-up.
    """
    frame = clock(sweep)[counted_rows(sweep, warmup)]
    short = [run.name for run in sweep.runs if run.name not in set(frame["run"])]
    if len(short) == len(sweep.runs):
        raise BadInputError(
            f"--warmup {warmup} leaves no iteration of any run; the longest has "
            f"{sweep.iterations.groupby('run', observed=True).size().max()}: use a smaller K"
        )
    if short:
        sweep.note(f"Runs without an iteration after the warm-up of {warmup}: {listed(short)}")
    return frame


def timing_after_warmup(sweep: Sweep, warmup: int) -> pd.DataFrame:
    """The rows of sweep.timing whose time lies after the warm-up, without the compiler's time.

    A sampler's row starts where its last rollout was handed over, so its first rows after the
    warm-up still include waiting for the warm-up's end or the compiler: one row in lock-step, one
    more for each round of lag or, free-running, for each slot. These rows are left out.
    """
    frame = sweep.timing
    if not len(frame):
        return frame
    if "compile_s" in frame:
        took = frame["compile_s"].astype(float).fillna(0.0)
        frame = frame.assign(total_s=frame["total_s"] - took, compile_s=0.0)
    if not warmup:
        return frame
    rows = sweep.iterations
    start = pd.Series(starts(sweep).where(counted_rows(sweep, warmup)).to_numpy(), _places(rows))
    frame = frame.assign(start=start.reindex(_places(frame)).to_numpy()).dropna(subset=["start"])
    own = frame.groupby(["run", "process", "start"], observed=True).cumcount()
    ahead = {}  # the rollouts that a sampler may have started before the warm-up ended
    for run in sweep.runs:
        lag, slots = run.config.get("sampler.max_lag", 0), run.config.get("sampler.slots", "null")
        ahead[run.name] = 1 + int(
            (slots if isinstance(slots, int) else 1) if lag == "null" else lag
        )
    sampler = frame["process"].astype(str) != AGENT
    late = ~sampler | (own >= frame["run"].astype(str).map(ahead))
    there = set(frame.loc[sampler & late, "run"])
    short = [run for run in dict.fromkeys(frame.loc[sampler, "run"]) if run not in there]
    if short:
        sweep.note(
            "The samplers' shares count waiting for the end of the warm-up, as these runs are too "
            f"short to leave it out: {listed(short)}"
        )
    return frame[late | frame["run"].isin(short)].drop(columns="start")


def _places(frame: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_arrays([frame["run"].astype(str), frame["iteration"]])


class Unit(NamedTuple):
    """The number of environment steps for which seconds are given, and its name."""

    steps: int
    words: str


def unit_of(sweep: Sweep) -> Unit:
    """The nominal round, `batch_size`, if all runs have the same; else a thousand steps."""
    size, *others = set(sweep.values("batch_size"))
    if isinstance(size, int) and not others:
        return Unit(size, f"round of {size:,} steps")
    return Unit(1000, "1,000 steps")


def steps_of(sweep: Sweep) -> pd.Series[float]:
    """[rows of sweep.iterations] the environment steps of each iteration.

    If rows are missing, it is the mean over the iterations since the row before.
    """
    frame = sweep.iterations
    require(frame, "env_steps", "iteration")
    counts = frame[["env_steps", "iteration"]]
    since = counts.groupby(frame["run"], observed=True).diff().fillna(counts)
    return since["env_steps"] / since["iteration"]


def seconds_per_run(
    sweep: Sweep, frame: pd.DataFrame, column: str, *, busy: bool = False
) -> dict[str, FloatArray]:
    """The seconds [1] of each run for `unit_of(sweep)` steps, from its iterations in `frame`.

    `frame` holds the rows of sweep.iterations that count. Collection takes `collect_s` in
    lock-step, and `collect_max_s` with overlap, as the slowest sampler holds up a round. For
    free-running samplers it takes all of the iteration's wall clock per step that arrived, whether
    learned or dropped; the samplers' waiting for free slots counts. `busy` leaves that waiting out:
    as a rollout is a sampler's share of a nominal round, n samplers collect `batch_size` steps in
    the mean time of a rollout.
    """
    require(frame, column)
    unit, steps = unit_of(sweep).steps, steps_of(sweep).loc[frame.index]
    seconds = frame[column].astype(float)
    if column == "collect_s":
        names = frame["run"].astype(str)
        mode = names.map({run.name: run.mode for run in sweep.runs})
        sizes = pd.Series({run.name: run.config.get("batch_size", math.nan) for run in sweep.runs})
        slowest = frame.get("collect_max_s", pd.Series(math.nan, index=frame.index)).astype(float)
        old = names[(mode == OVERLAPPED) & slowest.isna() & seconds.notna()]
        if len(old):
            sweep.note(
                "Collection is the mean over the samplers, which hides a slow one, in runs without "
                f"the column collect_max_s: {listed(list(dict.fromkeys(old)))}"
            )
        free = mode == FREE
        alone = seconds * steps / names.map(sizes).astype(float)
        whole = frame["iteration_s"].astype(float).where(seconds.notna())
        seconds = seconds.mask(mode == OVERLAPPED, slowest.fillna(seconds))
        seconds = seconds.mask(free, alone if busy else whole)
        if not busy and "dropped_steps" in frame:
            steps = steps.mask(free, steps + frame["dropped_steps"].fillna(0.0))
    rows = pd.DataFrame({"run": frame["run"], "seconds": seconds, "steps": steps}).dropna()
    sums = rows.groupby("run", observed=True).sum()
    return {str(run): np.array([unit * took / number]) for run, took, number in sums.itertuples()}


def measure_seconds(sweep: Sweep, frame: pd.DataFrame, column: str, by: str) -> list[Cell]:
    """`seconds_per_run` in cells, which share one spread if runs repeat."""
    return share_spread(sweep, measure(sweep, seconds_per_run(sweep, frame, column), by))
