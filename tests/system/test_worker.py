"""A worker process as the agent sees it: whether it runs, how it ended, and how it is ended."""

import gc
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from walle.system.workers import Worker, end_all

LONG_S, SOON_S = 1000.0, 30.0

COMMAND = """
import json, os, signal, time
from multiprocessing import forkserver
from walle.system.forkserver import start_fork_server
from walle.system.workers import Worker, end_all

start_fork_server(for_workers=False)
server = forkserver._forkserver._forkserver_pid
told = [Worker("sampler-0", os._exit, (255,)), Worker("sampler-1", time.sleep, (600,))]
late = Worker("sampler-2", time.sleep, (600,))
texts = []
told[0].ended(60)
texts.append(told[0].how_it_ended())
os.kill(server, signal.SIGKILL)
os.kill(told[1].pid, signal.SIGKILL)
texts.append(told[1].how_it_ended())
new = Worker("sampler-3", os._exit, (255,))  # starts another server
os.kill(late.pid, signal.SIGSEGV)
late.ended(60)
texts.append(late.how_it_ended())
new.ended(60)
texts.append(new.how_it_ended())
end_all([*told, late, new], 0)
print(json.dumps(texts))
"""


DIES_WHILE_STARTING = """
import json, os, signal
from multiprocessing import forkserver
from walle.system.forkserver import fork_server, start_fork_server
from walle.system.workers import Worker

start_fork_server(for_workers=False)
killed, read = [], forkserver.read_signed

def read_signed(descriptor):  # the answer of the server, which has been asked for a process
    if not killed:
        killed.append(fork_server())
        os.kill(killed[-1], signal.SIGKILL)
    return read(descriptor)

def start():
    os.kill(fork_server(), signal.SIGSTOP)  # it hears, and does not answer
    return Worker("sampler-0", os._exit, (7,))

forkserver.read_signed = read_signed
worker = start()
worker.ended(60)
print(json.dumps([worker.how_it_ended(), len(killed)]))
worker.close()
"""


@pytest.fixture
def worker():
    """Starts workers, of which none is left."""
    started = []

    def _worker(target, *args, name="sampler-3"):
        started.append(Worker(name, target, args))
        return started[-1]

    yield _worker
    for each in started:
        if psutil.pid_exists(each.pid):
            each.kill()


def test_a_worker_ends_when_its_function_returns(worker):
    found = worker(time.sleep, 0)
    assert found.ended(SOON_S)
    assert found.how_it_ended().startswith(f"sampler-3 (pid {found.pid}) exited with 0")
    found.close()


def test_a_worker_that_runs_has_not_ended(worker):
    found = worker(time.sleep, LONG_S)
    assert not found.ended()
    assert not found.ended(within_s=-1.0)
    assert psutil.Process(found.pid).is_running()
    found.kill()
    assert found.ended()
    assert "was killed by SIGKILL; was it out of memory?" in found.how_it_ended()
    found.kill()  # once more is no error
    found.close()


def test_a_stopped_worker_can_be_killed(worker):
    found = worker(time.sleep, LONG_S)
    os.kill(found.pid, signal.SIGSTOP)
    assert not found.ended(0.1)
    found.kill()
    assert found.ended()
    found.close()


def test_a_worker_that_ended_before_it_could_be_watched_has_ended(worker, monkeypatch):
    def too_late(_):
        raise ProcessLookupError

    monkeypatch.setattr("os.pidfd_open", too_late)
    found = worker(os._exit, 0)
    assert found.ended()
    found.kill()
    found.close()


@pytest.mark.slow
def test_a_worker_starts_though_the_fork_server_dies_meanwhile():
    command = [sys.executable, "-c", DIES_WHILE_STARTING]
    text, deaths = json.loads(subprocess.check_output(command, text=True, timeout=500))
    assert "exited with 7" in text
    assert deaths == 1


def test_closing_frees_every_descriptor(worker):
    worker(time.sleep, 0).close()  # the fork server runs from now on
    gc.collect()  # what earlier tests left must not be closed in between
    before = len(os.listdir("/proc/self/fd"))
    worker(time.sleep, 0).close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_the_rest_is_killed_when_the_grace_is_over(worker):
    quick, slow = worker(time.sleep, 0), worker(time.sleep, LONG_S, name="sampler-4")
    assert quick.ended(SOON_S)
    end_all([slow, quick], grace_s=0.2)
    assert not psutil.pid_exists(slow.pid) or psutil.Process(slow.pid).status() == "zombie"


@pytest.mark.slow
def test_the_death_of_the_fork_server_is_told_from_an_exit_with_255():
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True, timeout=500
    )
    texts = json.loads(done.stdout)
    exited = [
        text.startswith(f"sampler-{i} (pid ") and "exited with 255" in text
        for i, text in zip((0, 3), (texts[0], texts[3]), strict=True)
    ]
    assert exited == [True, True], texts
    for i in (1, 2):
        assert texts[i].startswith(f"sampler-{i} (pid ")
        assert "fork server" in texts[i]
        assert "255" not in texts[i]


@pytest.mark.parametrize(
    ("target", "argument", "words"),
    [
        (os._exit, 7, "exited with 7; the environment or a library called os._exit or exit in C"),
        (os._exit, 0, "exited with 0; the environment or a library called os._exit or exit in C"),
        ("SIGKILL", None, "was killed by SIGKILL; was it out of memory?"),
        ("SIGSEGV", None, "was killed by SIGSEGV; native code of the environment"),
        ("SIGBUS", None, "was killed by SIGBUS; native code of the environment"),
        ("SIGABRT", None, "was killed by SIGABRT; native code of the environment"),
        ("SIGALRM", None, "was killed by SIGALRM"),
    ],
)
def test_an_end_is_told_with_its_likely_reason(target, argument, words):
    arguments = (argument,) if argument is not None else (target,)
    worker = Worker("sampler-4", kill_self if isinstance(target, str) else target, arguments)
    assert worker.ended(60)
    assert worker.how_it_ended().startswith(f"sampler-4 (pid {worker.pid}) {words}")
    worker.close()


def test_a_real_time_signal_has_only_a_number():
    worker = Worker("sampler-4", time.sleep, (LONG_S,))
    os.kill(worker.pid, signal.SIGRTMIN + 3)
    assert worker.ended(60)
    assert worker.how_it_ended().endswith(f"was killed by signal {signal.SIGRTMIN + 3}")
    worker.close()


def kill_self(name):
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.Signals[name], signal.SIG_DFL) if name != "SIGKILL" else None
    os.kill(os.getpid(), signal.Signals[name])
