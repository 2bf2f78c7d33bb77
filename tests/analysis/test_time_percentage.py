from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from tests.analysis.synthetic import Job, write_sweep
from walle.analysis import time_percentage
from walle.analysis.drawing import style
from walle.analysis.runs import load


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
    assert "no run has a timing.csv" in sweep.notes[0]


def test_a_bar_for_each_combination_in_three_panels(tmp_path: Path) -> None:
    jobs = [
        Job(n=n, env=env, algo=algo) for n in (1, 2) for env in "xyz" for algo in ("a2c", "ppo")
    ]
    figure = time_percentage.study(load(write_sweep(tmp_path / "s", jobs))).figure
    assert [axes.get_title() for axes in figure.axes] == ["iteration", "samplers", "agent"]
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert names[:3] == ["a2c, x, n 1", "a2c, x, n 2", "a2c, y, n 1"]
    assert len(names) == 12
    assert figure.get_figheight() < 5


def test_without_by_it_shows_what_varies(lag_sweep: Path) -> None:
    axes = time_percentage.study(load(lag_sweep)).figure.axes[0]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == ["max_lag 0", "max_lag 1", "max_lag null"]


def test_a_section_has_one_colour(speedup_sweep: Path) -> None:
    figure = time_percentage.study(load(speedup_sweep)).figure
    for axes in figure.axes:
        for bars in axes.containers:
            name = str(bars.get_label()).replace(" ", "_")
            assert {bar.get_facecolor() for bar in bars} == {to_rgba(style.section(name)[0])}


def test_without_warm_up_the_compiler_s_time_is_left_out(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job()])
    header = "iteration,env_steps,wall_s,iteration_s,collect_s,learn_s,other_s,compile_s\n"
    rows = "1,10,9,9,1,1,7,6\n2,20,12,3,1,1,1,0\n"
    (root / "0" / "iterations.csv").write_text(header + rows)
    (root / "0" / "timing.csv").unlink()

    table = time_percentage.study(load(root), warmup=0).table
    other = table[table["part"] == "other"]["percent"].iloc[0]
    assert other == pytest.approx(100 * 2 / 6)
