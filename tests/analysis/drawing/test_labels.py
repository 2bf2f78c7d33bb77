from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.synthetic import Job, keep_rows, set_columns, write_sweep
from walle.analysis import iteration_time, speedup
from walle.analysis.drawing import labels
from walle.analysis.drawing.labels import identical_groups, identical_label
from walle.analysis.runs import load


def test_lines_stand_beside_the_ticks_of_words() -> None:
    places = {"a2c": 0.0, "ppo": 1.0}
    assert labels.aside(places, 0, 1) == places
    assert labels.aside(places, 0, 2) == pytest.approx({"a2c": -0.05, "ppo": 0.95})
    assert labels.aside(places, 1, 2) == pytest.approx({"a2c": 0.05, "ppo": 1.05})


@pytest.mark.parametrize("script", [speedup, iteration_time])
def test_six_lines_are_two_in_each_of_three_panels(tmp_path: Path, script: object) -> None:
    jobs = [
        Job(n=n, seed=seed, env=env, algo=algo, iterations=4)
        for env in ("A-v0", "Bb-v0", "Ccc-v0")
        for algo in ("a2c", "ppo")
        for n in (1, 2)
        for seed in (0, 1)
    ]
    study = script.study(load(write_sweep(tmp_path / "s", jobs)))  # type: ignore[attr-defined]
    panels = study.figure.axes
    assert [area.get_title() for area in panels] == ["A-v0", "Bb-v0", "Ccc-v0"]
    for area in panels:
        names = {str(line.get_label()) for line in area.get_lines()}
        assert {"a2c (2 seeds)", "ppo (2 seeds)"} <= names
        marks = [line for line in area.get_lines() if line.get_marker() in "os"]
        places = [line.get_xdata()[0] for line in marks if len(line.get_xdata())]
        assert set(places) == {1, 2}  # a point beside its number would lie on another number


def test_no_law_is_drawn_where_more_samplers_are_no_faster(tmp_path: Path) -> None:
    jobs = [Job(n=n, seed=seed, iterations=4) for n in (1, 2, 4) for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        set_columns(root / str(number), collect_s=1.0 + 0.1 * job.n + 0.01 * job.seed)
    study = speedup.study(load(root))
    (axes,) = study.figure.axes
    assert not any("law" in str(line.get_label()) for line in axes.get_lines())
    assert not [line for line in axes.get_lines() if len(line.get_xdata()) == 100]
    assert any("at its bound, 100% [" in text for text in study.sentences)


def test_copies_of_a_run_count_once(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(), Job(n=2), Job(n=2, seed=1)])
    shutil.copytree(root / "1", root / "3")
    shutil.copytree(root / "1", root / "4")
    sweep = load(root)
    assert [run.name for run in sweep.runs] == ["0", "1", "2"]
    why = "the settings and the seed of 1: no repeat of it"
    assert sweep.left_out == [("3", why), ("4", why)]
    assert speedup.study(sweep).table["repeats"].tolist() == ["1 seed", "2 seeds"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("interrupted", 30), ("completed", 3)),
        (("interrupted", 30), ("running", 3)),
        (("running", 3), ("running", 30)),  # the first was killed
    ],
)
def test_of_copies_the_completed_or_else_the_longest_stays(
    tmp_path: Path, first: tuple[str, int], second: tuple[str, int]
) -> None:
    root = write_sweep(tmp_path / "s", [Job(state=first[0]), Job(state=second[0]), Job(seed=1)])
    for number, (_, rows) in enumerate((first, second)):
        keep_rows(root / str(number), rows)
    sweep = load(root)
    assert [run.name for run in sweep.runs] == ["1", "2"]


def test_numbers_of_samplers_and_learners_are_dropped_where_they_change_nothing() -> None:
    every = [f"n = {n}, learner.n {k}, a2c" for n in (1, 2) for k in (1, 2)]
    assert labels.one_text(every, [*every, "n = 1, learner.n 1, ppo"]) == "a2c"


def test_what_learnt_the_same_by_hand() -> None:
    a, b = np.array([[1.0, np.nan], [2.0, 5.0]]), np.array([[1.0, np.nan], [2.0, 6.0]])
    learnt = {
        "n = 1": {0: a, 1: b},
        "n = 2": {0: a[:1], 1: b},  # as far as the shorter one goes
        "n = 4": {0: b, 1: b},
        "n = 8": {2: a},  # shares no seed
        "n = 16": {1: b},
    }
    assert identical_groups(learnt) == [["n = 1", "n = 2", "n = 16"], ["n = 4"], ["n = 8"]]
    whole = identical_groups(learnt, whole=True)
    assert whole == [["n = 1", "n = 16"], ["n = 2"], ["n = 4"], ["n = 8"]]
    assert identical_label(["n = 1"]) == "n = 1"
    assert identical_label(["n = 1", "n = 2"]) == "n = 1; n = 2, identical"
    assert identical_label(["1", "2", "4", "8"]) == "1; …; 8, identical"
