from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import across_tasks, returns
from analysis.curves import common_grid, curve, on_grid
from analysis.directories import BadInputError
from analysis.runs import load
from tests.analysis.synthetic import Job, keep_rows, write_run, write_sweep


def rows(*runs: list[tuple[float, float]]) -> pd.DataFrame:
    found = [(str(i), x, y) for i, run in enumerate(runs) for x, y in run]
    return pd.DataFrame(found, columns=["run", "x", "y"])


def test_runs_on_a_common_grid() -> None:
    frame = rows([(0, 0), (10, 10)], [(2, 4), (6, 8)])
    grid = common_grid(frame, "x", "y", points=5)
    np.testing.assert_array_equal(grid, [2, 4, 6, 8, 10])
    values = on_grid(frame, "x", "y", grid)
    np.testing.assert_array_equal(values[0], [2, 4, 6, 8, 10])
    np.testing.assert_array_equal(values[1], [4, 6, 8, np.nan, np.nan])


def test_a_curve_says_how_many_runs_it_is_over() -> None:
    frame = rows([(0, 0), (10, 10)], [(2, 4), (6, 8)])
    grid = common_grid(frame, "x", "y", points=5)
    found = curve(grid, on_grid(frame, "x", "y", grid))
    np.testing.assert_array_equal(found.y, [3, 5, 7, 8, 10])
    assert found.runs.tolist() == [2, 2, 2, 1, 1]
    assert found.complete.tolist() == [True, True, True, False, False]
    assert (found.low[:3] < [2, 4, 6]).all()
    assert (found.high[:3] > [4, 6, 8]).all()
    assert np.isnan(found.low[3:]).all()


def test_the_interquartile_mean_ignores_the_outlier() -> None:
    values = np.array([[1.0], [2.0], [3.0], [1000.0]])
    assert curve(np.zeros(1), values, iqm=True).y.tolist() == [2.5]
    assert curve(np.zeros(1), values).y.tolist() == [251.5]


def test_rows_without_a_return_yet_are_not_zeros(speedup_sweep: Path) -> None:
    study = returns.study(load(speedup_sweep))
    assert study.points is not None
    assert study.points["env_steps"].min() == 2 * 2048


@pytest.mark.parametrize(
    ("x", "column"), [("steps", "env_steps"), ("iterations", "iteration"), ("wall", "wall_s")]
)
def test_each_axis(speedup_sweep: Path, x: str, column: str) -> None:
    study = returns.study(load(speedup_sweep), x=x)
    assert study.points is not None
    assert set(study.points.columns) >= {column, "return_mean", "return_mean_low", "runs"}
    assert len(study.table) == 5


def test_ends_that_not_all_runs_reach_are_thin_and_said(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=20), Job(iterations=20, seed=1)])
    keep_rows(root / "1", 10)
    study = returns.study(load(root))
    assert any("n = 1 after 20," in t and "(1 of 2 at the end)" in t for t in study.sentences)
    whole, rest = study.figure.axes[0].get_lines()
    ends = [np.asarray(line.get_xdata())[~np.isnan(line.get_ydata())] for line in (whole, rest)]
    assert ends[0].max() <= 10 * 2048 < ends[1].max()
    assert rest.get_linewidth() < whole.get_linewidth()


def test_runs_that_are_never_there_together_are_not_averaged_in_silence(tmp_path: Path) -> None:
    """On the wall clock one run may end before another's first episode does."""
    root = write_sweep(tmp_path / "s", [Job(iterations=20), Job(iterations=20, seed=1)])
    later = root / "1" / "iterations.csv"
    frame = pd.read_csv(later)
    frame["wall_s"] += 2 * frame["wall_s"].max()
    frame.to_csv(later, index=False)
    study = returns.study(load(root), x="wall")
    whole, rest = study.figure.axes[0].get_lines()
    assert np.isnan(whole.get_ydata()).all()
    y = np.asarray(rest.get_ydata(), float)
    assert 0 < np.isnan(y).sum() < y.size  # the time between them is empty
    assert any("n = 1 everywhere (1 of 2 at the end)" in text for text in study.sentences)
    assert study.table["runs"].tolist() == [1]


