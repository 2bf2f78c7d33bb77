from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from walle.launcher.allocation import Need
from walle.launcher.composing import Job
from walle.launcher.identity import Identity
from walle.launcher.planning import Plan
from walle.launcher.records import Manifest
from walle.launcher.timed.core_speeds import CoreSpeeds
from walle.launcher.timed.machine_check import MachineCheck
from walle.system.run_files import update_status

EQUAL, UNEQUAL = CoreSpeeds({0: 0.05, 1: 0.05}, 0.0), CoreSpeeds({0: 0.05, 1: 0.1}, 0.0)
SPIN = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"


def checked(directory, speeds, *, enabled=True, exclusive=True):
    """A launch of one job, between two checks that find `speeds`; its record in manifest.json."""
    job = Job("n=1", None, directory / "0", Identity(0, (), "", {}), Need(1))
    plan = Plan([job], {}, [0], [], Manifest((), {}, (), ({"started": "now"},)), exclusive)
    found = iter(speeds)
    check = MachineCheck(
        directory, plan, [0, 1], enabled=enabled, check=lambda cores, stop: next(found)
    )
    check.before([])
    update_status(directory / "0", state="completed", cores=[0, 1], others_busy=0.5)
    check.after([])
    file = directory / "manifest.json"
    return json.loads(file.read_text())["launches"][0]["machine"] if file.exists() else None


def test_the_manifest_has_both_checks_and_the_sentences(tmp_path, caplog):
    machine = checked(tmp_path, [EQUAL, UNEQUAL])
    assert machine["before"] == {"work_s": {"0": 0.05, "1": 0.05}, "others_busy": 0.0}
    assert machine["after"]["work_s"]["1"] == 0.1
    assert [note.partition(":")[0] for note in machine["notes"]] == [
        "The cores were unequal after the last job",
        "The speed of cores changed during the sweep",
        "The machine was not quiet while 1 job of 1 ran (#0)",
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
