"""Runs that Slurm stops, for a time limit and for somebody else, go on to the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import read
from tests.launcher.test_killed_sweep import ROUNDS, SWEEP, Sweep
from tests.slurm.cluster import wait_until
from tests.test_resume import assert_same_run
from walle.system.run_files import has_checkpoint, read_status

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).resolve().parents[2]
JOBS = (0, 1)
ON_SLURM = (
    "hydra.launcher.backend=slurm",
    "hydra.launcher.wait=false",
    "hydra.launcher.slurm.partition=low",
    "hydra.launcher.slurm.workers=2",
    "hydra.launcher.slurm.heartbeat_s=1",
    # a round takes 380 ms at least; times are no part of the bits
    "env.step_ms=6",
)


def launch(directory, *settings):
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "walle.run", *SWEEP, *settings]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=directory, env=environ, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return directory / "multirun" / "killed"


def state(out, job):
    return read_status(out / str(job)).get("state")


def is_under_way(out, job, attempt):
    directory = out / str(job)
    file = directory / "iterations.csv"
    status = read_status(directory)
    under_way = status.get("state") == "running" and status["attempts"] == attempt
    return under_way and has_checkpoint(directory) and len(read(file)) > 8


def test_time_limit_and_preemption_lead_to_the_bits_of_an_unbroken_sweep(cluster, tmp_path):
    whole = Sweep(tmp_path / "whole")
    out = launch(tmp_path / "broken", *ON_SLURM)
    first = cluster.workers()[0].split()[0]
    wait_until(lambda: is_under_way(out, 0, 1) and is_under_way(out, 1, 1))

    # What Slurm does 120 s before a time limit: the jobs of this worker are saved and given back,
    # and it starts again.
    cluster.call("scancel", "--signal=USR1", "--batch", first)
    wait_until(lambda: sum(read_status(out / str(job))["attempts"] for job in JOBS) == 3)
    wait_until(lambda: len(cluster.workers()) == 2)
    wait_until(lambda: all(name.endswith("RUNNING") for name in cluster.workers()))
    wait_until(lambda: all(state(out, job) == "running" for job in JOBS))

    # Somebody else takes all nodes: Slurm stops both workers, and starts them again later.
    cluster.call(
        "sbatch", "-p", "high", "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 4"
    )
    wait_until(lambda: all(state(out, job) == "interrupted" for job in JOBS))
    rounds = [len(read(out / str(job) / "iterations.csv")) for job in JOBS]
    assert max(rounds) < ROUNDS
    whole.run()  # meanwhile, on this machine

    wait_until(lambda: all(state(out, job) == "completed" for job in JOBS), 100)
    wait_until(lambda: cluster.workers() == [])
    attempts = [read_status(out / str(job))["attempts"] for job in JOBS]
    assert sorted(attempts) == [2, 3]
    for job in JOBS:
        directory = out / str(job)
        assert read_status(directory)["resume"]
        assert not (directory / "attempts").exists()  # nothing was set aside and begun anew
        assert len(read(directory / "iterations.csv")) == ROUNDS
        assert_same_run(whole.out / str(job), directory, samplers=True)
