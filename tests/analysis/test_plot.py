from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis import plot
from walle.analysis.runs import BadInputError, load


def test_any_column_against_any_column(speedup_sweep: Path) -> None:
    sweep = load(speedup_sweep)
    study = plot.study(sweep, x="wall_s", y=["collect_s", "learn_s"])
    first = sweep.iterations[sweep.iterations["run"] == "0"]
    line = study.figure.axes[0].get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), first["wall_s"])
    np.testing.assert_array_equal(line.get_ydata(), first["collect_s"])
    assert len(study.figure.axes) == 2
    assert study.figure.axes[0].get_ylabel() == "collect (s)"


def test_rows_of_one_process(speedup_sweep: Path) -> None:
    study = plot.study(
        load(speedup_sweep),
        x="iteration",
        y=["update_s"],
        file="timing",
        where=("process", "agent"),
    )
    assert study.points is not None
    assert len(study.points) == 15 * 30


def test_episodes_as_points(speedup_sweep: Path) -> None:
    study = plot.study(
        load(speedup_sweep), x="env_steps", y=["return"], file="episodes", points=True
    )
    assert study.figure.axes[0].get_lines()[0].get_linestyle() == "None"


def test_runs_that_agree_share_a_colour(speedup_sweep: Path) -> None:
    lines = plot.study(load(speedup_sweep), x="iteration", y=["collect_s"]).figure.axes[0].lines
    colors = [line.get_color() for line in lines]
    assert len(colors) == 15
    assert len(set(colors)) == 5


def test_the_steps_of_each_iteration(tmp_path: Path) -> None:
    """By hand: what each run's steps grew by, from its own first iteration on."""
    root = write_sweep(tmp_path / "s", [Job(seed=0, iterations=3), Job(seed=1, iterations=3)])
    for run, steps in (("0", [100, 300, 350]), ("1", [200, 200, 260])):
        set_columns(root / run, env_steps=steps)
    drawn = plot.study(load(root), x="iteration", y=["round_steps"]).points
    assert drawn is not None
    found = [list(drawn[drawn["run"] == run]["round_steps"]) for run in ("0", "1")]
    assert found == [[100, 200, 50], [200, 0, 60]]


def test_a_baseline(speedup_sweep: Path, lag_sweep: Path) -> None:
    study = plot.study(
        load(lag_sweep), x="iteration", y=["lag_mean"], by="max_lag", baseline=load(speedup_sweep)
    )
    labels = [line.get_label() for line in study.figure.axes[0].lines]
    assert labels.count("baseline") == 1
    assert len(labels) == 9 + 15


def test_a_column_of_another_algorithm_is_said(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(algo="ppo"), Job(algo="ppo_kl")]))
    study = plot.study(sweep, x="env_steps", y=["kl"], by="algo")
    assert len(study.table) == 1
    assert "Runs without a value in env_steps, kl: 1" in sweep.notes[0]


def test_a_typo_names_the_nearest_column(speedup_sweep: Path) -> None:
    with pytest.raises(BadInputError, match=r"no column 'colect_s' .* did you mean 'collect_s'"):
        plot.study(load(speedup_sweep), x="env_steps", y=["colect_s"])


def test_a_file_that_no_run_has(speedup_sweep: Path) -> None:
    with pytest.raises(BadInputError, match=r"no run has a row in trace.csv"):
        plot.study(load(speedup_sweep), x="start_s", y=["end_s"], file="trace")


def test_a_condition_that_nothing_meets(speedup_sweep: Path) -> None:
    with pytest.raises(BadInputError, match="where process is 'agnet'"):
        plot.study(
            load(speedup_sweep),
            x="iteration",
            y=["update_s"],
            file="timing",
            where=("process", "agnet"),
        )


def test_a_panel_for_each_task_and_column(tasks_sweep: Path) -> None:
    sweep = load(tasks_sweep)
    figure = plot.study(sweep, x="env_steps", y=["return_mean", "learn_s"]).figure
    panels = [(axes.get_title(), axes.get_ylabel()) for axes in figure.axes]
    returns = "return, mean of the\nlast 100 episodes"
    assert panels == [
        ("HalfCheetah-v5", returns),
        ("Hopper-v5", returns),
        ("HalfCheetah-v5", "learn (s)"),
        ("Hopper-v5", "learn (s)"),
    ]
    assert len(figure.axes[0].get_lines()) == 6  # n = 1, 4 with three seeds


def test_lines_that_hide_each_other_have_one_label(tmp_path: Path) -> None:
    jobs = [Job(n=n, seed=seed) for n in (1, 2, 4) for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        set_columns(root / str(number), return_mean=float(job.seed + 10 * (job.n == 4)))
    study = plot.study(load(root), x="env_steps", y=["return_mean", "collect_s"])
    returns, seconds = (
        {str(line.get_label()): line.get_color() for line in axes.get_lines()}
        for axes in study.figure.axes
    )
    assert set(returns) >= {"n = 1; n = 2, identical", "n = 4"}
    assert len({line.get_color() for line in study.figure.axes[0].get_lines()}) == 2
    assert set(seconds) >= {"n = 1", "n = 2", "n = 4"}


def test_labels_hold_what_differs_alone(tmp_path: Path) -> None:
    seconds = {"ppo": 0.5, "a2c": 0.6}
    jobs = [Job(algo=algo, seed=s, learn_s=x) for algo, x in seconds.items() for s in (0, 1)]
    study = plot.study(load(write_sweep(tmp_path / "s", jobs)), x="iteration", y=["learn_s"])
    labels = [str(line.get_label()) for line in study.figure.axes[0].get_lines()]
    assert [label for label in labels if not label.startswith("_")] == ["a2c", "ppo"]
    alone = load(write_sweep(tmp_path / "alone", [Job()]))
    assert plot.study(alone, x="iteration", y=["learn_s"]).figure.legends == []


def test_identical_lines_are_named_by_what_matters(tmp_path: Path) -> None:
    jobs = [Job(n=n, algo=algo, iterations=3) for n in (1, 2) for algo in ("a2c", "ppo")]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        low = 10.0 * (job.algo == "ppo")
        set_columns(root / str(number), return_mean=[low, low + 1, low + 2])
    figure = plot.study(load(root), x="env_steps", y=["return_mean"]).figure
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a2c", "ppo"]
