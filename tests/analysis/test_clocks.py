from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis import returns, speedup
from walle.analysis.measuring import clocks
from walle.analysis.measuring.cells import iterations_after_warmup
from walle.analysis.runs import Sweep, load

CACHED_S = 1e-6  # a process that finds everything compiled still enters the section


def write_cold(root: Path, compile_s: float = 39.0) -> Path:
    """The first job of a sweep, n=1, compiles for 39 seconds; the others find its cache."""
    jobs = [Job(n=n, seed=s, iterations=6, noise=0.0) for n in (1, 2) for s in (0, 1)]
    write_sweep(root, jobs)
    for number in range(4):
        compile_in(root / str(number), {1: compile_s if number == 0 else CACHED_S})
    return root


def compile_in(run: Path, seconds: dict[int, float]) -> None:
    """Adds compiling before the given iterations of a run, in all its files."""
    rows = pd.read_csv(run / "iterations.csv")
    took = rows["iteration"].map(seconds).fillna(0.0)
    longer = {name: rows[name] + took for name in ("iteration_s", "other_s")}
    set_columns(run, compile_s=took, wall_s=rows["wall_s"] + took.cumsum(), **longer)
    rows = pd.read_csv(run / "timing.csv")
    took = rows["iteration"].map(seconds).fillna(0.0).where(rows["process"] == "agent", 0.0)
    # In lock-step a sampler waits for the next policy, and its next row tells of it.
    waits = (rows["iteration"] - 1).map(seconds).fillna(0.0).where(rows["process"] != "agent", 0)
    compiling = took.where(rows["process"] == "agent")
    set_columns(
        run,
        "timing",
        compile_s=compiling,
        wait_policy_s=rows["wait_policy_s"] + waits,
        total_s=rows["total_s"] + took + waits,
    )


def test_the_time_to_a_return_has_no_compiling(tmp_path: Path) -> None:
    sweep = load(write_cold(tmp_path / "s"))
    table = speedup.study(sweep, time_to_return=1000).table
    mine = table[table["of"] == "to return 1000"]
    assert mine["seconds"].iloc[0] < 30
    table = speedup.study(sweep, time_to_return=1000, compiling=True).table
    cold = table[table["of"] == "to return 1000"]
    assert cold["seconds"].iloc[0] == pytest.approx(mine["seconds"].iloc[0] + 39 / 2)


def test_wall_clock_curves_have_no_compiling(tmp_path: Path) -> None:
    warm = returns.study(load(write_cold(tmp_path / "a", CACHED_S)), x="wall").points
    cold = returns.study(load(write_cold(tmp_path / "b")), x="wall").points
    shown = returns.study(load(write_cold(tmp_path / "c")), x="wall", compiling=True).points
    assert warm is not None
    assert cold is not None
    assert shown is not None
    ours, theirs = (frame["wall_s"].to_numpy(float) for frame in (cold, warm))
    assert abs(ours.size - theirs.size) <= 2  # the last point of a line is a matter of rounding
    assert np.abs(ours[:, None] - theirs).min(axis=1).max() < 1e-4
    assert shown["wall_s"].max() > cold["wall_s"].max() + 30


def test_an_iteration_after_a_resumption_is_warm_up_too(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=6), Job(iterations=6, seed=1)])
    compile_in(root / "0", {1: 5.0, 4: 5.0})
    compile_in(root / "1", {1: CACHED_S})
    sweep = load(root)
    counted = iterations_after_warmup(sweep, 1)
    places = {run: rows["iteration"].tolist() for run, rows in counted.groupby("run")}
    assert places == {"0": [2, 3, 5, 6], "1": [2, 3, 4, 5, 6]}
    assert len(iterations_after_warmup(sweep, 0)) == 12
    two = iterations_after_warmup(sweep, 2)
    assert two[two["run"] == "0"]["iteration"].tolist() == [3, 6]


