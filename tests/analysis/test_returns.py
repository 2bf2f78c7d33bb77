from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, keep_rows, set_columns, write_run, write_sweep
from walle.analysis import returns
from walle.analysis.drawing import style
from walle.analysis.measuring.scores import possible_values
from walle.analysis.returns import common_grid, curve, on_grid
from walle.analysis.runs import BadInputError, load


def test_rows_without_a_return_yet_are_not_zeros(speedup_sweep: Path) -> None:
    study = returns.study(load(speedup_sweep), y="return_mean")
    assert study.points is not None
    assert study.points["env_steps"].min() == 2 * 2048


@pytest.mark.parametrize(
    ("x", "column"), [("steps", "env_steps"), ("iterations", "iteration"), ("wall", "wall_s")]
)
def test_each_axis(speedup_sweep: Path, x: str, column: str) -> None:
    study = returns.study(load(speedup_sweep), x=x)
    assert study.points is not None
    assert set(study.points.columns) >= {column, "training_return", "training_return_low", "runs"}
    assert len(study.table) == 5


def test_ends_that_not_all_runs_reach_are_thin_and_said(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=20), Job(iterations=20, seed=1)])
    keep_rows(root / "1", 10)
    study = returns.study(load(root))
    assert any(
        "HalfCheetah-v5 after 20," in t and "(1 of 2 runs at the end)" in t for t in study.sentences
    )
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
    assert any(
        "HalfCheetah-v5 everywhere (1 of 2 runs at the end)" in text for text in study.sentences
    )
    assert study.table["runs"].tolist() == [1]


def test_a_run_without_a_return_is_said(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=20), Job(iterations=20, seed=1)])
    (root / "1" / "episodes.csv").unlink()
    sweep = load(root)
    study = returns.study(sweep)
    assert "Not drawn, as training_return is empty in every row: 1" in sweep.notes
    assert study.table["runs"].tolist() == [1]
    (line, _) = study.figure.axes[0].get_lines()
    assert line.get_label() == "mean (1 seed)"  # no label: all runs have n = 1


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
    lines = {line.get_label(): line for line in study.figure.axes[0].get_lines()}
    grey = lines["baseline, n 1 (3 seeds)"].get_color()
    assert grey == lines["baseline, n 16 (3 seeds)"].get_color() == style.PAPER_GREY


