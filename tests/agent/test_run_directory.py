from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from walle.agent.run_directory import FAILURE, Status, remove_refused, set_aside_previous
from walle.errors import ConfigError, WorkerError
from walle.launcher.records import is_done
from walle.system.locks import RUN_LOCK, run_directory
from walle.system.run_files import read_status, set_aside, update_status


def test_an_update_keeps_all_other_fields(tmp_path):
    update_status(tmp_path / "0", state="running", mine=1)
    update_status(tmp_path / "0", state="failed", error="x")
    assert read_status(tmp_path / "0") == {"state": "failed", "mine": 1, "error": "x"}
    (tmp_path / "0" / "status.json").write_text('{"state": "runn')
    assert read_status(tmp_path / "0") == {}
    assert read_status(tmp_path / "1") == {}


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[3, 4]", b'"failed"', b'{"error": "caf\xe9"}', b"\xff\xfe{\0}\0"]
)
def test_a_damaged_status_is_no_status(tmp_path, damage):
    (tmp_path / "status.json").write_bytes(damage)
    assert read_status(tmp_path) == {}
    with run_directory(tmp_path) as locked:
        Status(locked, "own", again=True).end("completed", exit_code=0)
    assert (read_status(tmp_path)["state"], read_status(tmp_path)["attempts"]) == ("completed", 1)


def test_damaged_fields_of_a_status_are_left_out(tmp_path):
    damaged = {"attempts": "many", "cores": 3, "state": ["x"], "started": 5, "error": None}
    (tmp_path / "status.json").write_text(json.dumps(damaged))
    assert read_status(tmp_path) == {"error": None}


def test_a_run_alone_writes_its_own_hash(tmp_path):
    with run_directory(tmp_path) as locked:
        Status(locked, "own", again=False).end("completed", exit_code=0)
    status = read_status(tmp_path)
    assert (status["state"], status["config_hash"], status["attempts"]) == ("completed", "own", 1)
    with run_directory(tmp_path) as locked:
        Status(locked, "changed", again=True)
    status = read_status(tmp_path)
    assert (status["state"], status["config_hash"], status["attempts"]) == ("running", "changed", 2)
    assert status["ended"] is None


def test_a_run_that_a_launcher_started_keeps_the_launchers_hash_and_fields(tmp_path):
    update_status(tmp_path, state="running", config_hash="sweep", attempts=3, oversubscribed=True)
    with run_directory(tmp_path) as locked:
        Status(locked, "own", again=False).end("failed", exit_code=1, error="why")
    status = read_status(tmp_path)
    assert (status["config_hash"], status["attempts"]) == ("sweep", 3)
    assert (status["oversubscribed"], status["error"]) == (True, "why")


def test_a_complete_run_records_its_result_for_a_launcher_that_was_killed(tmp_path):
    with run_directory(tmp_path) as locked:
        Status(locked, "own", again=False).end("completed", exit_code=0, return_value=3.5)
    assert is_done(read_status(tmp_path), "own")
    assert read_status(tmp_path)["return_value"] == 3.5


TRACEBACK = (
    "sampler-0 failed:\nTraceback (most recent call last):\n"
    '  File "robot.py", line 3, in step\n    raise ValueError("the gearbox broke")\n'
    "ValueError: the gearbox broke\n"
)


def fail(directory, error, *, on_full_disk=False):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with run_directory(directory) as locked, pytest.MonkeyPatch.context() as patch:
        status = Status(locked, "own", again=True)
        if on_full_disk:
            patch.setattr("os.fsync", full)
        with pytest.raises(type(error)), status.recording_failure():
            raise error


def test_status_has_the_cause_in_one_line_and_the_traceback_has_a_file(tmp_path):
    fail(tmp_path, WorkerError(TRACEBACK))
    status = read_status(tmp_path)
    assert status["error"] == "WorkerError: sampler-0 failed: ValueError: the gearbox broke"
    assert (tmp_path / FAILURE).read_text() == f"WorkerError: {TRACEBACK}"
    fail(tmp_path, WorkerError("sampler-0 died"))  # an attempt that ends otherwise
    assert read_status(tmp_path)["error"] == "WorkerError: sampler-0 died"
    assert not (tmp_path / FAILURE).exists()


@pytest.mark.parametrize(("error", "code"), [(WorkerError("died"), 1), (ConfigError("no"), 2)])
def test_status_has_the_exit_code_of_the_command(tmp_path, error, code):
    fail(tmp_path, error)
    assert read_status(tmp_path)["exit_code"] == code


def test_a_full_disk_hides_no_error(tmp_path):
    fail(tmp_path, error := WorkerError("sampler-0 died"), on_full_disk=True)
    (note,) = error.__notes__
    assert note == "status.json could not be written: [Errno 28] No space left on device"


def test_an_earlier_attempt_is_set_aside_whole(tmp_path):
    job = tmp_path / "0"
    for attempt in (1, 2):
        update_status(job, attempts=attempt)
        (job / ".hydra").mkdir()
        set_aside(job)
    assert [entry.name for entry in job.iterdir()] == ["attempts"]
    for attempt in (1, 2):
        assert read_status(job / "attempts" / str(attempt)) == {"attempts": attempt}
        assert (job / "attempts" / str(attempt) / ".hydra").is_dir()
    set_aside(job)  # nothing left to move
    set_aside(tmp_path / "never existed")
    assert len(list((job / "attempts").iterdir())) == 2


def test_a_kill_while_files_are_set_aside_leaves_what_says_so(tmp_path, monkeypatch):
    for name in ("run.json", *"abcdefgh"):
        (tmp_path / name).write_text("{}")
    moved, rename = [], Path.rename

    def killed(self, target):
        if moved.append(self.name) or len(moved) == 9:
            raise KeyboardInterrupt
        rename(self, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        set_aside(tmp_path)
    assert moved[-1] == "run.json"


def test_an_earlier_runs_files_are_set_aside_and_hydras_stay(tmp_path):
    assert not set_aside_previous(tmp_path)
    for name in ("status.json", "iterations.csv", "run.json", "run.log"):
        (tmp_path / name).write_text("{}")
    for name in ("checkpoints", ".hydra"):
        (tmp_path / name).mkdir()
    assert set_aside_previous(tmp_path)
    assert {entry.name for entry in (tmp_path / "attempts" / "1").iterdir()} == {
        "checkpoints",
        "iterations.csv",
        "run.json",
    }
    assert not set_aside_previous(tmp_path)


def test_an_attempt_that_the_user_removed_is_not_overwritten(tmp_path):
    (tmp_path / "attempts" / "2").mkdir(parents=True)
    (tmp_path / "log").touch()
    assert set_aside(tmp_path)
    assert (tmp_path / "attempts" / "3" / "log").exists()


def test_an_attempt_set_aside_leaves_the_lock(tmp_path):
    with run_directory(tmp_path):
        (tmp_path / "log").touch()
        assert set_aside(tmp_path)
        assert {entry.name for entry in tmp_path.iterdir()} == {"attempts", RUN_LOCK}
    assert not set_aside(tmp_path)


def test_a_refused_run_does_not_remove_the_directory_of_a_run_that_begins(tmp_path):
    ours = tmp_path / "run"
    (ours / ".hydra").mkdir(parents=True)
    with run_directory(ours):
        remove_refused(ours)
        assert (ours / ".hydra").exists()
        assert (ours / RUN_LOCK).exists()
    remove_refused(ours)
    assert not ours.exists()
