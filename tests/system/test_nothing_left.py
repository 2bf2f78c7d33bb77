"""After a run has ended in any way, none of its processes is left."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest

LIMIT_S = 60
KEEPERS = (
    "env=gym",
    "env.id=tests.toy:Keeper-v0",
    "env.episode_limit=5",
    "sampler.lanes=2",
    "batch_size=16",
    "algo.minibatch_size=16",
    "algo.compile=false",
    "eval.episodes=1",
    "logger.progress=quiet",
)


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


class Run:
    """A run whose environments start programs, and every process that it has started."""

    def __init__(self, directory, *overrides, sampler="sampler.n=2", variables=()):
        self.directory, self._pids = directory, directory / "pids"
        directory.mkdir()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "walle.run", *KEEPERS, sampler, *overrides),
                *(f"+env.kwargs.pids={self._pids}", f"hydra.run.dir={directory}"),
            ],
            env={**os.environ, **dict(variables)},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.seen = {}

    def programs(self):
        """The programs of environments that are known so far."""
        return [int(pid) for pid in self._pids.read_text().split()] if self._pids.exists() else []

    def look(self):
        """Notes all processes that are there now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self.process.pid).children(recursive=True):
                self.seen[each.pid] = each
        for pid in self.programs():
            with contextlib.suppress(psutil.NoSuchProcess):
                self.seen.setdefault(pid, psutil.Process(pid))

    def find(self, name):
        """The processes with that in their names."""
        found = []
        for each in self.seen.values():
            with contextlib.suppress(psutil.Error):
                if name in each.name():
                    found.append(each)
        return found

    def samplers(self):
        return self.find("sampler-")

    def wait_for(self, condition):
        """Waits until the condition holds; fails at once if the run ends before."""
        wait_until(lambda: self.look() or condition() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()
        self.look()

    def train(self, programs):
        """Waits for the first rows and for so many programs of environments."""
        self.wait_for((self.directory / "iterations.csv").exists)
        self.wait_for(lambda: len(self.programs()) >= programs)

    def end(self):
        _, stderr = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, stderr

    def left(self, within_s=10):
        """The processes that have not ended by then; a zombie has, though nobody asked how."""
        deadline = time.monotonic() + within_s
        while (rest := list(filter(alive, self.seen.values()))) and time.monotonic() < deadline:
            time.sleep(0.02)
        return rest


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def start(tmp_path):
    runs = []

    def _start(*overrides, **kwargs):
        runs.append(Run(tmp_path / "run", *overrides, **kwargs))
        return runs[-1]

    yield _start
    for run in runs:
        run.look()
        run.process.kill()
        for each in run.seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        run.process.communicate()


LONG = "total_steps=1e9"
PROBES, EVALUATION, SAMPLERS = 8, 2, 4  # the programs of each


@pytest.mark.slow
def test_after_a_run(start):
    run = start("total_steps=3200")
    run.train(PROBES + EVALUATION + SAMPLERS)
    assert len(run.samplers()) == 2
    assert run.end() == (0, "")
    assert run.left(within_s=0.2) == []


@pytest.mark.parametrize("restarts", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_after_a_sampler_was_killed(start, restarts):
    run = start(LONG, f"sampler.restarts={restarts}")
    run.train(PROBES + EVALUATION + SAMPLERS)
    dead = run.samplers()[0]
    programs = dead.children(recursive=True)
    before = len(run.programs())
    dead.kill()
    if restarts:
        wait_until(lambda: len(run.programs()) >= before + 2)  # those of the new one
        wait_until(lambda: not any(map(alive, programs)))
        run.look()
        run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == (143 if restarts else 1)
    assert run.left(within_s=0.2) == []


@pytest.mark.slow
def test_after_two_interrupts_in_an_environment_that_hangs(start):
    run = start(LONG, "+env.kwargs.hangs=true", "eval.episodes=0")
    run.wait_for(lambda: len(run.find("sleep")) >= PROBES + SAMPLERS)
    for _ in range(2):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    assert run.end()[0] == 130
    assert run.left(within_s=0.2) == []


@pytest.mark.parametrize(
    "sampler", ["sampler.n=2", pytest.param("sampler=serial", marks=pytest.mark.slow)]
)
def test_after_the_agent_was_killed(start, sampler):
    run = start(LONG, sampler=sampler)
    run.train(PROBES + EVALUATION + SAMPLERS)
    run.process.kill()
    assert run.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("hard", [1, resource.RLIM_INFINITY])
def test_after_a_limit_of_processor_time(start, hard):
    """As `ulimit -t` sets it: the kernel sends SIGXCPU, and SIGKILL at the hard limit."""
    run = start(LONG)
    run.train(PROBES + EVALUATION + SAMPLERS)
    resource.prlimit(run.process.pid, resource.RLIMIT_CPU, (1, hard))
    assert run.end()[0] == (-signal.SIGKILL if hard == 1 else -signal.SIGXCPU)
    assert run.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("first", ["fork server", "sampler"])
def test_after_the_agent_and_another_process_were_killed(start, first):
    run = start(LONG)
    run.train(PROBES + EVALUATION + SAMPLERS)
    other = run.find("walle-server") if first == "fork server" else run.samplers()
    for each in (other[0], run.process):
        os.kill(each.pid, signal.SIGKILL)
    assert run.left() == []


@pytest.mark.slow
def test_after_the_agent_was_killed_while_the_fork_server_imports(start):
    run = start(LONG, variables={"OMP_NUM_THREADS": "2"})  # else the server is a fork of the agent
    run.wait_for(lambda: run.find("walle-server"))
    run.process.kill()
    assert run.left() == []


@pytest.mark.slow
def test_after_the_agent_was_killed_while_the_fork_server_was_dying(start):
    run = start(LONG)
    run.train(PROBES + EVALUATION + SAMPLERS)
    (server,) = run.find("walle-server")
    os.kill(server.pid, signal.SIGSTOP)
    os.kill(run.process.pid, signal.SIGKILL)
    time.sleep(0.1)  # a killed process can take as long to free its memory
    os.kill(server.pid, signal.SIGKILL)
    assert run.left() == []
