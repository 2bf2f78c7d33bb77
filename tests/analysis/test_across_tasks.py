from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis import across_tasks
from walle.analysis.measuring import stats
from walle.analysis.runs import BadInputError, load


def test_scores_across_tasks_are_scaled_by_task(tasks_sweep: Path) -> None:
    sweep = load(tasks_sweep)
    _, matrices, _ = across_tasks.score_matrices(sweep, "sampler.n")
    assert {n: matrix.shape for n, matrix in matrices.items()} == {"1": (3, 2), "4": (3, 2)}
    best = np.maximum(matrices["1"].mean(axis=0), matrices["4"].mean(axis=0))
    np.testing.assert_allclose(best, 1)


def test_a_performance_profile_by_hand() -> None:
    scores = np.array([[0.0, 0.5], [1.0, 1.5]])
    at = np.array([0.0, 0.5, 0.75, 1.2])
    assert across_tasks.profile(scores, at).tolist() == [100, 75, 50, 25]


def test_scores_below_zero_are_drawn(tmp_path: Path) -> None:
    jobs = [Job(algo=algo, env=env) for algo in ("ppo", "a2c") for env in ("A-v0", "Bb-v0")]
    root = write_sweep(tmp_path / "s", jobs)
    for number in (2, 3):
        rows = pd.read_csv(root / str(number) / "iterations.csv")
        set_columns(root / str(number), return_mean=-rows["return_mean"] / 2)
    study = across_tasks.study(load(root), y="training")
    left, right = study.figure.axes
    lowest = study.table["iqm"].min()
    assert left.get_ylim()[0] < lowest < 0
    assert right.dataLim.x0 <= lowest


def test_across_tasks_needs_tasks(tasks_sweep: Path, speedup_sweep: Path) -> None:
    table = across_tasks.study(load(tasks_sweep)).table
    assert table["runs_per_task"].tolist() == [3, 3]
    with pytest.raises(BadInputError, match="one environment only"):
        across_tasks.study(load(speedup_sweep))


def test_a_task_without_a_finished_episode(tmp_path: Path) -> None:
    jobs = [Job(n=n, env=env) for env in ("A-v0", "B-v0") for n in (1, 2)]
    root = write_sweep(tmp_path / "s", jobs)
    (root / "2" / "episodes.csv").unlink()  # n=1 of the second task
    sweep = load(root)
    assert across_tasks.study(sweep).table["sampler.n"].tolist() == ["2"]
    assert sweep.notes == ["Not drawn, as it has no final return of B-v0: sampler.n=1"]
    (root / "3" / "episodes.csv").unlink()
    with pytest.raises(BadInputError, match=r"too few episodes have ended for returns of"):
        across_tasks.study(load(root))


def test_algorithms_are_no_repeats(tmp_path: Path) -> None:
    """Two algorithms x three tasks x two seeds: two entries with two runs a task, not one of four.

    The learning rate follows from algorithm and task, so it tells nothing more.
    """
    jobs = [
        Job(algo=algo, env=env, seed=seed)
        for algo in ("ppo", "a2c")
        for env in ("A-v0", "Bb-v0", "Ccc-v0")
        for seed in range(2)
    ]
    root = write_sweep(tmp_path / "s", jobs)
    for number in range(6, 12):
        rows = pd.read_csv(root / str(number) / "iterations.csv")
        set_columns(root / str(number), return_mean=rows["return_mean"] / 2)
        text = (root / str(number) / "run.json").read_text()
        rate = f'"rate": {number // 2}, "epochs"'
        (root / str(number) / "run.json").write_text(text.replace('"epochs"', rate))
    table = across_tasks.study(load(root), y="training").table
    assert table["algo.name"].tolist() == ["a2c", "ppo"]
    assert table["runs_per_task"].tolist() == [2, 2]
    assert table["iqm"].tolist() == pytest.approx([0.5, 1.0], abs=0.05)


