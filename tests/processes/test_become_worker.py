"""What a worker leaves to the programs that its environments start."""

import os
import signal
import subprocess
import time

import pytest

from walle.processes.signals import FOR_AGENT
from walle.processes.workers import become_worker, forkserver_context


@pytest.fixture
def worker():
    """Runs a function in a worker, which may say something through a pipe."""
    context = forkserver_context()
    started = []

    def _worker(body):
        ours, theirs = context.Pipe()
        process = context.Process(target=_run, args=[body, theirs], daemon=True)
        process.start()
        theirs.close()
        started.append(process)
        return process, ours

    yield _worker
    for process in started:
        process.kill()
        process.join()


def _run(body, pipe):
    become_worker(threads=1)
    body(pipe)


def _tell_signals_of_a_program(pipe):
    lines = subprocess.check_output(["cat", "/proc/self/status"], text=True).splitlines()
    status = dict(line.split(":\t", 1) for line in lines)
    pipe.send([int(status[mask], 16) for mask in ("SigIgn", "SigBlk")])


def test_a_program_neither_ignores_nor_blocks_a_signal(worker):
    _, pipe = worker(_tell_signals_of_a_program)
    for mask in pipe.recv():
        assert [number for number in FOR_AGENT if mask >> (number - 1) & 1] == []


def _sleep(pipe):
    pipe.send(os.getsid(0))
    time.sleep(600)


def test_a_worker_survives_the_agents_signals_and_has_a_group_of_its_own(worker):
    process, pipe = worker(_sleep)
    assert pipe.recv() == process.pid
    for number in FOR_AGENT:
        os.kill(process.pid, number)
    process.join(0.2)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
