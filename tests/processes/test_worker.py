"""A worker process as the agent sees it."""

import os
import signal
import sys
import time

import psutil
import pytest

from walle.processes.worker import Worker, end_all

LONG_S, SOON_S = 1000.0, 30.0


def waits(seconds):
    time.sleep(seconds)


def leaves(code):
    os._exit(code)


def ends_by_itself(number):
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    time.sleep(LONG_S)


def fails(code):
    sys.exit(code)


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
    found = worker(waits, 0)
    assert found.ended(SOON_S)
    assert found.how_it_ended().startswith(f"sampler-3 (pid {found.pid}) exited with 0")
    found.close()


def test_a_worker_that_runs_has_not_ended(worker):
    found = worker(waits, LONG_S)
    assert not found.ended()
    assert not found.ended(within_s=-1.0)
    assert psutil.Process(found.pid).is_running()
    found.kill()
    assert found.ended()
    assert "was killed by SIGKILL; was it out of memory?" in found.how_it_ended()
    found.kill()  # once more is no error
    found.close()


def test_a_stopped_worker_can_be_killed(worker):
    found = worker(waits, LONG_S)
    os.kill(found.pid, signal.SIGSTOP)
    assert not found.ended(0.1)
    found.kill()
    assert found.ended()
    found.close()


@pytest.mark.parametrize(
    ("target", "argument", "how"),
    [
        (leaves, 7, "exited with 7; the environment, or a library, called os._exit"),
        (fails, 3, "exited with 3"),
        (ends_by_itself, signal.SIGSEGV, "was killed by SIGSEGV; a fault in native code"),
        (ends_by_itself, signal.SIGTERM, "was killed by SIGTERM"),
        (ends_by_itself, signal.SIGRTMIN + 3, f"was killed by signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_how_a_worker_ended_is_told(worker, target, argument, how):
    found = worker(target, argument)
    assert found.ended(SOON_S)
    assert found.how_it_ended().startswith(f"sampler-3 (pid {found.pid}) {how}")
    found.close()


def test_a_worker_that_ended_before_it_could_be_watched_has_ended(worker, monkeypatch):
    def too_late(_):
        raise ProcessLookupError

    monkeypatch.setattr("os.pidfd_open", too_late)
    found = worker(leaves, 0)
    assert found.ended()
    found.kill()
    found.close()


def test_closing_frees_every_descriptor(worker):
    worker(waits, 0).close()  # the fork server runs from now on
    before = len(os.listdir("/proc/self/fd"))
    worker(waits, 0).close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_rest_is_killed_when_the_grace_is_over(worker):
    quick, slow = worker(waits, 0), worker(waits, LONG_S, name="sampler-4")
    assert quick.ended(SOON_S)
    end_all([slow, quick], grace_s=0.2)
    assert not psutil.pid_exists(slow.pid) or psutil.Process(slow.pid).status() == "zombie"


@pytest.mark.slow
def test_a_dead_fork_server_does_not_hide_a_worker_that_runs(tmp_path):
    """In a process of its own, because the fork server serves all tests of this one."""
    import subprocess

    (tmp_path / "program.py").write_text(
        "import os, psutil, signal\n"
        "from tests.processes.test_worker import LONG_S, waits\n"
        "from walle.processes.worker import Worker\n"
        "if __name__ == '__main__':\n"
        "    worker = Worker('sampler-0', waits, [LONG_S])\n"
        "    os.kill(psutil.Process(worker.pid).ppid(), signal.SIGKILL)\n"
        "    assert not worker.ended(0.3)\n"
        "    worker.kill()\n"
        "    assert worker.ended()\n"
        "    print(worker.how_it_ended())\n"
        "    worker.close()\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "the fork server, which knows how processes ended, has died" in done.stdout
