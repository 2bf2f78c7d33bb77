from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis import iteration_time, speedup
from walle.analysis.measuring import times
from walle.analysis.runs import load

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
    found = times.seconds_per_run(sweep, sweep.iterations, "collect_s", busy=True)
    assert {run: values.mean() for run, values in found.items()} == pytest.approx(
        {"0": 8, "1": 8, "2": 2, "3": 2}
    )


def test_seconds_are_those_of_the_nominal_round_or_of_a_thousand_steps(tmp_path: Path) -> None:
    same = load(write_sweep(tmp_path / "a", [Job(), Job(n=2)]))
    assert times.unit_of(same) == (2048, "round of 2,048 steps")
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
    found = times.seconds_per_run(sweep, sweep.iterations, "learn_s")["0"]
    assert found.mean() == pytest.approx(200 * 6 / 600)
    # what an iteration differs from 1 s per 100 steps, over the mean of 200 steps
    np.testing.assert_allclose(found, 2 + np.array([0, -1, 1]) * 200 / 200)


def test_steps_of_missing_rows_are_shared_by_the_iterations_between(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=4, batch_size=100)])
    lines = (root / "0" / "iterations.csv").read_text().splitlines(keepends=True)
    (root / "0" / "iterations.csv").write_text("".join([lines[0], lines[2], lines[4]]))
    assert times.steps_of(load(root)).tolist() == [100, 100]


def test_the_slowest_sampler_counts_where_rounds_overlap(tmp_path: Path) -> None:
    """One sampler of eight has twice the lanes of the others: 8 / 4.4 in place of 8 / 7.56."""
    jobs = [Job(n=n, seed=s, max_lag=1, **QUIET) for n in (1, 8) for s in (0, 1)]  # type: ignore[arg-type]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        mean, slowest = (8.0, 8.0) if job.n == 1 else (8 / 7.56, 8 / 4.4)
        set_columns(root / str(number), collect_s=mean, collect_max_s=slowest)
    study = speedup.study(load(root))
    np.testing.assert_allclose(study.table["speedup"], [1, 4.4])
    serial = (1 / 4.4 - 1 / 8) / (1 - 1 / 8)
    assert any(f"serial fraction {100 * serial:.2g}%" in text for text in study.sentences)
    for number in range(4):
        set_columns(root / str(number), collect_max_s=None)
    sweep = load(root)
    assert speedup.study(sweep).table["speedup"].iloc[1] == pytest.approx(7.56)
    assert any("without the column collect_max_s: 0, 1, 2, 3" in note for note in sweep.notes)


def test_lanes_a_sampler_stand_beside_the_fit(speedup_sweep: Path, lag_sweep: Path) -> None:
    """64 lanes: 16 samplers have 4 each."""
    study = speedup.study(load(speedup_sweep))
    assert study.table["lanes_a_sampler"].tolist() == ["64", "32", "16", "8", "4"]
    said = " ".join(study.sentences)
    assert "Lanes a sampler: 64 at n=1, 32 at n=2, 16 at n=4, 8 at n=8, 4 at n=16." in said
    assert "At n=16 a sampler has fewer than 8 lanes." in said


def test_what_lies_beyond_the_points_is_flagged(tmp_path: Path) -> None:
    """`bottleneck from N = 290` from n = 1 and 2."""
    jobs = [Job(n=n, seed=s, learn_s=2 / 290, **QUIET) for n in (1, 2) for s in (0, 1)]  # type: ignore[arg-type]
    study = speedup.study(load(write_sweep(tmp_path / "s", jobs)))
    said = next(text for text in study.sentences if "bottleneck" in text)
    assert "N = 290 [290, 290] samplers on (extrapolated: measured up to N = 2)" in said


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
