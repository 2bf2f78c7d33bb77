"""Workers of one host share its cores among them."""

from __future__ import annotations

import pytest

from walle.launcher.workers import worker
from walle.launcher.workers.worker import take_cores

CORES, PAIRS = list(range(8)), {core: (core % 4, core % 4 + 4) for core in range(8)}


@pytest.fixture(autouse=True)
def names_of_this_test(monkeypatch, tmp_path):
    monkeypatch.setattr(worker, "_CORE_NAME", f"\0{tmp_path.name[-60:]}-{id(tmp_path)}-{{core}}")


@pytest.fixture
def first():
    """What the first worker holds."""
    return []


def test_two_workers_get_different_physical_cores(first):
    assert take_cores(4, CORES, PAIRS, first) == [0, 1, 4, 5]
    assert take_cores(4, CORES, PAIRS, []) == [2, 3, 6, 7]


def test_cores_of_a_worker_that_ended_are_free_again(first):
    assert take_cores(2, CORES, {}, first) == [0, 1]
    first.clear()
    assert take_cores(2, CORES, {}, []) == [0, 1]


def test_workers_share_where_too_few_cores_are_left(caplog, first):
    take_cores(6, CORES, {}, first)
    assert take_cores(4, CORES, {}, []) == [4, 5, 6, 7]
    assert "other workers on this host have the cores: sharing 2" in caplog.text


def test_a_worker_gets_no_more_than_the_host_has(first):
    assert take_cores(64, CORES, {}, first) == CORES
