from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.analysis.synthetic import Job, write_sweep
from walle.analysis import iteration_time
from walle.analysis.runs import BadInputError, load


def test_collection_time_is_the_mean_of_collect_s(speedup_sweep: Path) -> None:
    sweep = load(speedup_sweep)
    table = iteration_time.study(sweep).table
    rows = sweep.iterations[sweep.iterations["iteration"] > 1]
    by_hand = rows.groupby("sampler.n")["collect_s"].mean()
    np.testing.assert_allclose(table["collect_s"], by_hand)
    assert (table["collect_s_low"] < table["collect_s"]).all()
    assert (table["collect_s"] < table["collect_s_high"]).all()
    assert table["repeats"].tolist() == ["3 seeds"] * 5


def test_the_ideal_falls_as_one_over_n(speedup_sweep: Path) -> None:
    axes = iteration_time.study(load(speedup_sweep), log=True).figure.axes[0]
    ideal = next(line for line in axes.get_lines() if line.get_label() == "ideal")
    n, seconds = np.asarray(ideal.get_xdata()), np.asarray(ideal.get_ydata())
    np.testing.assert_allclose(n * seconds, n[0] * seconds[0])
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_learning_time_has_no_ideal(speedup_sweep: Path) -> None:
    study = iteration_time.study(load(speedup_sweep), of="learn", paper=True)
    labels = {line.get_label() for line in study.figure.axes[0].get_lines()}
    assert "ideal" not in labels
    assert "WALL-E 2018" in labels
    np.testing.assert_allclose(study.table["learn_s"], 0.5, rtol=0.05)


def test_iterations_of_another_size_than_the_papers_are_said(tmp_path: Path) -> None:
    for size, said in ((20_000, False), (2048, True)):
        root = write_sweep(tmp_path / str(size), [Job(batch_size=size), Job(n=2, batch_size=size)])
        study = iteration_time.study(load(root), paper=True)
        assert any("compare the slopes" in text for text in study.sentences) == said


def test_words_on_the_axis(lag_sweep: Path) -> None:
    study = iteration_time.study(load(lag_sweep), of="learn", by="max_lag")
    assert study.table["sampler.max_lag"].tolist() == [0, 1, "null"]
    ticks = [tick.get_text() for tick in study.figure.axes[0].get_xticklabels()]
    assert ticks == ["0", "1", "null"]
    joined = [line for line in study.figure.axes[0].get_lines() if len(line.get_xdata()) > 1]
    assert not [line for line in joined if line.get_gid() is None]  # bars of intervals have one


def test_a_column_that_is_empty_everywhere(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job()])
    (root / "0" / "iterations.csv").write_text("iteration,env_steps,learn_s\n1,9,\n2,18,\n")
    with pytest.raises(BadInputError, match="no run has a value in the column learn_s"):
        iteration_time.study(load(root), of="learn")
    with pytest.raises(BadInputError, match="no column 'collect_s'"):
        iteration_time.study(load(root))
