"""What a worker leaves to the programs that its environments start."""

import os
import signal
import subprocess
import time

import psutil
import pytest

from walle.system.forkserver import end_orphans, start_fork_server
from walle.system.signals import FOR_AGENT
from walle.system.workers import become_worker


@pytest.fixture
def worker():
    """Runs a function in a worker, which may say something through a pipe."""
    context = start_fork_server()
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


def _tell_files_of_a_program(pipe):
    names = subprocess.check_output(["ls", "/proc/self/fd"], text=True, close_fds=False)
    pipe.send([int(name) for name in names.split()])


def test_a_program_inherits_no_open_files(worker):
    _, pipe = worker(_tell_files_of_a_program)
    assert pipe.recv() == [0, 1, 2, 3]  # the last one is the folder that `ls` reads


def _start_programs(pipe):
    """One of them leaves its session and its parent."""
    program = subprocess.Popen(["sleep", "600"])
    daemon = "setsid sleep 600 >/dev/null 2>&1 & echo $!"
    pipe.send([program.pid, int(subprocess.check_output(daemon, shell=True))])
    time.sleep(600)


def test_only_orphans_are_ended(worker):
    (dead, first), (alive, second) = worker(_start_programs), worker(_start_programs)
    orphans = [psutil.Process(pid) for pid in first.recv()]
    kept = [psutil.Process(pid) for pid in second.recv()]
    dead.kill()
    dead.join()
    end_orphans()
    assert not any(orphan.is_running() for orphan in orphans)
    assert all(program.is_running() for program in kept)
    alive.kill()
    alive.join()
    end_orphans()
    assert not any(program.is_running() for program in kept)


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
