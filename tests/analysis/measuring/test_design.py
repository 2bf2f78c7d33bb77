from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.synthetic import Job, write_sweep
from walle.analysis.loading.directories import BadInputError
from walle.analysis.measuring.design import design, line_keys, resolve_key, sort_key
from walle.analysis.runs import load


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
