from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.synthetic import Job, write_sweep
from walle.analysis import speedup
from walle.analysis.loading.directories import BadInputError
from walle.analysis.measuring.design import (
    changing_together,
    design,
    line_keys,
    numeric_axis,
    resolve_key,
    sort_key,
)
from walle.analysis.runs import load
from walle.analysis.writing import sentences

PAIRS = (("a2c", 128), ("ppo", 2048))


def test_keys_by_their_name_their_group_or_their_last_part(tasks_sweep: Path) -> None:
    sweep = load(tasks_sweep)
    assert resolve_key(sweep, "sampler.n") == "sampler.n"
    assert resolve_key(sweep, "n") == "sampler.n"
    assert resolve_key(sweep, "env") == "env.id"
    assert resolve_key(sweep, "algo") == "algo.name"


def test_an_unknown_key_names_the_nearest(tasks_sweep: Path) -> None:
    with pytest.raises(BadInputError, match=r"did you mean 'sampler.n'"):
        resolve_key(load(tasks_sweep), "sampler.m")


def test_an_ambiguous_key_names_all_that_fit(tmp_path: Path) -> None:
    """Where both or neither vary; else the one that varies is meant."""
    with pytest.raises(BadInputError, match=r"choose one of: learner\.n, sampler\.n"):
        resolve_key(load(write_sweep(tmp_path / "sweep", [Job()])), "n")


def test_one_name_for_keys_that_change_together(tasks_sweep: Path) -> None:
    """env.id and env.max_steps both differ between the tasks; one of them is enough."""
    sweep = load(tasks_sweep)
    assert sweep.varying == ["env.id", "env.max_steps", "sampler.n"]
    assert line_keys(sweep, "sampler.n") == ["env.id"]
    assert line_keys(sweep, "env.id") == ["sampler.n"]


def test_runs_ordered_by_line_and_value(tmp_path: Path) -> None:
    jobs = [Job(n=n, env=env) for n in (16, 2, 8) for env in ("Walker2d-v5", "Ant-v5")]
    rows = design(load(write_sweep(tmp_path / "sweep", jobs)), "sampler.n")
    assert rows["line"].tolist() == ["Ant-v5"] * 3 + ["Walker2d-v5"] * 3
    assert rows["by"].tolist() == [2, 8, 16] * 2
    assert rows["run"].tolist() == ["3", "5", "1", "2", "4", "0"]


def test_a_line_is_named_by_its_key_unless_the_value_says_it(tmp_path: Path) -> None:
    jobs = [Job(n=n, max_lag=lag) for n in (1, 2) for lag in (0, None)]
    rows = design(load(write_sweep(tmp_path / "sweep", jobs)), "sampler.n")
    assert set(rows["line"]) == {"max_lag 0", "max_lag null"}


def test_numbers_sort_before_words() -> None:
    assert sorted(["null", 10, 9.5, "a"], key=sort_key) == [9.5, 10, "a", "null"]


def test_workers_are_counted_from_one(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(max_lag=0), Job(max_lag=1)]))
    with pytest.raises(BadInputError, match=r"numbers above 0, sampler.max_lag is 0"):
        numeric_axis(sweep, "max_lag")
    assert numeric_axis(sweep, "sampler.n") == "sampler.n"


def test_keys_that_change_together_are_told(tmp_path: Path) -> None:
    """A learning rate of each algorithm hides the algorithm; `algo.name` tells of its group."""
    jobs = [Job(n=n, algo=algo, batch_size=size) for n in (1, 2) for algo, size in PAIRS]
    sweep = load(write_sweep(tmp_path / "s", jobs))
    assert changing_together(sweep, "batch_size") == {"batch_size": ["algo.name", "total_steps"]}
    assert changing_together(sweep, "sampler.n") == {"algo.name": ["batch_size", "total_steps"]}
    assert sentences.also_differ(sweep, "batch_size") == [
        "With batch_size also differ: algo.name (a2c, ppo), total_steps (3840, 61440)."
    ]
    same = load(write_sweep(tmp_path / "t", [Job(), Job(n=2)]))
    assert sentences.also_differ(same, "sampler.n") == []


def test_the_default_axis_of_a_speedup_is_a_number_that_varies(tmp_path: Path) -> None:
    jobs = [Job(algo=algo, batch_size=size) for algo, size in PAIRS]
    sweep = load(write_sweep(tmp_path / "s", jobs))
    assert numeric_axis(sweep, None) == "sampler.n"  # the only line key is the algorithm
    with pytest.raises(BadInputError, match=r"have sampler.n=1.*: what varies is algo.name"):
        speedup.study(sweep)
    sizes = load(write_sweep(tmp_path / "t", [Job(batch_size=size) for size in (100, 200)]))
    assert numeric_axis(sizes, None) == "batch_size"
