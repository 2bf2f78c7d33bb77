from __future__ import annotations

from walle.launcher.timed.core_speeds import CoreSpeeds
from walle.launcher.timed.machine_notes import is_busy, machine_notes

QUIET = CoreSpeeds({0: 0.05, 1: 0.052}, 0.02)


def test_equal_and_quiet_cores_need_no_words():
    assert machine_notes(QUIET, QUIET, {0: 0.01, 1: None}, {0: 1, 1: 2}) == []
    assert machine_notes(None, None, {}, {}) == []


def test_unequal_cores_are_named():
    slow = CoreSpeeds({0: 0.05, 1: 0.065, 2: 0.06}, 0.0)
    assert machine_notes(slow, slow, {}, {}) == [
        "The cores were unequal before the first job: cores 1-2 took up to 30% longer than the "
        "fastest core for the same work.",
        "The cores were unequal after the last job: cores 1-2 took up to 30% longer than the "
        "fastest core for the same work.",
    ]


def test_a_machine_that_changed_is_told():
    slower = CoreSpeeds({0: 0.07, 1: 0.0728}, 0.0)
    told = "The speed of cores changed during the sweep: after the last job"
    assert machine_notes(QUIET, slower, {}, {}) == [
        f"{told} cores 0-1 took 1.40 times as long as before the first."
    ]
    assert machine_notes(QUIET, CoreSpeeds({0: 0.06, 1: 0.065}, 0.0), {}, {}) == [
        f"{told} cores 0-1 took 1.20 to 1.25 times as long as before the first."
    ]


def test_other_programs_are_told():
    busy = QUIET._replace(others_busy=0.78)
    notes = machine_notes(busy, QUIET, {3: 0.4, 4: 0.01, 5: 0.9}, {3: 2, 4: 2, 5: 1})
    assert notes == [
        "The machine was not quiet before the first job: other programs kept 0.78 of its 2 cores "
        "busy.",
        "The machine was not quiet while 2 jobs of 3 ran (#3,5): other programs kept up to 0.90 of "
        "a job's cores busy.",
    ]


def test_a_third_of_one_core_is_not_quiet_however_many_there_are():
    assert is_busy(1 / 3, 1)
    assert is_busy(1 / 3, 16)
    assert not is_busy(0.1, 1)
    assert not is_busy(None, 1)