def test_lines_of_algorithms_are_named_by_what_differs(tmp_path: Path) -> None:
    jobs = [Job(algo=algo, seed=seed) for algo in ("a2c", "ppo") for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for run in "01":
        rows = pd.read_csv(root / run / "iterations.csv")
        set_columns(root / run, return_mean=rows["return_mean"] + 1)
    study = returns.study(load(root), y="return_mean")
    assert study.table["line"].tolist() == ["a2c", "ppo"]  # not "n = 1, a2c"


def test_between_algorithms_evaluations_are_the_default(tmp_path: Path) -> None:
    """PPO that evaluates at 500 has a mean over its last episodes of 58: A2C seemed to beat it."""
    root = write_sweep(tmp_path / "s", [Job(algo=algo) for algo in ("a2c", "ppo")])
    study = returns.study(load(root))
    assert study.figure.axes[0].get_ylabel() == "return, mean of\nan evaluation"
    assert any("Between algorithms evaluations are drawn" in said for said in study.sentences)
    study = returns.study(load(root), y="return_mean")
    assert study.figure.axes[0].get_ylabel() == "return, mean of the\nlast 100 episodes"


@pytest.mark.parametrize(
    ("options", "said"),
    [({"y": "eval"}, "evaluations are drawn"), ({"paper": True}, "--paper: published returns are")],
)
def test_evaluations_and_published_returns_have_steps_alone(
    speedup_sweep: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInputError, match=f"{said} by environment steps, not -x wall"):
        returns.study(load(speedup_sweep), x="wall", **options)


def test_runs_with_one_evaluation_each_are_points(tmp_path: Path) -> None:
    """A line through one point cannot be seen: the figure of a short sweep was empty."""
    jobs = [Job(iterations=20, algo=algo, seed=seed) for algo in ("ppo", "a2c") for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for number in range(4):
        path = root / str(number) / "eval.csv"
        pd.read_csv(path).tail(1).to_csv(path, index=False)
    study = returns.study(load(root))
    (axes,) = study.figure.axes
    assert [line.get_marker() for line in axes.get_lines()] == ["o", "s"]
    assert [len(bar.get_segments()) for bar in axes.collections] == [1, 1]  # type: ignore[attr-defined]
    said = "Points, as their runs have one value: a2c; ppo (runs with a smaller eval.every"
    assert any(text.startswith(said) for text in study.sentences)


def test_a_wide_band_does_not_set_the_axis(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(seed=seed) for seed in (0, 1, 2)])
    for run, value in (("0", 100), ("1", 200), ("2", 200)):
        set_columns(root / run, return_mean=value)
    study = returns.study(load(root))
    assert study.table["training_return_high"].item() > 300
    low, high = study.figure.axes[0].get_ylim()
    assert (low, high) == pytest.approx((92, 208))


def test_on_the_wall_clock_a_line_ends_with_its_first_run(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(seed=seed) for seed in (0, 1)])
    for run, value, speed in (("0", 100, 1.0), ("1", 200, 2.0)):
        set_columns(root / run, return_mean=value, wall_s=speed * np.arange(1, 31))
    study = returns.study(load(root), x="wall")
    assert study.points is not None
    assert study.points["training_return"].to_numpy() == pytest.approx(
        150
    )  # never 200, of the slower run alone
    assert study.points["wall_s"].max() == pytest.approx(30, abs=0.5)
    assert not any("thin" in text for text in study.sentences)


def test_without_evaluations_algorithms_show_their_training(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(algo=algo) for algo in ("a2c", "ppo")])
    (root / "1" / "eval.csv").unlink()
    study = returns.study(load(root))
    assert study.figure.axes[0].get_ylabel() == "return in training,\nmean of a window"


def test_y_eval_is_the_evaluations(speedup_sweep: Path) -> None:
    study = returns.study(load(speedup_sweep), y="eval")
    assert study.figure.axes[0].get_ylabel() == "return, mean of\nan evaluation"


def test_evaluations(speedup_sweep: Path) -> None:
    sweep = load(speedup_sweep)
    study = returns.study(sweep, evaluations=True)
    assert study.points is not None
    assert study.points["env_steps"].min() == sweep.evaluations["env_steps"].min()
    assert study.figure.axes[0].get_ylabel() == "return, mean of\nan evaluation"


def write_lock_step(root: Path, workers: tuple[int, ...], seeds: int) -> Path:
    """Runs whose learning depends on the seed alone, as in lock-step."""
    jobs = [Job(n=n, seed=seed) for n in workers for seed in range(seeds)]
    write_sweep(root, jobs)
    for number in range(seeds, len(jobs)):
        first = pd.read_csv(root / str(number % seeds) / "iterations.csv")
        set_columns(root / str(number), return_mean=first["return_mean"])
        shutil.copy(root / str(number % seeds) / "episodes.csv", root / str(number))
    return root


def test_lines_that_learnt_the_same_are_one_line(tmp_path: Path) -> None:
    sweep = load(write_lock_step(tmp_path / "s", (1, 2, 4, 8), 3))
    study = returns.study(sweep)
    assert "line" not in study.table  # nothing tells lines apart
    assert study.table["runs"].tolist() == [3]
    (said,) = (text for text in study.sentences if text.startswith("Identical"))
    assert "so drawn as one line, with one run a seed: HalfCheetah-v5 (n = 1; n = 2; n = 4" in said
    alone = returns.study(load(write_sweep(tmp_path / "a", [Job(seed=s) for s in range(3)])))
    pd.testing.assert_frame_equal(study.table, alone.table)
    walls = returns.study(sweep, x="wall").table
    assert len(walls) == 4  # their times differ


