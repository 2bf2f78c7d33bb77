"""Deaths, silence, time limits and restarts."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from walle.errors import WorkerError
from walle.system.signals import DEATH
from walle.system.supervision import (
    LEAST_S,
    SLICE_S,
    DeathWatch,
    Restarts,
    Silence,
    TimeLimit,
    Watchdog,
)

LIMIT_S = 10


def test_work_that_lasts_too_long_is_named_and_then_ended():
    said, last = [], []
    watchdog = Watchdog(0.1, said.append, last.append)
    too_long = pytest.raises(WorkerError, match=r"the evaluation has lasted 0 s \(sampler")
    with too_long, watchdog.over("the evaluation has lasted"):
        time.sleep(60)
    assert len(said) == 1
    assert said[0].startswith("the evaluation has lasted 0 s; it is ended")
    assert last == []


def test_work_within_the_limit_is_left_alone():
    said = []
    with Watchdog(30, said.append, said.append).over("the evaluation"):
        time.sleep(0.01)
    assert said == []


def test_work_that_gives_signs_of_life_may_last_longer():
    said = []
    with Watchdog(0.5, said.append, said.append).over("the evaluation", time.monotonic):
        time.sleep(1.5)
    assert said == []


def test_the_limit_is_ten_times_the_longest_so_far_and_a_minute_at_least():
    limit = TimeLimit(None)
    for took_s, limit_s in [(0.0, LEAST_S), (5.0, 60.0), (8.0, 80.0), (1.0, 80.0)]:
        limit.note(took_s)
        assert limit.seconds == limit_s
    assert TimeLimit(None, 180.0, 30.0).seconds == 180
    assert TimeLimit(3.0).seconds == 3


STUCK = """
import signal, sys, time
from walle.system import supervision

supervision.NATIVE_S = 0.2
signal.pthread_sigmask(signal.SIG_BLOCK, [supervision.SILENT])  # as if native code did not return

def last_words(text):
    print(text, flush=True)
    if sys.argv[1] == "full disk":
        raise OSError("No space left on device")

with supervision.Watchdog(0.1, print, last_words).over("the evaluation has lasted"):
    time.sleep(60)
print("too late")
"""


@pytest.mark.parametrize("disk", ["disk", "full disk"])
def test_a_process_stuck_in_native_code_ends_with_last_words(disk):
    done = subprocess.run(
        [sys.executable, "-c", STUCK, disk], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    text = "the evaluation has lasted 0 s (sampler.timeout_s), and native code does not"
    assert done.stdout.splitlines()[1].startswith(text)
    assert done.stderr.startswith(f"walle: {text}")
    assert ("No space left" in done.stderr) == (disk == "full disk")


def test_work_that_goes_on_after_the_error_is_ended_too():
    """An environment may catch every exception and try again."""
    code = STUCK.replace("signal.pthread_sigmask", "(lambda *_: None)").replace(
        "    time.sleep(60)\n",
        "    while True:\n        try:\n            time.sleep(60)\n"
        "        except Exception:\n            continue\n",
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "disk"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.count("\n")) == (1, 2)


STOPPED = """
import os, signal, subprocess, time
from walle.system import supervision

begun_s = time.monotonic()
wake = f"sleep 0.2; kill -STOP {os.getpid()}; sleep 2; kill -CONT {os.getpid()}"
subprocess.Popen(["sh", "-c", wake])
stepped_s = begun_s
with supervision.Watchdog(0.5, print, print).over("the round", lambda: stepped_s):
    while time.monotonic() - begun_s < 3:
        sum(range(1_000_000))  # a step of some milliseconds in which no signal is handled
        stepped_s = time.monotonic()
