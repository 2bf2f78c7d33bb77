"""Seconds and shares: rollout_time, learning_time, time_percentage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis import learning_time, rollout_time, time_percentage
from analysis.directories import BadInputError
from analysis.runs import load
from tests.analysis.synthetic import Job, write_sweep


def test_rollout_time_is_the_mean_of_collect_s(speedup_sweep: Path) -> None:
    sweep = load(speedup_sweep)
    table = rollout_time.study(sweep).table
    rows = sweep.iterations[sweep.iterations["iteration"] > 1]
    by_hand = rows.groupby("sampler.n")["collect_s"].mean()
    np.testing.assert_allclose(table["collect_s"], by_hand)
    assert (table["collect_s_low"] < table["collect_s"]).all()
    assert (table["collect_s"] < table["collect_s_high"]).all()
    assert table["repeats"].tolist() == ["3 seeds"] * 5


def test_the_ideal_falls_as_one_over_n(speedup_sweep: Path) -> None:
    axes = rollout_time.study(load(speedup_sweep), log=True).figure.axes[0]
    ideal = next(line for line in axes.get_lines() if line.get_label() == "ideal")
    n, seconds = np.asarray(ideal.get_xdata()), np.asarray(ideal.get_ydata())
    np.testing.assert_allclose(n * seconds, n[0] * seconds[0])
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_learning_time_has_no_ideal(speedup_sweep: Path) -> None:
    study = learning_time.study(load(speedup_sweep), paper=True)
    labels = {line.get_label() for line in study.figure.axes[0].get_lines()}
    assert "ideal" not in labels
    assert "WALL-E 2018" in labels
    np.testing.assert_allclose(study.table["learn_s"], 0.5, rtol=0.05)


def test_iterations_of_another_size_than_the_papers_are_said(tmp_path: Path) -> None:
    for size, said in ((20_000, False), (2048, True)):
        root = write_sweep(tmp_path / str(size), [Job(batch_size=size), Job(n=2, batch_size=size)])
        study = rollout_time.study(load(root), paper=True)
        assert any("compare the slopes" in text for text in study.sentences) == said


def test_words_on_the_axis(lag_sweep: Path) -> None:
    study = learning_time.study(load(lag_sweep), by="max_lag")
    assert study.table["sampler.max_lag"].tolist() == [0, 1, "null"]
    ticks = [tick.get_text() for tick in study.figure.axes[0].get_xticklabels()]
    assert ticks == ["0", "1", "null"]


def test_shares_of_a_lock_step_iteration_sum_to_one(speedup_sweep: Path) -> None:
    table = time_percentage.study(load(speedup_sweep)).table
    for of in ("iteration", "samplers", "agent"):
        sums = table[table["of"] == of].groupby("sampler.n")["percent"].sum()
        np.testing.assert_allclose(sums, 100, rtol=1e-6)


def test_shares_are_of_all_the_time_not_means_of_shares(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=2, noise=0.0)])
    csv = "iteration,iteration_s,collect_s,learn_s,other_s\n1,10,10,0,0\n2,2,0,2,0\n"
    (root / "0" / "iterations.csv").write_text(csv)
    table = time_percentage.study(load(root), warmup=0).table
    share = table[(table["of"] == "iteration") & (table["part"] == "collect")]["percent"]
    assert share.tolist() == pytest.approx([100 * 10 / 12])


def test_with_overlap_both_sides_stand_beside_each_other(lag_sweep: Path) -> None:
    study = time_percentage.study(load(lag_sweep), by="sampler.max_lag")
    busy = study.table[study.table["of"] == "busy"].set_index(["part", "sampler.max_lag"])
    overlapped = busy.loc[("collect", 1), "percent"] + busy.loc[("learn", 1), "percent"]
    assert overlapped > 150
    assert "iteration" not in set(study.table["of"])


def test_without_timing_the_iterations_are_drawn_and_it_is_said(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(), Job(n=2)])
    for run in ("0", "1"):
        (root / run / "timing.csv").unlink()
    sweep = load(root)
    study = time_percentage.study(sweep)
    assert set(study.table["of"]) == {"iteration"}
    assert "no timing.csv" in sweep.notes[0]


def test_a_column_that_is_empty_everywhere(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job()])
    (root / "0" / "iterations.csv").write_text("iteration,learn_s\n1,\n2,\n")
    with pytest.raises(BadInputError, match="no run has a value in the column learn_s"):
        learning_time.study(load(root))
    with pytest.raises(BadInputError, match="no column 'collect_s'"):
        rollout_time.study(load(root))