def test_a_run_without_a_return_is_said(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=20), Job(iterations=20, seed=1)])
    keep_rows(root / "1", 1)
    sweep = load(root)
    study = returns.study(sweep)
    assert "return_mean is empty in every row of 1: not drawn" in sweep.notes
    assert study.table["runs"].tolist() == [1]
    (line, _) = study.figure.axes[0].get_lines()
    assert line.get_label() == "n = 1 (1 seed)"


def test_several_environments_are_small_multiples_with_one_legend(tasks_sweep: Path) -> None:
    figure = returns.study(load(tasks_sweep)).figure
    assert [axes.get_title() for axes in figure.axes] == ["HalfCheetah-v5", "Hopper-v5"]
    colors = [
        {line.get_label(): line.get_color() for line in axes.get_lines()} for axes in figure.axes
    ]
    assert colors[0]["n = 1 (3 seeds)"] == colors[1]["n = 1 (3 seeds)"]
    assert len(figure.legends) == 1


def test_the_baseline_is_grey(tasks_sweep: Path, speedup_sweep: Path) -> None:
    study = returns.study(load(tasks_sweep), baseline=load(speedup_sweep))
    labels = [line.get_label() for line in study.figure.axes[0].get_lines()]
    assert "baseline (15 runs)" in labels


def test_identical_lines_are_said(tmp_path: Path) -> None:
    """As lock-step runs of one seed are, whatever the number of samplers."""
    root = write_sweep(tmp_path / "s", [Job(n=1), Job(n=2)])
    text = (root / "0" / "iterations.csv").read_text()
    (root / "1" / "iterations.csv").write_text(text)
    study = returns.study(load(root))
    assert any("the 2 lines are identical" in sentence for sentence in study.sentences)


def test_no_episode_has_ended(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=1)])
    with pytest.raises(BadInputError, match="no episode has ended yet"):
        returns.study(load(root))


def test_an_unknown_column(speedup_sweep: Path) -> None:
    with pytest.raises(BadInputError, match=r"no column 'retrun' in iterations.csv"):
        returns.study(load(speedup_sweep), y="retrun")


def test_published_returns_are_marked_where_the_axis_reaches_them(tmp_path: Path) -> None:
    long = write_run(tmp_path / "long", Job(batch_size=100_000))
    figure = returns.study(load(long), paper=True).figure
    labels = [line.get_label() for line in figure.axes[0].get_lines()]
    assert "CleanRL PPO (v4)" in labels
    short = load(write_run(tmp_path / "short", Job()))
    returns.study(short, paper=True)
    assert "are beyond" in short.notes[0]


def test_iqm_of_few_runs_is_said(speedup_sweep: Path) -> None:
    study = returns.study(load(speedup_sweep), iqm=True)
    assert any("fewer than 4 runs" in sentence for sentence in study.sentences)


def test_scores_across_tasks_are_scaled_by_task(tasks_sweep: Path) -> None:
    sweep = load(tasks_sweep)
    matrices = across_tasks.score_matrices(sweep, "sampler.n", ["HalfCheetah-v5", "Hopper-v5"])
    assert {n: matrix.shape for n, matrix in matrices.items()} == {1: (3, 2), 4: (3, 2)}
    best = np.maximum(matrices[1].mean(axis=0), matrices[4].mean(axis=0))
    np.testing.assert_allclose(best, 1)


def test_a_performance_profile_by_hand() -> None:
    found = across_tasks.profile(np.array([[0.0, 0.5], [1.0, 1.5]]))
    at = {
        round(float(t), 2): share for t, share in zip(across_tasks.THRESHOLDS, found, strict=True)
    }
    assert at[0.0] == 100
    assert at[0.5] == 75
    assert at[0.75] == 50
    assert at[1.2] == 25


def test_across_tasks_needs_tasks(tasks_sweep: Path, speedup_sweep: Path) -> None:
    table = across_tasks.study(load(tasks_sweep)).table
    assert table["runs_per_task"].tolist() == [3, 3]
    with pytest.raises(BadInputError, match="one environment only"):
        across_tasks.study(load(speedup_sweep))
