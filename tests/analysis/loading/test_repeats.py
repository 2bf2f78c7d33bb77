from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tests.analysis.synthetic import Job, write_sweep
from walle.analysis import speedup
from walle.analysis.loading.repeats import identical_groups, identical_label, settings
from walle.analysis.runs import load


def test_copies_of_a_run_count_once(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(), Job(n=2), Job(n=2, seed=1)])
    shutil.copytree(root / "1", root / "3")
    shutil.copytree(root / "1", root / "4")
    sweep = load(root)
    assert [run.name for run in sweep.runs] == ["0", "1", "2"]
    why = "the settings and the seed of 1: no repeat of it"
    assert sweep.left_out == [("3", why), ("4", why)]
    assert speedup.study(sweep).table["repeats"].tolist() == ["1 seed", "2 seeds"]


def test_of_copies_the_completed_one_stays(tmp_path: Path) -> None:
    jobs = [Job(state="interrupted"), Job(), Job(seed=1)]
    sweep = load(write_sweep(tmp_path / "s", jobs))
    assert [run.name for run in sweep.runs] == ["1", "2"]


def test_repeats_differ_in_their_seed_alone(tmp_path: Path) -> None:
    jobs = [Job(), Job(seed=1), Job(algo="a2c"), Job(max_lag=1)]
    first, second, *others = load(write_sweep(tmp_path / "s", jobs)).runs
    assert settings(first) == settings(second)
    assert settings(first) not in [settings(run) for run in others]


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
    assert identical_label(["n = 1"]) == "n = 1"
    assert identical_label(["n = 1", "n = 2"]) == "n = 1; n = 2, identical"
    assert identical_label(["1", "2", "4", "8"]) == "1; …; 8, identical"
