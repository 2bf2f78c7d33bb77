import time

import pytest

from walle.errors import WorkerError
from walle.processes.watchdog import LEAST_S, Watchdog


def test_work_that_lasts_too_long_is_named_and_then_ended():
    said, last = [], []
    watchdog = Watchdog(0.1, said.append, last.append)
    too_long = pytest.raises(WorkerError, match=r"the evaluation has lasted longer than 0 s")
    with too_long, watchdog.over("the evaluation"):
        time.sleep(60)
    assert len(said) == 1
    assert said[0].startswith("the evaluation has lasted for 0 s")
    assert last == []


def test_work_within_the_limit_is_left_alone():
    said = []
    with Watchdog(30, said.append, said.append).over("the evaluation"):
        time.sleep(0.01)
    assert said == []


def test_the_limit_grows_with_the_longest_work_so_far(monkeypatch):
    clock = iter([0.0, 20.0])
    monkeypatch.setattr("walle.processes.watchdog.monotonic", lambda: next(clock))
    watchdog = Watchdog(None, print, print)
    assert watchdog.limit_s == LEAST_S
    with watchdog.over("a round"):
        pass
    assert watchdog.limit_s == 200
