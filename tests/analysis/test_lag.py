from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis import lag
from walle.analysis.runs import BadInputError, load


def test_lag_rate_and_return_of_every_mode(lag_sweep: Path) -> None:
    sweep = load(lag_sweep)
    table = lag.study(sweep).table.set_index("sampler.max_lag")
    assert table.index.tolist() == [0, 1, "null"]
    assert table.loc[0, ["lag_mean", "lag_median", "lag_max"]].tolist() == [0, 0, 0]
    assert table.loc[1, ["lag_mean", "lag_median", "lag_max"]].tolist() == [1, 1, 1]
    assert 0.5 < table.loc["null", "lag_mean"] < 1.5
    assert table.loc["null", "lag_max"] == 2
    rows = sweep.iterations[(sweep.iterations["iteration"] > 1)]
    seconds = rows[rows["sampler.max_lag"] == 1].groupby("run", observed=True)["iteration_s"].mean()
    assert table.loc[1, "env_steps_per_s"] == pytest.approx(2048 / seconds.mean(), rel=0.01)


def test_only_a_lag_that_varies_has_a_distribution(lag_sweep: Path) -> None:
    study = lag.study(load(lag_sweep))
    (line,) = study.figure.axes[0].get_lines()
    assert line.get_label() == "null, free-running (3 seeds)"
    assert "The lag is 1 in every iteration at sampler.max_lag=1." in study.sentences


def test_without_lag_that_varies_there_is_no_empty_panel(tasks_sweep: Path) -> None:
    study = lag.study(load(tasks_sweep))
    labels = [axes.get_ylabel() for axes in study.figure.axes]
    assert labels == ["environment steps per second"] * 2
    titles = [axes.get_title() for axes in study.figure.axes]
    assert titles == ["HalfCheetah-v5", "Hopper-v5"]  # a panel for each task
    assert study.figure.axes[0].get_xlabel() == "samplers"  # what varies, not max_lag


def test_seeds_are_dots(tmp_path: Path) -> None:
    jobs = [Job(n=n, seed=s, iterations=4, cores=1) for n in (1, 2) for s in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        set_columns(root / str(number), return_mean=[1.0, 2.0, 3.0, 4.0 + job.seed])
    study = lag.study(load(root))
    (rates,) = study.figure.axes
    assert len([x for x in rates.get_lines() if x.get_marker() == "."]) == 4
    assert study.table["final_return"].tolist() == [4.5, 4.5]
    names = [text.get_text() for text in study.figure.legends[0].get_texts()]
    assert names == ["more busy processes than cores"]


def test_the_distribution_reaches_all_iterations(lag_sweep: Path) -> None:
    axes = lag.study(load(lag_sweep)).figure.axes[0]
    for line in axes.get_lines():
        share = np.asarray(line.get_ydata())
        assert share[0] == 0
        assert share[-1] == 100
        assert (np.diff(share) >= 0).all()


def test_an_iteration_is_compared_with_the_longer_of_its_halves(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(max_lag=1)])
    rows = "1,9,9,9,9,0,0\n2,18,2.0,1.0,2.5,1,0\n3,27,2.2,3.0,1.5,1,0\n"  # later means: 2 and 2
    header = "iteration,env_steps,iteration_s,collect_s,learn_s,lag_mean,return_mean\n"
    (root / "0" / "iterations.csv").write_text(header + rows)
    study = lag.study(load(root))
    assert study.table["iteration_over_longer"].tolist() == pytest.approx([2.1 / 2.0])
    (sentence,) = (text for text in study.sentences if "the longer of" in text)
    assert "1.05 " in sentence
    assert "sampler.n=1" in sentence


def test_lock_step_takes_the_sum_and_overlap_the_longer(lag_sweep: Path) -> None:
    table = lag.study(load(lag_sweep)).table.set_index("sampler.max_lag")
    collect = 2.0 * (0.95 / 4 + 0.05)  # seconds; learning takes 0.5, everything else 0.02
    longer = max(collect, 0.5)
    ratios = table["iteration_over_longer"]
    assert ratios[0] == pytest.approx((collect + 0.5 + 0.02) / longer, rel=0.05)
    assert ratios[1] == pytest.approx((longer + 0.02) / longer, rel=0.05)
    assert (table["iteration_over_longer_low"] < ratios).all()


def test_without_an_episode_there_is_no_return(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=3)])
    path = root / "0" / "iterations.csv"
    path.write_text("iteration,env_steps,iteration_s,lag_mean,return_mean\n1,9,1,0,\n2,18,1,0,\n")
    path.with_name("episodes.csv").unlink()
    study = lag.study(load(root))
    assert study.table["final_return"].isna().all()


def test_without_lag(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job()])
    (root / "0" / "iterations.csv").write_text("iteration,iteration_s\n1,1\n2,1\n")
    with pytest.raises(BadInputError, match="no run has a value in the column lag_mean"):
        lag.study(load(root))


def test_the_slowest_sampler_is_the_half_that_counts(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(max_lag=1)])
    header = (
        "iteration,env_steps,iteration_s,collect_s,collect_max_s,learn_s,lag_mean,return_mean\n"
    )
    rows = "1,10,9,9,9,9,0,0\n2,20,4.2,1,4,0.5,1,0\n3,30,4.2,1,4,0.5,1,0\n"
    (root / "0" / "iterations.csv").write_text(header + rows)
    (ratio,) = lag.study(load(root)).table["iteration_over_longer"]
    assert ratio == pytest.approx(4.2 / 4)