def test_runs_of_earlier_versions_have_their_compiling_in_timing_csv(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=4), Job(iterations=4, seed=1)])
    compile_in(root / "0", {1: 5.0, 3: 7.0})
    set_columns(root / "0", compile_s=None)
    sweep = load(root)
    assert clocks.compile_seconds(sweep).tolist() == [5, 0, 7, 0, CACHED_S, 0, 0, 0]
    assert clocks.starts(sweep).tolist() == [1, 1, 2, 2, 1, 1, 1, 1]
    (root / "0" / "timing.csv").unlink()
    (root / "1" / "timing.csv").unlink()
    assert clocks.starts(load(root)).tolist() == [1] * 8


def sampler_shares(sweep: Sweep, warmup: int = 1) -> float:
    """The share of waiting in the time of all samplers."""
    rows = clocks.timing_after_warmup(sweep, warmup)
    mine = rows[rows["process"] != "agent"]
    return float(mine["wait_policy_s"].sum() / mine["total_s"].sum())


def test_samplers_do_not_wait_for_the_compiler(tmp_path: Path) -> None:
    """The second row of a sampler tells of its waiting in the first iteration."""
    cold, warm = load(write_cold(tmp_path / "a")), load(write_cold(tmp_path / "b", CACHED_S))
    assert sampler_shares(cold) == pytest.approx(sampler_shares(warm))
    assert sampler_shares(cold) < 0.35
    assert sampler_shares(cold, warmup=0) > 0.45
    rows = clocks.timing_after_warmup(cold, 1)
    first = rows.groupby(["run", "process"], observed=True)["iteration"].min()
    assert first["0", "agent"] == 2
    assert first["0", "sampler-0"] == 3


@pytest.mark.parametrize(("max_lag", "slots", "first"), [(0, None, 3), (1, None, 4), (None, 2, 5)])
def test_rows_of_samplers_that_began_before_the_warm_up_ended(
    tmp_path: Path, max_lag: int | None, slots: int | None, first: int
) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=8, max_lag=max_lag)])
    if slots:
        text = (root / "0" / "run.json").read_text()
        (root / "0" / "run.json").write_text(text.replace('"lanes"', f'"slots": {slots}, "lanes"'))
    rows = clocks.timing_after_warmup(load(root), 1)
    assert rows.groupby("process", observed=True)["iteration"].min().to_dict() == {
        "agent": 2,
        "sampler-0": first,
    }


def test_runs_too_short_for_that_are_told(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(iterations=2)]))
    assert len(clocks.timing_after_warmup(sweep, 1)) == 2
    assert any("too short to leave it out: 0" in note for note in sweep.notes)


def test_the_agent_s_time_has_no_compiling(tmp_path: Path) -> None:
    sweep = load(write_cold(tmp_path / "s"))
    agent = clocks.timing_after_warmup(sweep, 0)
    agent = agent[agent["process"] == "agent"]
    assert agent["compile_s"].sum() == 0
    assert agent["total_s"].max() < 10
    shown = clocks.timing_after_warmup(sweep, 0, compiling=True)
    assert shown["compile_s"].max() == 39


def test_the_start_of_a_resumed_run_is_no_part_of_the_wall_clock(tmp_path: Path) -> None:
    """Both starts take 3 s, in other_s of their first iterations; the first one stays."""
    root = write_sweep(tmp_path / "s", [Job(iterations=6, noise=0.0)])
    compile_in(root / "0", {1: 1.0, 4: 1.0})
    rows = pd.read_csv(root / "0" / "iterations.csv")
    start = 3.0 * rows["iteration"].isin([1, 4])
    whole = rows["wall_s"] + start.cumsum()
    set_columns(root / "0", wall_s=whole, other_s=rows["other_s"] + start)
    sweep = load(root)
    less = np.array([1, 1, 1, 2 + 3, 2 + 3, 2 + 3])
    np.testing.assert_allclose(clocks.clock(sweep)["wall_s"], whole - less)
    shown = clocks.clock(sweep, compiling=True)["wall_s"]
    np.testing.assert_allclose(shown, whole - np.array([0, 0, 0, 3, 3, 3]))
