"""A sweep whose processes are all killed goes on, when started again, to the same bits."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.conftest import read
from tests.test_resume import assert_same_run
from walle.system.run_files import has_checkpoint, read_status

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, ROUND = 60, 64
SWEEP = (
    "-m",
    "seed=0,1",
    "env=slow",  # a round takes 64 ms at least, so that the kill hits jobs that run
    "env.step_ms=1",
    "sampler.n=1",
    "sampler.lanes=8",
    f"batch_size={ROUND}",
    f"total_steps={ROUNDS * ROUND}",
    f"checkpoint.every={3 * ROUND}",
    f"eval.every={20 * ROUND}",
    "eval.episodes=1",
    "env.episode_limit=20",
    "algo.minibatch_size=32",
    "algo.epochs=1",
    "algo.compile=false",
    "logger.progress=quiet",
    "name=killed",
)


class Sweep:
    """The sweep in a directory of its own."""

    def __init__(self, directory):
        directory.mkdir()
        self.out, self._directory = directory / "multirun" / "killed", directory
        self._mark = uuid.uuid4().hex

    def start(self):
        with (self._directory / "said.txt").open("a") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "walle.run", *SWEEP],
                cwd=self._directory,
                env=os.environ | {"PYTHONPATH": str(ROOT), "MARK": self._mark},
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def run(self):
        assert self.start().wait(timeout=500) == 0, self.said()

    def said(self):
        return (self._directory / "said.txt").read_text()

    def processes(self):
        mark, found = f"MARK={self._mark}".encode(), []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    def kill_all(self):
        """As when the machine fails: nobody has time to save anything, or to see another die."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)

    def is_under_way(self, job):
        directory = self.out / str(job)
        file = directory / "iterations.csv"
        return has_checkpoint(directory) and file.exists() and len(read(file)) > 8


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def sweep(tmp_path):
    sweep = Sweep(tmp_path / "broken")
    yield sweep
    sweep.kill_all()


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_bits_of_an_unbroken_one(sweep, tmp_path):
    whole = Sweep(tmp_path / "whole")
    whole.run()
    jobs = range(min(2, len(os.sched_getaffinity(0))))  # so many run at the same time
    launcher = sweep.start()
    wait_until(lambda: all(sweep.is_under_way(job) for job in jobs))
    sweep.kill_all()
    launcher.wait()
    wait_until(lambda: sweep.processes() == [])
    for job in jobs:
        assert read_status(sweep.out / str(job))["state"] == "running"
        assert len(read(sweep.out / str(job) / "iterations.csv")) < ROUNDS

    sweep.run()
    assert f"{len(jobs)} resume from a checkpoint" in sweep.said()
    for job in range(2):
        directory = sweep.out / str(job)
        status = read_status(directory)
        resumed = job in jobs
        assert (status["state"], status["resume"]) == ("completed", resumed)
        assert status["attempts"] == 1 + resumed
        assert not (directory / "attempts").exists()  # nothing was set aside and begun anew
        assert len(read(directory / "iterations.csv")) == ROUNDS
        assert_same_run(whole.out / str(job), directory, samplers=True)