def test_a_line_with_another_number_somewhere_is_not_identical(tmp_path: Path) -> None:
    root = write_lock_step(tmp_path / "s", (1, 2, 4), 2)
    rows = pd.read_csv(root / "5" / "iterations.csv")
    set_columns(root / "5", return_mean=rows["return_mean"].mask(rows["iteration"] == 20, 1.0))
    labels = returns.study(load(root)).table["line"].tolist()
    assert labels == ["n = 1; n = 2, identical", "n = 4"]


def test_the_baseline_counts_identical_runs_once(tmp_path: Path, tasks_sweep: Path) -> None:
    """Ten seeds at four n as 40 independent runs had an interval half as wide."""
    baseline = load(write_lock_step(tmp_path / "s", (1, 2, 4, 8), 3))
    study = returns.study(load(tasks_sweep), baseline=baseline)
    mine = study.table[study.table["line"].str.startswith("baseline")]
    assert mine["runs"].tolist() == [3]
    assert mine["line"].tolist() == ["baseline"]


def test_no_episode_has_ended(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=1)])
    (root / "0" / "episodes.csv").unlink()
    with pytest.raises(BadInputError, match="too few episodes have ended; type -y eval or"):
        returns.study(load(root))


def test_an_unknown_column(speedup_sweep: Path) -> None:
    with pytest.raises(BadInputError, match=r"no column 'retrun' in iterations.csv"):
        returns.study(load(speedup_sweep), y="retrun")


def test_a_column_that_cannot_be_drawn(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(iterations=2)])
    set_columns(root / "0", kl=np.nan, return_mean=np.nan)
    with pytest.raises(BadInputError, match=r"^kl is empty in every run$"):
        returns.study(load(root), y="kl")
    with pytest.raises(BadInputError, match=r"return_mean is .* no run has ended an episode yet"):
        returns.study(load(root), y="return_mean")
    with pytest.raises(BadInputError, match=r"-y run: no numbers are in this column"):
        returns.study(load(root), y="run")
    for options in ({"y": "eval"}, {"evaluations": True}):
        with pytest.raises(BadInputError, match=r"no run of s has an evaluation: .*training_retur"):
            returns.study(load(root), **options)  # type: ignore[arg-type]


def test_infinite_values_are_left_out_and_said(tmp_path: Path) -> None:
    """A run that diverges is when one looks at such a column."""
    root = write_sweep(tmp_path / "s", [Job(iterations=4)])
    set_columns(root / "0", kl=[0.1, 0.2, np.inf, np.inf])
    sweep = load(root)
    found = returns.study(sweep, y="kl").points
    assert found is not None
    assert np.isfinite(found["kl"]).all()
    assert any(note.startswith("2 rows not drawn, as kl is infinite") for note in sweep.notes)


def test_published_returns_are_marked_where_the_axis_reaches_them(tmp_path: Path) -> None:
    long = write_run(tmp_path / "long", Job(batch_size=100_000))
    figure = returns.study(load(long), paper=True).figure
    labels = [line.get_label() for line in figure.axes[0].get_lines()]
    assert "CleanRL PPO (v4)" in labels
    short = load(write_run(tmp_path / "short", Job()))
    returns.study(short, paper=True)
    assert any("lie beyond" in note for note in short.notes)


def test_iqm_of_few_runs_is_said(speedup_sweep: Path) -> None:
    study = returns.study(load(speedup_sweep), iqm=True)
    assert any("fewer than 4 runs" in sentence for sentence in study.sentences)


