from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis import iteration_time, returns, speedup
from walle.analysis.measuring import wall_clock
from walle.analysis.measuring.wall_clock import iterations_after_warmup
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


def test_times_before_a_resumption_with_other_processes_do_not_count(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=6), Job(iterations=6, seed=1)])
    for name, words in (("0", ["total_steps=9", "sampler.n=4"]), ("1", ["sampler.restarts=9"])):
        compile_in(root / name, {1: 5.0, 4: 5.0})
        path = root / name / "run.json"
        started = json.loads(path.read_text())  # a launcher repeats its words
        resumed = {"resumptions": [{"overrides": [*started["overrides"], *words]}]}
        path.write_text(json.dumps(started | resumed))
    sweep = load(root)
    counted = iterations_after_warmup(sweep, 1)
    places = {run: rows["iteration"].tolist() for run, rows in counted.groupby("run")}
    assert places == {"0": [5, 6], "1": [2, 3, 5, 6]}
    assert "Resumed with other processes, so earlier times are excluded: 0" in sweep.notes


def sampler_shares(sweep: Sweep, warmup: int = 1) -> float:
    """The share of waiting in the time of all samplers."""
    rows = wall_clock.timing_after_warmup(sweep, warmup)
    mine = rows[rows["process"] != "agent"]
    return float(mine["wait_policy_s"].sum() / mine["total_s"].sum())


def test_samplers_do_not_wait_for_the_compiler(tmp_path: Path) -> None:
    """The second row of a sampler tells of its waiting in the first iteration."""
    cold, warm = load(write_cold(tmp_path / "a")), load(write_cold(tmp_path / "b", CACHED_S))
    assert sampler_shares(cold) == pytest.approx(sampler_shares(warm))
    assert sampler_shares(cold) < 0.35
    assert sampler_shares(cold, warmup=0) > 0.45
    rows = wall_clock.timing_after_warmup(cold, 1)
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
    rows = wall_clock.timing_after_warmup(load(root), 1)
    assert rows.groupby("process", observed=True)["iteration"].min().to_dict() == {
        "agent": 2,
        "sampler-0": first,
    }


def test_runs_too_short_for_that_are_told(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(iterations=2)]))
    assert len(wall_clock.timing_after_warmup(sweep, 1)) == 2
    assert any("too short to leave it out: 0" in note for note in sweep.notes)


def test_the_agent_s_time_has_no_compiling(tmp_path: Path) -> None:
    sweep = load(write_cold(tmp_path / "s"))
    agent = wall_clock.timing_after_warmup(sweep, 0)
    agent = agent[agent["process"] == "agent"]
    assert agent["compile_s"].sum() == 0
    assert agent["total_s"].max() < 10


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
    np.testing.assert_allclose(wall_clock.clock(sweep)["wall_s"], whole - less)
    shown = wall_clock.clock(sweep, compiling=True)["wall_s"]
    np.testing.assert_allclose(shown, whole - np.array([0, 0, 0, 3, 3, 3]))


QUIET = {"noise": 0.0, "serial": 0.0}


def write_a3c(root: Path) -> Path:
    """A3C: an iteration has the rollout of one of n samplers, batch_size / n steps.

    Iterations at n=4 are 1.75 times as short, and have a quarter of the steps.
    """
    jobs = [
        Job(n=n, seed=seed, algo="a3c", max_lag=None, batch_size=512, **QUIET)  # type: ignore[arg-type]
        for n in (1, 4)
        for seed in (0, 1)
    ]
    write_sweep(root, jobs)
    for number, job in enumerate(jobs):
        seconds = 7.0 if job.n == 1 else 4.0
        steps = 512 // job.n * np.arange(1, 31)
        set_columns(root / str(number), env_steps=steps, iteration_s=seconds, collect_s=8 / job.n)
    return root


def test_a3c_is_measured_by_steps_and_not_by_iterations(tmp_path: Path) -> None:
    """By iterations the speedup end to end is 1.75, by steps 0.4375."""
    study = speedup.study(load(write_a3c(tmp_path / "s")), end_to_end=True)
    rows = study.table[study.table["sampler.n"] == 4].set_index("of")
    assert rows.loc["end to end", "speedup"] == pytest.approx(1.75 / 4)
    assert rows.loc["end to end", "seconds"] == pytest.approx(16)
    assert any("512 at sampler.n=1, 128 at sampler.n=4" in text for text in study.sentences)


def test_free_running_samplers_are_measured_by_throughput(tmp_path: Path) -> None:
    """Samplers wait for a free slot: by their busy time four would be 4 times as fast as one.

    The steps that arrive in a second are 512 / 7 with one sampler, 128 / 4 with four.
    """
    study = speedup.study(load(write_a3c(tmp_path / "s")))
    np.testing.assert_allclose(study.table["seconds"], [7, 16])
    np.testing.assert_allclose(study.table["speedup"], [1, 7 / 16])
    said = " ".join(study.sentences)
    assert "Free-running, collection is timed by the wall clock: the seconds in which" in said
    assert "bottleneck" not in said  # collection waits for learning already


def test_dropped_steps_have_arrived_too(tmp_path: Path) -> None:
    root = write_a3c(tmp_path / "s")
    for run in ("1", "2", "3", "0"):
        set_columns(root / run, dropped_steps=128, dropped_rollouts=1)
    found = speedup.study(load(root)).table["seconds"]
    np.testing.assert_allclose(found, [7 * 512 / 640, 4 * 512 / 256])


def test_over_the_longer_half_goes_by_busy_time(tmp_path: Path) -> None:
    """Four samplers collect all steps in 2 s, though an iteration's steps arrive in 16 s."""
    sweep = load(write_a3c(tmp_path / "s"))
    found = wall_clock.seconds_per_run(sweep, sweep.iterations, "collect_s", busy=True)
    assert {run: values.mean() for run, values in found.items()} == pytest.approx(
        {"0": 8, "1": 8, "2": 2, "3": 2}
    )


