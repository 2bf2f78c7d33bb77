import gc
import os
import subprocess
import sys

import psutil
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


def python(directory, environ, *arguments):
    """Runs Python in that directory, with these variables added to the environment."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environ,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


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
    ran = python(tmp_path, environ, "-c", start)
    assert (ran.returncode, ran.stderr) == (0, "")


# As glfw looks for its library's version while MuJoCo is imported.
ASKS = """
import subprocess, sys
asked = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
asked.communicate(open("answer").read())  # a pipe that nobody writes to
"""
INTERRUPTED = """
import os, time
import psutil
from walle.system import forkserver

os.mkfifo("answer")
forkserver._WORKERS = ("asks",)
forkserver.keep_processes()
forkserver.start_fork_server()
server = psutil.Process(forkserver.fork_server())
while not server.children():
    time.sleep(0.01)
time.sleep(0.5)  # for the program's start
"""


def test_a_server_ends_while_a_module_that_it_imports_talks_to_a_program(tmp_path):
    (tmp_path / "asks.py").write_text(ASKS)
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    ran = python(tmp_path, {"PYTHONPATH": str(tmp_path)}, "interrupted.py")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


JOB = """
import atexit, logging, os, sys
import torch
from multiprocessing import Pipe
from walle.system import forkserver
from walle.system.workers import Worker

def command(pid):
    return open(f"/proc/{pid}/cmdline").read()

def look(link, agent, path):
    descriptors = [f"/proc/self/fd/{number}" for number in range(64)]
    files = [os.readlink(each) for each in descriptors if os.path.exists(each)]
    logging.getLogger("own").info("unheard")
    logging.getLogger("own").warning("heard")
    unlocked = forkserver._server._lock.acquire(blocking=False)
    link.send([command(os.getpid()) == command(agent), path in files, unlocked])

if __name__ == "__main__":
    path = os.path.abspath("log")
    logging.basicConfig(filename=path, level=logging.INFO)
    forkserver.keep_processes()
    atexit.register(print, "the job's end")
    print("the job's start:", end=" ")
    forkserver.start_fork_server(for_workers=False, loaded=sys.argv[1] == "loaded")
    ours, theirs = Pipe()
    worker = Worker("sampler-0", look, (theirs, os.getpid(), path))
    print(*ours.recv(), forkserver.fork_server())
    assert worker.ended(60)
    worker.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("word", "threads"), [("loaded", "1"), ("loaded", "2"), ("new", "1")])
def test_a_job_forks_a_server_that_has_its_modules_and_nothing_else(tmp_path, word, threads):
    limits = dict.fromkeys(forkserver.THREAD_VARIABLES, threads)
    (tmp_path / "job.py").write_text(JOB)
    ran = python(tmp_path, limits, "job.py", word)
    start, end = ran.stdout.splitlines()
    words = start.split()
    assert words[:3] == ["the", "job's", "start:"], ran.stderr
    assert words[3:6] == [str((word, threads) == ("loaded", "1")), "False", "True"]
    assert not psutil.pid_exists(int(words[6]))
    assert end == "the job's end"
    assert ((tmp_path / "log").read_text(), ran.stderr) == ("", "heard\n")
