import gc
import os
import subprocess
import sys

import pytest

from walle.system import forkserver
from walle.system.process_tree import RUN_MARK


@pytest.fixture
def unfrozen():
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("unfrozen")
def test_imports_are_made_without_the_collector_which_later_leaves_them_out():
    before = gc.get_freeze_count()
    with forkserver.without_collector():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(kept)


@pytest.mark.usefixtures("unfrozen")
def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with forkserver.without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_one_process_marks_its_processes_once_and_a_fork_of_it_again(monkeypatch):
    registered = []
    monkeypatch.setattr(forkserver.process_tree, "adopt_orphans", lambda: None)
    monkeypatch.setattr(forkserver.atexit, "register", registered.append)
    monkeypatch.setenv(RUN_MARK, "1-0")  # the mark of another process
    forkserver.keep_processes()
    mark = os.environ[RUN_MARK]
    assert mark.startswith(f"{os.getpid()}-")
    forkserver.keep_processes()
    assert os.environ[RUN_MARK] == mark
    assert registered == [forkserver.end_all_processes]


def test_without_a_private_directory(tmp_path):
    """Others may change both HOME and TMPDIR; multiprocessing then makes a directory of its own."""
    for name in ("h", "t"):  # the path of a socket has at most 108 characters
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    environ = {
        "HOME": str(tmp_path / "h"),
        "TMPDIR": str(tmp_path / "t"),
        "XDG_CACHE_HOME": "",
    }
    start = "from walle.system.forkserver import *; start_fork_server(for_workers=False)"
    ran = subprocess.run(
        [sys.executable, "-c", start],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
