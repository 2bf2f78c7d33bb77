from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from walle.launcher import runner
from walle.launcher.allocation import Need
from walle.launcher.planning import Job, Plan
from walle.launcher.records import Identity, Manifest
from walle.launcher.runner import (
    CoreSpeeds,
    checked_machine,
    core_speeds,
    is_busy,
    machine_notes,
    others_clock,
    time_on,
)
from walle.system.run_files import update_status

EQUAL, UNEQUAL = CoreSpeeds({0: 0.05, 1: 0.05}, 0.0), CoreSpeeds({0: 0.05, 1: 0.1}, 0.0)
SPIN = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"


def checked(directory, speeds, *, enabled=True, exclusive=True):
    """A launch of one job, between two checks that find `speeds`; its record in manifest.json."""
    job = Job("n=1", None, directory / "0", Identity(0, (), "", {}), Need(1))
    plan = Plan([job], {}, [0], [], Manifest((), {}, (), ({"started": "now"},)), exclusive)
    with (
        patch.object(runner, "core_speeds", side_effect=speeds),
        checked_machine(directory, plan, [0, 1], [], enabled=enabled),
    ):
        update_status(directory / "0", state="completed", cores=[0, 1], others_busy=0.5)
    file = directory / "manifest.json"
    return json.loads(file.read_text())["launches"][0]["machine"] if file.exists() else None


def test_the_manifest_has_both_checks_and_the_sentences(tmp_path, caplog):
    machine = checked(tmp_path, [EQUAL, UNEQUAL])
    assert machine["before"] == {"work_s": {"0": 0.05, "1": 0.05}, "others_busy": 0.0}
    assert machine["after"]["work_s"]["1"] == 0.1
    assert [note.partition(":")[0] for note in machine["notes"]] == [
        "The machine was not quiet while 1 job of 1 ran (#0)",
        "The cores were unequal after the last job",
        "The speed of cores changed during the sweep",
    ]
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told == machine["notes"]


def test_without_a_check_the_jobs_tell_whether_the_machine_was_quiet(tmp_path):
    machine = checked(tmp_path, [], enabled=False)
    assert list(machine) == ["notes"]
    assert "0.50" in machine["notes"][0]


def test_jobs_side_by_side_tell_nothing(tmp_path):
    assert checked(tmp_path, [], enabled=False, exclusive=False) is None


def test_a_check_that_was_stopped_is_no_check(tmp_path):
    assert list(checked(tmp_path, [EQUAL, None])) == ["before", "notes"]


