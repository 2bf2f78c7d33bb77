"""What happens to processes when something ends that should not: seen from outside, as a user."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import own_cache
from walle.errors import ConfigError
from walle.system.signals import SAVING
from walle.system.workers import allow_files

LONG = (
    "env=cartpole",
    "total_steps=1e9",
    "eval.episodes=0",
    "sampler.n=2",
    "algo.compile=false",
    "logger.progress=lines",
)
LIMIT_S = 60


@pytest.fixture
def started(tmp_path):
    """A long run of two samplers, past its first iteration, and its samplers' processes."""
    processes = []

    def _started(*overrides, iterations=1):
        command = [sys.executable, "-m", "walle.run", *LONG, *overrides]
        run = subprocess.Popen(
            [*command, f"hydra.run.dir={tmp_path}"],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(run)
        file = tmp_path / "iterations.csv"
        wait_until(lambda: len(samplers_of(run)) == 2)
        wait_until(lambda: not iterations or (file.exists() and file.read_text().count("\n") > 1))
        return run, samplers_of(run)

    yield _started
    for run in processes:
        run.kill()
        run.communicate()


def wait_until(condition):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def servers_of(run):
    servers = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(run.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # a compiler's, gone between two looks
                servers += [child] if child.name() == "walle-server" else []
    return servers


def samplers_of(run):
    try:
        return [sampler for server in servers_of(run) for sampler in server.children()]
    except psutil.NoSuchProcess:
        return []


def shared_memory_of(processes):
    """Names under /dev/shm that they map: other programs come and go there too."""
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in processes]
    return {name for text in maps for name in re.findall(r"/dev/shm/(\S+)", text)}


def gone(processes):
    return not psutil.wait_procs(processes, timeout=5)[1]


def status(tmp_path):
    return json.loads((tmp_path / "status.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("busy", ["with both", "with learning"])
def test_a_killed_sampler_ends_a_run_that_may_not_replace_it(started, tmp_path, busy):
    if busy == "with both":
        run, samplers = started("sampler.restarts=0")
    else:
        run, samplers = started("sampler.restarts=0", "algo.epochs=1000000", iterations=0)
        time.sleep(2)  # the first round takes milliseconds to collect and hours to learn
    everything = psutil.Process(run.pid).children(recursive=True)
    shared = shared_memory_of([psutil.Process(run.pid), *everything])
    samplers[1].kill()
    begin = time.monotonic()
    _, stderr = run.communicate(timeout=LIMIT_S)
    assert time.monotonic() - begin < 5
    assert run.returncode == 1
    assert f"sampler-1 (pid {samplers[1].pid}) was killed by SIGKILL" in stderr
    assert "sampler.restarts=0 allows no further replacement" in stderr
    assert status(tmp_path)["state"] == "failed"
    assert gone(everything)
    assert not [name for name in shared if name in os.listdir("/dev/shm")]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.slow
def test_a_sampler_killed_while_the_agent_compiles_ends_the_run(started, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache(tmp_path)))  # nothing compiled yet
    run, samplers = started("algo.compile=true", "sampler.restarts=0", iterations=0)
    wait_until(lambda: list((tmp_path / "walle").glob("*.building")))
    everything = psutil.Process(run.pid).children(recursive=True)
    samplers[0].kill()
    _, stderr = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 1
    assert f"sampler-0 (pid {samplers[0].pid}) was killed by SIGKILL" in stderr
    assert gone(everything)
    assert not list((tmp_path / "walle").glob("*.building"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.slow
@pytest.mark.parametrize("whom", ["agent", "group"])
def test_compiling_is_broken_off(started, tmp_path, monkeypatch, whom):
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache(tmp_path)))
    run, _ = started("algo.compile=true", iterations=0)
    wait_until(lambda: list((tmp_path / "walle").glob("*.building")))
    everything = psutil.Process(run.pid).children(recursive=True)
    os.kill(run.pid if whom == "agent" else -run.pid, signal.SIGINT)
    _, stderr = run.communicate(timeout=LIMIT_S)
    assert (run.returncode, stderr) == (130, "")
    assert (tmp_path / "checkpoints" / "last.pt").exists()
    assert status(tmp_path)["state"] == "interrupted"
    assert gone(everything)
    assert not list((tmp_path / "walle").glob("*.building"))


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(  # a terminal signals the whole group
    "whom", [pytest.param("agent", marks=pytest.mark.slow), "group"]
)
def test_an_interrupted_run_leaves_a_checkpoint(started, tmp_path, number, code, whom):
    run, _ = started()
    everything = psutil.Process(run.pid).children(recursive=True)
    if whom == "agent":
        run.send_signal(number)
    else:
        os.killpg(run.pid, number)
    run.communicate(timeout=LIMIT_S)
    assert run.returncode == code
    assert (tmp_path / "checkpoints" / "last.pt").exists()
    found = status(tmp_path)
    assert (found["state"], found["signal"]) == ("interrupted", signal.Signals(number).name)
    assert gone(everything)


@pytest.mark.slow
def test_a_warning_asks_for_a_checkpoint_and_a_hang_up_ends_the_run(started, tmp_path):
    run, _ = started()
    everything = psutil.Process(run.pid).children(recursive=True)
    checkpoint = tmp_path / "checkpoints" / "last.pt"
    for number in SAVING:
        checkpoint.unlink(missing_ok=True)
        send_to_all(run, everything, number)
        wait_until(checkpoint.exists)
    rows = (tmp_path / "iterations.csv").read_text().count("\n")
    wait_until(lambda: (tmp_path / "iterations.csv").read_text().count("\n") > rows + 1)
    assert status(tmp_path)["state"] == "running"
    send_to_all(run, everything, signal.SIGHUP)
    _, stderr = run.communicate(timeout=LIMIT_S)
    assert (run.returncode, stderr) == (129, "")
    found = status(tmp_path)
    assert (found["state"], found["signal"]) == ("interrupted", "SIGHUP")
    assert gone(everything)


def send_to_all(run, everything, number):
    """As a terminal or a scheduler may do."""
    for process in everything:
        process.send_signal(number)
    run.send_signal(number)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [pytest.param("server", marks=pytest.mark.slow), "run"])
def test_an_interrupt_while_the_samplers_start(tmp_path, stage):
    command = [sys.executable, "-m", "walle.run", *LONG, f"hydra.run.dir={tmp_path}"]
    env = os.environ | ({"OMP_NUM_THREADS": "2"} if stage == "server" else {})  # then it is no fork
    pipes = {"stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen(command, env=env, start_new_session=True, **pipes)
    file = tmp_path / "status.json"
    wait_until(lambda: servers_of(run) if stage == "server" else file.exists())
    os.killpg(run.pid, signal.SIGINT)  # while the fork server imports torch
    _, stderr = run.communicate(timeout=LIMIT_S)
    began = file.exists()  # even in the stage of the server, on a busy machine
    said = "" if began else "walle: stopped before the run began\n"
    assert (run.returncode, stderr) == (130, said)
    assert not began or status(tmp_path)["state"] == "interrupted"
    assert began or stage == "server"


@pytest.mark.slow
def test_processes_have_names(started):
    run, samplers = started(iterations=0)
    wait_until(lambda: {sampler.name() for sampler in samplers} == {"sampler-0", "sampler-1"})
    (server,) = servers_of(run)
    assert server.cmdline() == psutil.Process(run.pid).cmdline()  # a fork of the agent


@pytest.mark.slow
def test_ctrl_c_ends_an_update_of_hours(started, tmp_path):
    run, _ = started("algo.epochs=1000000", iterations=0)
    time.sleep(2)  # the first round takes milliseconds to collect and hours to learn
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130
    assert (status(tmp_path)["signal"], status(tmp_path)["exit_code"]) == ("SIGINT", 130)
    assert (tmp_path / "checkpoints" / "last.pt").exists()


@pytest.mark.slow
def test_serial_collecting_is_broken_off(tmp_path):
    slow = ("env=slow", "env.step_ms=200", "sampler=serial")  # minutes a round
    long = [setting for setting in LONG if not setting.startswith("sampler.n=")]
    command = [sys.executable, "-m", "walle.run", *long, *slow, f"hydra.run.dir={tmp_path}"]
    run = subprocess.Popen(command, start_new_session=True)
    wait_until(lambda: (tmp_path / "episodes.csv").exists())
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=LIMIT_S) == 130
    assert (tmp_path / "checkpoints" / "last.pt").exists()


@pytest.mark.slow
def test_when_the_agent_is_killed_its_samplers_end_in_the_middle_of_a_step(started):
    run, _ = started("env=slow", "env.step_ms=200", iterations=0)
    time.sleep(1)  # let them begin a rollout that takes minutes
    everything = psutil.Process(run.pid).children(recursive=True)
    shared = shared_memory_of([psutil.Process(run.pid), *everything])
    run.kill()
    assert gone(everything)
    assert not [name for name in shared if name in os.listdir("/dev/shm")]


@pytest.mark.slow
def test_after_the_agent_was_killed_samplers_end_and_every_file_holds_whole_rows(started, tmp_path):
    run, _ = started()
    everything = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.wait()
    assert gone(everything)
    for name in ("iterations.csv", "timing.csv", "episodes.csv"):
        text = (tmp_path / name).read_text()
        assert text.endswith("\n")
        commas = {line.count(",") for line in text.splitlines()}
        assert len(commas) == 1


def test_the_limit_of_open_files_is_raised_as_far_as_the_system_lets(monkeypatch):
    limits = [64, 1024]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(2), new))
    allow_files(60)
    assert limits == [64, 1024]
    allow_files(256)
    assert limits == [256, 1024]
    with pytest.raises(ConfigError, match="need 2000 open files, and the limit is 1024; raise it"):
        allow_files(2000)
