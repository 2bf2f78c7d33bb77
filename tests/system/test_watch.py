import multiprocessing
import os
import signal
import threading
import time

import pytest

from walle.errors import WorkerError
from walle.system.signals import DEATH
from walle.system.workers import Watch

LIMIT_S = 10


class Mortal:
    """A stand-in for a process: its sentinel becomes readable when it ends."""

    def __init__(self):
        self.sentinel, self._alive = os.pipe()

    def end(self):
        os.close(self._alive)

    def close(self):
        os.close(self.sentinel)


@pytest.fixture
def mortals():
    made = [Mortal() for _ in range(3)]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def watch():
    """Makes watches, and closes them."""
    made = []

    def _watch(*arguments):
        made.append(Watch(*arguments))
        return made[-1]

    yield _watch
    for each in made:
        each.close()
    assert not [t for t in threading.enumerate() if t.name == "walle-watch"]


def sentinels(mortals):
    return [each.sentinel for each in mortals]


def fail():
    raise WorkerError("it ended")


def spend(until):
    deadline = time.monotonic() + LIMIT_S
    while not until():
        assert time.monotonic() < deadline, "the watch said nothing"


def test_a_death_raises_in_the_middle_of_work(watch, mortals):
    found = watch(sentinels(mortals), fail)
    threading.Timer(0.05, mortals[1].end).start()
    with pytest.raises(WorkerError), found.busy():
        spend(lambda: False)


def test_a_death_interrupts_a_sleep(watch, mortals):
    found = watch(sentinels(mortals), fail)
    threading.Timer(0.05, mortals[1].end).start()
    begin = time.monotonic()
    with pytest.raises(WorkerError), found.busy():
        time.sleep(LIMIT_S)
    assert time.monotonic() - begin < LIMIT_S


def test_a_death_at_leisure_is_reported_when_work_begins(watch, mortals):
    found = watch(sentinels(mortals), fail)
    mortals[1].end()
    time.sleep(0.05)
    with pytest.raises(WorkerError), found.busy():
        pytest.fail("it began")


def test_a_signal_from_anybody_reports_nothing_while_all_live(watch, mortals):
    reports = []
    found = watch(sentinels(mortals), lambda: reports.append(1))
    with found.busy():
        signal.raise_signal(DEATH)
        os.kill(os.getpid(), DEATH)
        time.sleep(0.01)
    assert reports == []


def test_after_a_death_that_is_tolerated_the_others_are_watched(watch, mortals):
    reports = []
    found = watch(sentinels(mortals), lambda: reports.append(1))
    with found.busy():
        for count, each in enumerate(mortals, 1):
            each.end()
            spend(lambda count=count: len(reports) >= count)
    assert len(reports) == 3
    with found.busy():
        signal.raise_signal(DEATH)
    assert len(reports) == 3  # each death once


def test_the_report_may_replace_the_dead(watch, mortals):
    """The new process has the number of the old one's file descriptor, as the kernel likes it."""
    reports = []

    def replace():
        reports.append(1)
        old = mortals[0]
        found.watch(sentinels(mortals[1:]))
        old.close()
        mortals[0] = Mortal()
        assert mortals[0].sentinel == old.sentinel
        found.watch(sentinels(mortals))

    found = watch(sentinels(mortals), replace)
    with found.busy():
        for count in (1, 2, 3):
            mortals[0].end()
            spend(lambda count=count: len(reports) == count)


def test_a_death_during_a_report_is_reported_after_it(watch, mortals):
    depth, reports = [0], []

    def report():
        assert depth[0] == 0
        depth[0] += 1
        reports.append(1)
        if len(reports) == 1:
            mortals[1].end()
            signal.raise_signal(DEATH)
            time.sleep(0.05)
        depth[0] -= 1

    found = watch(sentinels(mortals), report)
    with found.busy():
        mortals[0].end()
        spend(lambda: len(reports) == 2)


def test_after_the_end_of_the_watch_processes_may_end(watch, mortals):
    reports = []
    found = watch(sentinels(mortals), lambda: reports.append(1))
    with found.busy():
        found.close()
        for each in mortals:
            each.end()
        signal.raise_signal(DEATH)
        time.sleep(0.05)
    assert reports == []


def test_a_real_process(watch):
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=[600])
    process.start()
    found = watch([process.sentinel], fail)
    threading.Timer(0.05, process.kill).start()
    with pytest.raises(WorkerError), found.busy():
        time.sleep(LIMIT_S)
    process.join()


def test_in_another_thread_work_begins_with_the_question(mortals):
    raised = []

    def body():
        found = Watch(sentinels(mortals), fail)
        mortals[0].end()
        try:
            with found.busy():
                raised.append(None)
        except WorkerError as error:
            raised.append(error)
        found.close()

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert isinstance(raised[0], WorkerError)