def test_seconds_are_those_of_the_nominal_round_or_of_a_thousand_steps(tmp_path: Path) -> None:
    same = load(write_sweep(tmp_path / "a", [Job(), Job(n=2)]))
    assert wall_clock.unit_of(same) == (2048, "round of 2,048 steps")
    sizes = [Job(batch_size=size, **QUIET) for size in (2000, 4000)]  # type: ignore[arg-type]
    sweep = load(write_sweep(tmp_path / "b", sizes))
    study = iteration_time.study(sweep, by="batch_size")
    np.testing.assert_allclose(study.table["collect_s"], [2 / 2, 2 / 4])
    assert study.figure.axes[0].get_ylabel() == "collection (s)\nper 1,000 steps"


def test_rounds_of_unequal_length_by_hand(tmp_path: Path) -> None:
    """Whole episodes: 100, 300 and 200 steps in 1, 2 and 3 seconds are 6 s for 600 steps."""
    root = write_sweep(tmp_path / "s", [Job(iterations=3, batch_size=200)])
    set_columns(root / "0", env_steps=[100, 400, 600], learn_s=[1.0, 2.0, 3.0])
    sweep = load(root)
    found = wall_clock.seconds_per_run(sweep, sweep.iterations, "learn_s")["0"]
    assert found.mean() == pytest.approx(200 * 6 / 600)


def test_steps_of_missing_rows_are_shared_by_the_iterations_between(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=4, batch_size=100)])
    lines = (root / "0" / "iterations.csv").read_text().splitlines(keepends=True)
    (root / "0" / "iterations.csv").write_text("".join([lines[0], lines[2], lines[4]]))
    assert wall_clock.steps_of(load(root)).tolist() == [100, 100]


def test_the_slowest_sampler_counts_where_rounds_overlap(tmp_path: Path) -> None:
    """One sampler of eight has twice the lanes of the others: 8 / 4.4 in place of 8 / 7.56."""
    jobs = [Job(n=n, seed=s, max_lag=1, **QUIET) for n in (1, 8) for s in (0, 1)]  # type: ignore[arg-type]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        mean, slowest = (8.0, 8.0) if job.n == 1 else (8 / 7.56, 8 / 4.4)
        set_columns(root / str(number), collect_s=mean, collect_max_s=slowest)
    study = speedup.study(load(root))
    np.testing.assert_allclose(study.table["speedup"], [1, 4.4])
    for number in range(4):
        set_columns(root / str(number), collect_max_s=None)
    sweep = load(root)
    assert speedup.study(sweep).table["speedup"].iloc[1] == pytest.approx(7.56)
    assert any("without the column collect_max_s: 0, 1, 2, 3" in note for note in sweep.notes)


def test_lanes_a_sampler_stand_beside_the_fit(speedup_sweep: Path, lag_sweep: Path) -> None:
    """64 lanes: 16 samplers have 4 each."""
    study = speedup.study(load(speedup_sweep))
    assert study.table["lanes_a_sampler"].tolist() == ["64", "32", "16", "8", "4"]
    assert "At n=16 a sampler has fewer than 8 lanes." in " ".join(study.sentences)


def test_what_lies_beyond_the_points_is_flagged(tmp_path: Path) -> None:
    """`bottleneck from N = 290` from n = 1, 2 and 4."""
    jobs = [Job(n=n, seed=s, learn_s=2 / 290, **QUIET) for n in (1, 2, 4) for s in (0, 1)]  # type: ignore[arg-type]
    study = speedup.study(load(write_sweep(tmp_path / "s", jobs)))
    said = next(text for text in study.sentences if "bottleneck" in text)
    assert "N = 290 [290, 290] samplers on (extrapolated: measured up to N = 4)" in said


def test_learning_beside_too_many_samplers_does_not_count(speedup_sweep: Path) -> None:
    """At n=16 on 8 cores learning takes ten times as long."""
    sweep = load(speedup_sweep)
    rows = sweep.iterations
    slow = rows["learn_s"].where(rows["sampler.n"] < 16, 5.0)
    sweep._frames["iterations"] = rows.assign(learn_s=slow)
    said = " ".join(speedup.study(sweep).sentences)
    assert "Learning takes 0.5 s per round of 2,048 steps" in said
    assert "Learning takes 1.4 s" in " ".join(speedup.study(sweep, fit_all=True).sentences)


def test_a_law_is_dashed_beyond_its_points(speedup_sweep: Path) -> None:
    axes = speedup.study(load(speedup_sweep)).figure.axes[0]
    laws = {line.get_linestyle(): line for line in axes.get_lines() if len(line.get_xdata()) == 100}
    drawn = {dash: pd.Series(line.get_ydata(), line.get_xdata()) for dash, line in laws.items()}
    assert drawn["-"].dropna().index.max() <= 8 < drawn["--"].dropna().index.min()


def test_iterations_before_the_first_update_are_warm_up_too(tmp_path: Path) -> None:
    """As those before `learning_starts`, which take less time."""
    root = write_sweep(tmp_path / "s", [Job(), Job(seed=1)])
    for run, before in (("0", 10), ("1", 30)):  # the second has no update at all
        set_columns(root / run, gradient_steps=[0] * before + [4] * (30 - before))
    sweep = load(root)
    counted = wall_clock.counted_rows(sweep, 1).groupby(sweep.iterations["run"], observed=True)
    assert counted.sum().tolist() == [20, 29]
    assert "Iterations before the first update belong to the warm-up: 0" in sweep.notes
    assert wall_clock.counted_rows(sweep, 0).all()