def test_every_seed_is_a_line_of_its_own(tmp_path: Path) -> None:
    """`--by seed` put all seeds into one line, named by what else differs."""
    jobs = [Job(n=n, seed=seed, iterations=4) for n in (1, 2) for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        set_columns(root / str(number), return_mean=[1.0 + job.seed, 2, 3, 4.0 + job.seed])
    study = returns.study(load(root), by="seed")
    assert study.table["line"].tolist() == ["seed = 0", "seed = 1"]  # without n: both learnt it
    assert study.table["runs"].tolist() == [1, 1]


def test_the_table_reads_all_lines_at_the_same_steps(tmp_path: Path) -> None:
    """With more lanes the last episodes end the earlier; a table of both had two moments."""
    root = write_sweep(tmp_path / "s", [Job(n=n, seed=seed) for n in (1, 2) for seed in (0, 1)])
    for number in (2, 3):
        path = root / str(number) / "episodes.csv"
        pd.read_csv(path).head(2 * 23).to_csv(path, index=False)
    table = returns.study(load(root)).table
    assert table["line"].tolist() == ["n = 1", "n = 2"]
    assert table["env_steps"].to_numpy() == pytest.approx(23 * 2048, rel=0.01)


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
    values = on_grid(frame, "x", "y", grid)
    found = curve(grid, values)
    np.testing.assert_array_equal(found.y, [3, 5, 7, 8, 10])
    assert found.runs.tolist() == [2, 2, 2, 1, 1]
    assert np.isnan(found.low).all()  # two values have one degree of freedom
    found = curve(grid, np.concatenate([values, values[:1]]))
    assert np.isfinite(found.low).tolist() == [True, True, True, False, False]
    assert (found.low < found.y)[:3].all()


def test_the_interquartile_mean_ignores_the_outlier() -> None:
    values = np.array([[1.0], [2.0], [3.0], [1000.0]])
    assert curve(np.zeros(1), values, iqm=True).y.tolist() == [2.5]
    assert curve(np.zeros(1), values).y.tolist() == [251.5]


def test_a_band_ends_where_values_are_impossible() -> None:
    """Seeds with lags of 0, 0 and 2 have a band from below 0."""
    grid = np.linspace(0, 1, 3)
    values = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [2.0, 2.0, 2.0]])
    assert curve(grid, values).low.max() < -2
    found = curve(grid, values, within=possible_values("lag_mean"))
    assert (found.low == 0).all()
    assert found.high.min() > 3
    beyond = curve(grid, values, within=(-1.0, 0.5))
    assert (beyond.high == beyond.y).all()  # not below its own line


def test_the_values_that_columns_can_have() -> None:
    assert possible_values("collect_s") == possible_values("learn_share") == (0, np.inf)
    assert possible_values("clip_fraction") == (0, 1)
    assert possible_values("explained_variance") == (-np.inf, 1)
    assert possible_values("return_mean") == (-np.inf, np.inf)


@pytest.mark.parametrize("x", ["steps", "wall"])
def test_an_interrupted_run_counts_in_no_curve_unless_all_were(tmp_path: Path, x: str) -> None:
    jobs = [Job(), Job(seed=1), Job(seed=2, iterations=3, state="interrupted")]
    jobs += [Job(n=2, iterations=3, state="interrupted")]
    sweep = load(write_sweep(tmp_path / "some", jobs))
    study = returns.study(sweep, x=x)
    assert study.table["runs"].tolist() == [2]
    last = sweep.iterations[sweep.iterations["run"].isin(["0", "1"])]
    column = returns.X_AXES[x][0]
    end = last.groupby("run", observed=True)[column].max().min()
    assert study.table[column].tolist() == [pytest.approx(end, rel=0.01)]
    assert any("2 of 4 runs interrupted: no learning curve" in note for note in sweep.notes)
    stopped = write_sweep(tmp_path / "all", [Job(iterations=3, state="interrupted")])
    assert returns.study(load(stopped), x=x).table["runs"].tolist() == [1]
