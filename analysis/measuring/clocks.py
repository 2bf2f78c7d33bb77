"""Takes compiling out of times, and tells which iterations and rows belong to the warm-up."""

from __future__ import annotations

import numpy as np
import pandas as pd

from walle.analysis.loading.directories import Run, listed
from walle.analysis.runs import Sweep

AGENT = "agent"


def clock(sweep: Sweep, *, compiling: bool = False) -> pd.DataFrame:
    """sweep.iterations with the compiler's time taken out of wall_s, iteration_s and other_s.

    The wall clock of an iteration loses all compiling of its run so far. What the compiler takes
    depends on what it finds in its cache, so a first run would look slower than the next one. A run
    that went on after an interruption has started twice: its wall clock keeps the first start only.

    Args:
        sweep: the runs.
        compiling: leave the compiler's time in.
    """
    frame = sweep.iterations
    if "wall_s" in frame:
        frame = frame.assign(wall_s=frame["wall_s"] - _starting_again(sweep))
    if compiling:
        return frame
    took = compile_seconds(sweep)
    so_far = took.groupby(frame["run"], observed=True).cumsum()
    less = {"wall_s": so_far, "iteration_s": took, "other_s": took}
    return frame.assign(**{name: frame[name] - s for name, s in less.items() if name in frame})


def _starting_again(sweep: Sweep) -> pd.Series[float]:
    """[rows of sweep.iterations] the seconds of all starts of the run so far, but for the first.

    The first iteration after a start has the start in its `other_s`, beside the compiler's time:
    what is above the median of the run's other iterations.
    """
    frame, number = sweep.iterations, starts(sweep)
    if "other_s" not in frame or not (number > 1).any():
        return pd.Series(0.0, index=frame.index)
    first = ~pd.concat([frame["run"].astype(str), number], axis=1).duplicated()
    other = frame["other_s"] - compile_seconds(sweep)
    usual = other.where(~first).groupby(frame["run"], observed=True).transform("median")
    again = (other - usual).clip(lower=0.0).where(first & (number > 1), 0.0).fillna(0.0)
    return again.groupby(frame["run"], observed=True).cumsum()


def compile_seconds(sweep: Sweep) -> pd.Series[float]:
    """[rows of sweep.iterations] seconds of compiling; timing.csv has them for older runs."""
    frame = sweep.iterations
    known = frame.get("compile_s", pd.Series(np.nan, index=frame.index)).astype(float)
    if known.notna().all() or "iteration" not in frame:
        return known.fillna(0.0)
    timing = sweep.timing
    if not {"process", "iteration", "compile_s"} <= set(timing):
        return known.fillna(0.0)
    rows = timing[timing["process"].astype(str) == AGENT]
    found = pd.Series(rows["compile_s"].to_numpy(float), index=_places(rows)).reindex(
        _places(frame)
    )
    return known.fillna(pd.Series(found.to_numpy(), index=frame.index)).fillna(0.0)


def starts(sweep: Sweep) -> pd.Series[int]:
    """[rows of sweep.iterations] how often the run had started or gone on by then, from 1.

    Every process of an agent compiles, for microseconds at least, before its first iteration and
    at no other time.
    """
    frame = sweep.iterations
    begins = (compile_seconds(sweep) > 0) | ~frame["run"].duplicated()
    return begins.astype(int).groupby(frame["run"], observed=True).cumsum()


def counted_rows(sweep: Sweep, warmup: int) -> pd.Series[bool]:
    """[rows of sweep.iterations] without the first `warmup` after each start or resumption."""
    groups = [sweep.iterations["run"], starts(sweep)]
    place = sweep.iterations.groupby(groups, observed=True).cumcount()
    return place >= warmup


def timing_after_warmup(sweep: Sweep, warmup: int, *, compiling: bool = False) -> pd.DataFrame:
    """The rows of sweep.timing whose time lies after the warm-up, without the compiler's time.

    A sampler's row begins where its rollout before was handed over, so its first rows after the
    warm-up still tell of waiting for the warm-up's end, and of waiting for the compiler: one row in
    lock-step, one more for each round of lag or free slot. They are left out.

    Args:
        sweep: the runs.
        warmup: the number of iterations that are left out; 0 leaves in every row.
        compiling: leave the compiler's time in.
    """
    frame = sweep.timing
    if not len(frame):
        return frame
    if "compile_s" in frame and not compiling:
        took = frame["compile_s"].astype(float).fillna(0.0)
        frame = frame.assign(total_s=frame["total_s"] - took, compile_s=0.0)
    if not warmup:
        return frame
    rows = sweep.iterations
    start = pd.Series(starts(sweep).where(counted_rows(sweep, warmup)).to_numpy(), _places(rows))
    frame = frame.assign(start=start.reindex(_places(frame)).to_numpy()).dropna(subset=["start"])
    own = frame.groupby(["run", "process", "start"], observed=True).cumcount()
    ahead = frame["run"].astype(str).map({run.name: _rows_ahead(run) for run in sweep.runs})
    late = (frame["process"].astype(str) == AGENT) | (own >= ahead)
    return frame[late | frame["run"].isin(_too_short(sweep, frame, late))].drop(columns="start")


def _too_short(sweep: Sweep, frame: pd.DataFrame, late: pd.Series[bool]) -> list[str]:
    """The runs without any late row of a sampler; notes them."""
    sampler = frame["process"].astype(str) != AGENT
    there = set(frame.loc[sampler & late, "run"])
    short = [run for run in dict.fromkeys(frame.loc[sampler, "run"]) if run not in there]
    if short:
        sweep.note(
            "The samplers' shares count waiting for the end of the warm-up, as these runs are too "
            f"short to leave it out: {listed(short)}"
        )
    return short


def _rows_ahead(run: Run) -> int:
    """The number of rollouts that a sampler may have begun before the warm-up ended."""
    lag = run.config.get("sampler.max_lag", 0)
    slots = run.config.get("sampler.slots", "null")
    if lag == "null":
        lag = slots if isinstance(slots, int) else 1
    return 1 + int(lag)


def _places(frame: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_arrays([frame["run"].astype(str), frame["iteration"]])
