import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys

import pytest

from walle.errors import ConfigError
from walle.system.locks import (
    RUN_LOCK,
    DirectoryLost,
    is_locked,
    locked_file,
    refuse_used,
    run_directory,
)


def test_a_lock_is_for_one_or_shared(tmp_path):
    path = tmp_path / "lock"
    assert not is_locked(path)
    assert not path.exists()  # to look makes no file
    with locked_file(path, shared=True), locked_file(path, 0.0, shared=True):
        assert not is_locked(path)
        with pytest.raises(BlockingIOError), locked_file(path, 0.0):
            pass
    refusal = ValueError("in use")
    with locked_file(path):
        assert is_locked(path)
        with pytest.raises(ValueError, match="in use"):
            locked_file(path, 0.05, refusal=lambda _: refusal).__enter__()
    assert not is_locked(path)


def test_a_second_run_is_told_who_uses_the_directory(tmp_path):
    refuse_used(tmp_path)
    with run_directory(tmp_path):
        for second in (lambda: refuse_used(tmp_path), run_directory(tmp_path).__enter__):
            with pytest.raises(ConfigError) as refused:
                second()
            message = str(refused.value)
            assert str(tmp_path) in message
            assert f"process {os.getpid()} on {socket.gethostname()}" in message
            assert "hydra.run.dir=" in message
            assert "\n" not in message
    refuse_used(tmp_path)
    with run_directory(tmp_path):
        pass


def test_the_lock_ends_with_the_process(tmp_path):
    command = (
        "import sys, time; from pathlib import Path\n"
        "from walle.system.locks import run_directory\n"
        "with run_directory(Path(sys.argv[1])):\n"
        "    print('locked', flush=True); time.sleep(600)"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", command, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(ConfigError, match=f"process {first.pid} on "):
            refuse_used(tmp_path)
    finally:
        first.kill()
        first.communicate()
    refuse_used(tmp_path)


def test_to_look_whether_a_directory_is_used_writes_nothing(tmp_path):
    refuse_used(tmp_path / "none")
    refuse_used(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_used_without(tmp_path, monkeypatch, capsys):
    def flock(descriptor, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with run_directory(tmp_path) as locked:
        locked.check()
    assert "cannot lock files" in capsys.readouterr().err


@pytest.mark.parametrize("fate", ["deleted", "replaced", "moved"])
def test_a_directory_that_is_lost_is_noticed(tmp_path, fate):
    path = tmp_path / "run"
    with run_directory(path) as locked:
        locked.check()
        if fate == "moved":
            path.rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(path)
        if fate == "replaced":
            path.mkdir()
        with pytest.raises(DirectoryLost, match=f"{path} was deleted or moved") as lost:
            locked.check()
    assert "\n" not in str(lost.value)
    assert path.exists() == (fate == "replaced")


def test_a_second_run_ends_before_hydra_writes_anything(tmp_path):
    with run_directory(tmp_path):
        before = list(tmp_path.iterdir())
        done = subprocess.run(
            [sys.executable, "-m", "walle.run", f"hydra.run.dir={tmp_path}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert f"walle: another run (process {os.getpid()} on " in done.stderr
        assert list(tmp_path.iterdir()) == before == [tmp_path / RUN_LOCK]
