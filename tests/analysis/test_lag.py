from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis import lag
from analysis.directories import BadInputError
from analysis.runs import load
from tests.analysis.synthetic import Job, write_sweep


def test_lag_rate_and_return_of_every_mode(lag_sweep: Path) -> None:
    sweep = load(lag_sweep)
    table = lag.study(sweep).table.set_index("sampler.max_lag")
    assert table.index.tolist() == [0, 1, "null"]
    assert table.loc[0, ["lag_mean", "lag_median", "lag_max"]].tolist() == [0, 0, 0]
    assert table.loc[1, ["lag_mean", "lag_median", "lag_max"]].tolist() == [1, 1, 1]
    assert 0.5 < table.loc["null", "lag_mean"] < 1.5
    assert table.loc["null", "lag_max"] == 2
    rows = sweep.iterations[(sweep.iterations["iteration"] > 1)]
    seconds = rows[rows["sampler.max_lag"] == 1]["iteration_s"].mean()
    assert table.loc[1, "iterations_per_s"] == pytest.approx(1 / seconds)


def test_the_distribution_reaches_all_iterations(lag_sweep: Path) -> None:
    axes = lag.study(load(lag_sweep)).figure.axes[0]
    for line in axes.get_lines():
        share = np.asarray(line.get_ydata())
        assert share[0] == 0
        assert share[-1] == 100
        assert (np.diff(share) >= 0).all()


def test_final_return_is_over_the_last_tenth(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(iterations=30)]))
    values = sweep.iterations["return_mean"].dropna().to_numpy()
    np.testing.assert_array_equal(lag.final_returns(sweep.iterations)["0"], values[-3:])


def test_without_an_episode_there_is_no_return(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=3)])
    path = root / "0" / "iterations.csv"
    path.write_text("iteration,iteration_s,lag_mean,return_mean\n1,1,0,\n2,1,0,\n")
    study = lag.study(load(root))
    assert any("No episode has ended" in text for text in study.sentences)
    assert study.table["final_return"].isna().all()


def test_without_lag(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job()])
    (root / "0" / "iterations.csv").write_text("iteration,iteration_s\n1,1\n2,1\n")
    with pytest.raises(BadInputError, match="no run has a value in lag_mean"):
        lag.study(load(root))
