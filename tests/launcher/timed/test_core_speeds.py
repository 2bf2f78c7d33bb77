from __future__ import annotations

import os

import pytest

from walle.launcher.timed.core_speeds import CoreSpeeds, OthersClock, core_speeds, time_on


class Clock:
    """Cores 0 and 1: so many busy seconds in so much time."""

    def __init__(self, busy, elapsed_s):
        self._busy, self._times = iter([100.0, 100.0 + busy]), iter([7.0, 7.0 + elapsed_s])

    def on(self, cores):
        return OthersClock(cores, lambda _: next(self._busy), lambda: next(self._times))


@pytest.mark.parametrize(
    ("busy_s", "own_s", "expected"),
    [(20.0, 10.0, 1.0), (10.0, 10.0, 0.0), (9.9, 10.0, 0.0), (13.0, 10.0, 0.3)],
)
def test_others_are_what_was_busy_without_our_own_work(busy_s, own_s, expected):
    clock = Clock(busy_s, 10.0).on([0, 1])
    assert clock.others_busy(own_s) == pytest.approx(expected)


def test_others_are_unknown_where_the_kernel_does_not_tell():
    assert OthersClock([0], lambda _: None).others_busy(1.0) is None


def test_each_core_has_its_median():
    times = {3: iter([9.0] * 5 + [1.0] * 15), 5: iter([2.0] * 20)}
    found = core_speeds([3, 5], (), lambda core: next(times[core]), Clock(5.0, 10.0).on)
    assert found.work_s == {3: 1.0, 5: 2.0}
    assert found.others_busy == pytest.approx(0.5, abs=0.01)
    assert found.as_record() == {"work_s": {"3": 1.0, "5": 2.0}, "others_busy": 0.5}


def test_cores_take_turns_and_many_cores_have_fewer():
    turns = []
    core_speeds([0, 1], (), lambda core: turns.append(core) or 1.0, Clock(0, 1).on)
    assert turns == [0, 1] * 20
    turns.clear()
    core_speeds(range(100), (), lambda core: turns.append(core) or 1.0, Clock(0, 1).on)
    assert turns == [*range(100)] * 4


def test_a_check_ends_early_and_gives_the_cores_back():
    before, stop = os.sched_getaffinity(0), []
    assert core_speeds(sorted(before), stop, lambda core: stop.append(2) or time_on(core)) is None
    assert len(stop) == 1
    assert os.sched_getaffinity(0) == before


def test_this_machine():
    before = os.sched_getaffinity(0)
    core = min(before)
    try:
        assert time_on(core) > 0
        assert os.sched_getaffinity(0) == {core}
    finally:
        os.sched_setaffinity(0, before)
    assert CoreSpeeds({0: 1.0}, None).as_record()["others_busy"] is None