@pytest.fixture
def busy_core():
    """A core that another program keeps busy."""
    core = min(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", SPIN % core])
    yield core
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_sweep_beside_a_busy_program_says_so(app, busy_core):
    cores = f"hydra.launcher.cores=[{busy_core}]"
    code, output = app.run("job=0", "sleep_s=1", "hydra.launcher.exclusive=true", cores)
    assert code == 0, output
    assert "timing the same work on 1 core" in output
    (launch,) = app.manifest()["launches"]
    assert list(launch["machine"]["before"]["work_s"]) == [str(busy_core)]
    assert app.status(0)["others_busy"] > 0.4
    assert float(app.index()[0]["others_busy"]) == app.status(0)["others_busy"]
    assert any("1 job of 1 ran (#0)" in note for note in launch["machine"]["notes"])
    assert "The machine was not quiet before the first job" in output


def others_busy(monkeypatch, busy, elapsed_s, own_s):
    """What others use of cores that are busy for so many seconds in so much time."""
    seconds, times = iter([100.0, 100.0 + busy]), iter([7.0, 7.0 + elapsed_s])
    monkeypatch.setattr(runner, "busy_s", lambda _: next(seconds))
    clock = SimpleNamespace(monotonic=lambda: next(times))
    monkeypatch.setattr(runner, "time", clock)
    return others_clock([0, 1])(own_s)


@pytest.mark.parametrize(
    ("busy_s", "own_s", "expected"),
    [(20.0, 10.0, 1.0), (10.0, 10.0, 0.0), (9.9, 10.0, 0.0), (13.0, 10.0, 0.3)],
)
def test_others_are_what_was_busy_without_our_own_work(monkeypatch, busy_s, own_s, expected):
    assert others_busy(monkeypatch, busy_s, 10.0, own_s) == pytest.approx(expected)


def test_others_are_unknown_where_the_kernel_does_not_tell(monkeypatch):
    monkeypatch.setattr(runner, "busy_s", lambda _: None)
    assert others_clock([0])(1.0) is None


def test_each_core_has_its_median(monkeypatch):
    times = {3: iter([9.0] * 5 + [1.0] * 15), 5: iter([2.0] * 20)}
    monkeypatch.setattr(runner, "time_on", lambda core: next(times[core]))
    monkeypatch.setattr(runner, "others_clock", lambda cores: lambda own_s: 0.5)
    found = core_speeds([3, 5])
    assert found == CoreSpeeds({3: 1.0, 5: 2.0}, 0.5)


def test_cores_take_turns_and_many_cores_have_fewer(monkeypatch):
    turns = []
    monkeypatch.setattr(runner, "time_on", lambda core: turns.append(core) or 1.0)
    core_speeds([0, 1])
    assert turns == [0, 1] * 20
    turns.clear()
    core_speeds(range(100))
    assert turns == [*range(100)] * 4


def test_a_check_ends_early_and_gives_the_cores_back(monkeypatch):
    before, stop = os.sched_getaffinity(0), []
    timed = runner.time_on
    monkeypatch.setattr(runner, "time_on", lambda core: stop.append(2) or timed(core))
    assert core_speeds(sorted(before), stop) is None
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


QUIET = CoreSpeeds({0: 0.05, 1: 0.052}, 0.02)


def shares(others_busy, cores):
    return {"others_busy": others_busy, "cores": list(range(cores))}


def test_equal_and_quiet_cores_need_no_words():
    assert machine_notes(QUIET, QUIET, {0: shares(0.01, 1), 1: shares(None, 2)}) == []
    assert machine_notes(None, None, {}) == []


def test_unequal_cores_are_named():
    slow = CoreSpeeds({0: 0.05, 1: 0.065, 2: 0.06}, 0.0)
    assert machine_notes(slow, slow, {}) == [
        "The cores were unequal before the first job: cores 1-2 took up to 30% longer than the "
        "fastest core for the same work.",
        "The cores were unequal after the last job: cores 1-2 took up to 30% longer than the "
        "fastest core for the same work.",
    ]


def test_a_machine_that_changed_is_told():
    slower = CoreSpeeds({0: 0.07, 1: 0.0728}, 0.0)
    told = "The speed of cores changed during the sweep: after the last job"
    assert machine_notes(QUIET, slower, {}) == [
        f"{told} cores 0-1 took 1.40 times as long as before the first."
    ]
    assert machine_notes(QUIET, CoreSpeeds({0: 0.06, 1: 0.065}, 0.0), {}) == [
        f"{told} cores 0-1 took 1.20 to 1.25 times as long as before the first."
    ]


def test_other_programs_are_told():
    busy = QUIET._replace(others_busy=0.78)
    notes = machine_notes(busy, QUIET, {3: shares(0.4, 2), 4: shares(0.01, 2), 5: shares(0.9, 1)})
    assert notes == [
        "The machine was not quiet while 2 jobs of 3 ran (#3,5): other programs kept up to 0.90 of "
        "a job's cores busy.",
        "The machine was not quiet before the first job: other programs kept 0.78 of its 2 cores "
        "busy.",
    ]


def test_a_third_of_one_core_is_not_quiet_however_many_there_are():
    assert is_busy(1 / 3, 1)
    assert is_busy(1 / 3, 16)
    assert not is_busy(0.1, 1)
    assert not is_busy(None, 1)