def test_between_algorithms_evaluations_count(tmp_path: Path) -> None:
    """Training says that A2C is twice as good, and evaluations say the opposite."""
    tasks = ("A-v0", "Bb-v0")
    jobs = [Job(algo=a, env=env, seed=s) for a in ("ppo", "a2c") for env in tasks for s in range(2)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        training = pd.read_csv(root / str(number) / "iterations.csv")["return_mean"]
        set_columns(root / str(number), return_mean=training * (1 + (job.algo == "a2c")))
        final = 4000.0 if job.algo == "ppo" else 2000.0
        set_columns(root / str(number), "eval", return_mean=final)
    study = across_tasks.study(load(root))
    assert any(
        text.startswith("Final returns: evaluation without noise after 61,440 steps")
        for text in study.sentences
    )
    assert study.table.set_index("algo.name")["iqm"]["ppo"] == pytest.approx(1)
    assert study.table.set_index("algo.name")["iqm"]["a2c"] == pytest.approx(0.5, abs=0.05)
    training = across_tasks.study(load(root), y="training").table.set_index("algo.name")["iqm"]
    assert training["a2c"] > training["ppo"]


def test_what_learnt_the_same_is_one_entry(tmp_path: Path) -> None:
    jobs = [
        Job(n=n, env=env, seed=seed)
        for n in (1, 4)
        for env in ("A-v0", "Bb-v0")
        for seed in range(2)
    ]
    root = write_sweep(tmp_path / "s", jobs)
    for number in range(4, 8):
        first = pd.read_csv(root / str(number - 4) / "iterations.csv")
        set_columns(root / str(number), return_mean=first["return_mean"])
    study = across_tasks.study(load(root))
    assert study.table["sampler.n"].tolist() == ["1; 4, identical"]
    assert study.table["runs_per_task"].tolist() == [2]
    assert any("Identical" in text for text in study.sentences)


def test_a_merged_entry_has_the_runs_of_all(tmp_path: Path) -> None:
    """One sampler was run on one task with one seed, two samplers on the rest."""
    jobs = [Job(env="A-v0")]
    jobs += [Job(n=2, env=env, seed=seed) for env in ("A-v0", "Bb-v0") for seed in range(3)]
    root = write_sweep(tmp_path / "s", jobs)
    first = pd.read_csv(root / "0" / "iterations.csv")
    set_columns(root / "1", return_mean=first["return_mean"])
    study = across_tasks.study(load(root))
    assert study.table["sampler.n"].tolist() == ["1; 2, identical"]
    assert study.table["runs_per_task"].tolist() == [3]


def test_labels_hold_what_differs_alone(tmp_path: Path) -> None:
    jobs = [Job(n=n, env=env, algo=a) for a in "ab" for n in (1, 4) for env in ("A-v0", "Bb-v0")]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        first = pd.read_csv(root / "0" / "iterations.csv")["return_mean"]
        set_columns(root / str(number), return_mean=first * (1 + (job.algo == "b")))
    study = across_tasks.study(load(root))
    assert study.table["entry"].tolist() == ["a", "b"]  # not "1, a; 4, a, identical"
    assert study.figure.axes[0].get_xlabel() == ""


def test_tasks_without_a_rise_are_left_out_and_said(tmp_path: Path) -> None:
    tasks = ("A-v0", "Bb-v0", "Ccc-v0")
    jobs = [Job(n=n, env=env) for n in (1, 4) for env in tasks]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        rows = pd.read_csv(root / str(number) / "iterations.csv")["return_mean"]
        if job.env != "Ccc-v0":
            set_columns(root / str(number), return_mean=5.0 if job.env == "A-v0" else -rows)
    sweep = load(root)
    study = across_tasks.study(sweep, y="training")
    assert "Left out, as no returns rise above those of the start: A-v0, Bb-v0" in sweep.notes
    assert study.sentences[0].startswith("1 environment: Ccc-v0.")
    assert study.table["iqm"].max() == pytest.approx(1)


def test_the_interval_has_the_freedom_of_all_tasks(tasks_sweep: Path) -> None:
    """Two tasks with three runs have up to four degrees (Satterthwaite), not two."""
    sweep = load(tasks_sweep)
    _, found, _ = across_tasks.score_matrices(sweep, "sampler.n")
    matrix = found["1"]
    row = across_tasks.study(sweep).table.iloc[0]
    draws = stats.stratified_draws(matrix, stats.iqm, stats.generator())
    first, second = matrix.var(axis=0, ddof=1)
    dof = (first + second) ** 2 / (first**2 / 2 + second**2 / 2)
    assert 2 < dof <= 4
    found_ends = stats.interval_bounds(draws, 3, dof=dof)
    assert (row["iqm_low"], row["iqm_high"]) == pytest.approx(tuple(map(float, found_ends)))


def test_an_interrupted_run_has_no_score(tmp_path: Path) -> None:
    jobs = [Job(env=env, seed=seed) for env in ("A-v0", "B-v0") for seed in range(3)]
    jobs += [Job(env="B-v0", seed=3, state="interrupted", iterations=3)]
    _, matrices, _ = across_tasks.score_matrices(load(write_sweep(tmp_path / "s", jobs)), "seed")
    assert "3" not in matrices
    table = across_tasks.study(load(tmp_path / "s")).table
    assert table["runs_per_task"].tolist() == [3]