print("done")
"""


def test_a_pause_is_no_silence():
    """Ctrl-Z and later `fg`: the watching thread may be the first to run again."""
    command = [sys.executable, "-c", STOPPED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("done\n", "")


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
        made.append(DeathWatch(*arguments))
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


def test_the_watchdogs_thread_leaves_interrupts_to_the_main_thread_which_may_block_them():
    before = set(os.listdir("/proc/self/task"))
    with Watchdog(None, print, print).over("work"):
        (thread,) = set(os.listdir("/proc/self/task")) - before
        status = Path(f"/proc/self/task/{thread}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    assert blocked >> (signal.SIGINT - 1) & 1


def test_in_another_thread_work_begins_with_the_question(mortals):
    raised = []

    def body():
        found = DeathWatch(sentinels(mortals), fail)
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


def test_so_many_replacements_are_allowed_in_a_run():
    restarts = Restarts(2)
    assert [restarts.refusal(0, round_) for round_ in (4, 5)] == ["", ""]
    assert restarts.refusal(1, 6) == "sampler.restarts=2 allows no further replacement"
    assert Restarts(0, "learner.restarts").refusal(0, 0).startswith("learner.restarts=0 allows no")


def test_the_same_round_is_repeated_twice_at_most():
    restarts = Restarts(10)
    assert [restarts.refusal(0, 4) for _ in range(2)] == ["", ""]
    assert restarts.refusal(0, 4) == "its round 4 failed 3 times: the fault comes back"
    assert restarts.refusal(1, 4) == restarts.refusal(0, 5) == ""  # another sampler or round may


def test_a_refusal_is_known_before_it_counts():
    restarts = Restarts(1)
    assert [restarts.reason_against(0, 4) for _ in range(3)] == [""] * 3
    assert restarts.refusal(0, 4) == ""
    assert restarts.reason_against(0, 5) == restarts.refusal(0, 5) != ""


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_silent_sampler_is_named_once_and_then_replaced(clock):
    silence = Silence(3, 10.0, clock)
    assert silence.wait_s() is None
    silence.update(1, owes=True)
    assert silence.wait_s() == SLICE_S
    clock.now += 9.5
    silence.update(1, owes=True)
    assert (silence.wait_s(), silence.overdue()) == (0.5, [])
    clock.now += 0.5
    assert silence.overdue() == [(1, 10, "name")]
    assert (silence.wait_s(), silence.overdue()) == (SLICE_S, [])
    clock.now += 10
    assert silence.overdue() == [(1, 20, "replace")]
    assert silence.wait_s() == 0


def test_nobody_is_replaced_unnamed_and_unwatched(clock):
    """The agent may have been busy, or the processes stopped, for longer than both limits."""
    silence = Silence(1, 10.0, clock)
    silence.update(0, owes=True)
    clock.now += 1000
    assert silence.overdue() == [(0, 1000, "name")]
    clock.now += 9
    assert silence.overdue() == []
    clock.now += 1
    assert silence.overdue() == [(0, 1010, "replace")]


def test_the_time_in_which_the_process_was_stopped_does_not_count(clock):
    """As by Ctrl-Z, `docker pause` or Slurm: a wait then takes longer than was asked."""
    silence = Silence(1, 10.0, clock)
    silence.update(0, owes=True)
    for stopped_s in (0, 3600):
        assert silence.wait_s() == SLICE_S
        clock.now += SLICE_S + stopped_s
        assert silence.overdue() == []
    clock.now += 8
    assert silence.overdue() == [(0, 10, "name")]
    assert silence.wait_s() == SLICE_S
    clock.now += SLICE_S + 3600
    assert silence.overdue() == []
    clock.now += 9
    assert silence.overdue() == [(0, 20, "replace")]


def test_a_sign_of_life_after_a_stop_is_not_in_the_future(clock):
    silence = Silence(1, 10.0, clock)
    silence.update(0, owes=True)
    assert silence.wait_s() == SLICE_S
    clock.now += SLICE_S + 3600
    silence.alive(0, clock.now)
    assert silence.overdue() == []
    clock.now += 10
    assert silence.overdue() == [(0, 10, "name")]


def test_the_time_runs_from_when_the_sampler_owes_first(clock):
    silence = Silence(2, 10.0, clock)
    silence.update(0, owes=True)
    clock.now += 6
    silence.update(0, owes=True)
    silence.update(1, owes=True)
    clock.now += 4
    assert silence.overdue() == [(0, 10, "name")]
    clock.now += 6
    assert silence.overdue() == [(1, 10, "name")]


def test_a_sampler_that_makes_steps_is_not_replaced(clock):
    silence = Silence(2, 10.0, clock)
    silence.alive(0, clock.now)
    assert silence.wait_s() is None  # it owes nothing
    for sampler in (0, 1):
        silence.update(sampler, owes=True)
    clock.now += 9
    silence.alive(0, clock.now)
    silence.alive(1, clock.now - 100)  # of an earlier round
    clock.now += 9
    assert silence.overdue() == [(1, 18, "name")]


@pytest.mark.parametrize("how", ["delivers", "owes nothing"])
def test_a_sign_of_life_ends_the_silence(clock, how):
    silence = Silence(1, 10.0, clock)
    silence.update(0, owes=True)
    clock.now += 10
    assert silence.overdue() == [(0, 10, "name")]
    if how == "delivers":
        silence.heard(0, took_s=10.0)
    else:
        silence.update(0, owes=False)
    assert (silence.wait_s(), silence.overdue()) == (None, [])
    silence.update(0, owes=True)
    clock.now += 10
    assert silence.overdue() == [(0, 10, "name")]  # named again
