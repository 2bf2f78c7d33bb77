"""Sweeps of a small application on a real Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.slurm.cluster import MAX_ARRAY, wait_until
from walle.launcher.workers.submission import submissions

pytestmark = pytest.mark.slurm
ON_SLURM = ("hydra.launcher.backend=slurm", "hydra.launcher.slurm.heartbeat_s=0.3")


def test_12_jobs_over_two_workers(app, cluster):
    two = ("hydra.launcher.slurm.workers=2", "hydra.launcher.slurm.partition=low")
    code, output = app.run("job=range(12)", "sleep_s=0.5", *ON_SLURM, *two)
    assert code == 0, output
    assert app.ran() == list(range(12))
    assert app.states() == ["completed"] * 12
    assert [row["return_value"] for row in app.index()] == [str(10 * job) for job in range(12)]
    assert len(set(app.owners().values())) == 2
    assert "submitted 2 workers to Slurm" in output
    assert "12 of 12 jobs are complete" in output


def test_two_small_jobs_share_an_allocation_on_disjoint_cores(app, cluster):
    one = ("hydra.launcher.slurm.workers=1", "hydra.launcher.slurm.cores=2")
    code, output = app.run("job=0,1", "do=cores", *ON_SLURM, *one)
    assert code == 0, output
    told = {(app.out / str(job) / "cores.txt").read_text() for job in range(2)}
    assert told == {"0 0 1", "1 1 1"}
    first, second = (app.status(job) for job in range(2))
    assert first["started"] < second["ended"]
    assert second["started"] < first["ended"]


def test_jobs_that_measure_time_get_a_whole_node_one_at_a_time(app, cluster):
    code, output = app.run("sampler.n=1,2", "do=cores", *ON_SLURM)
    assert code == 0, output
    told = {(app.out / str(job) / "cores.txt").read_text() for job in range(2)}
    assert told == {"0 0 1", "0-1 0-1 1"}
    jobs = sorted((app.status(job) for job in range(2)), key=lambda status: status["started"])
    assert jobs[0]["ended"] <= jobs[1]["started"]


def test_the_jobs_of_a_killed_worker_are_claimed_by_another_one(app, cluster):
    two = ("hydra.launcher.slurm.workers=2", "name=n")
    launcher = app.start("job=range(4)", "sleep_s=5", *ON_SLURM, *two)
    wait_until(lambda: app.speaks(0) and app.speaks(1))
    before = app.owners()
    killed = before[0]
    os.kill(int(killed.rpartition("-")[2]), signal.SIGKILL)
    assert launcher.wait(timeout=500) == 0, app.said()
    assert app.states() == ["completed"] * 4
    assert app.owners()[0] not in (killed, "")
    assert app.index()[0]["attempts"] == "2"
    assert "changed hands: its worker was stopped or vanished" in app.said()


def test_the_workers_go_on_without_the_submitting_process(app, cluster):
    command = ("job=range(4)", "sleep_s=4", "name=n", "hydra.launcher.slurm.workers=2", *ON_SLURM)
    launcher = app.start(*command)
    wait_until(lambda: app.speaks(0))
    launcher.kill()
    launcher.wait()

    asked = [sys.executable, "-m", "walle.sweep", "status", str(app.out)]
    shown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert "running" in shown
    assert "lost" not in shown
    assert "workers in Slurm: 2 running" in shown
    assert "To resume" not in shown

    code, output = app.run(*command)  # finds them, and waits
    assert code == 0, output
    assert "the workers of an earlier command" in output
    assert app.ran() == [0, 1, 2, 3]
    assert len(submissions(app.out)) == 1

    code, output = app.run(*command)
    assert code == 0, output
    assert app.ran() == []


def test_a_command_that_does_not_wait(app, cluster):
    code, output = app.run("job=range(3)", "hydra.launcher.wait=false", *ON_SLURM)
    assert code == 0, output
    assert f"`walle sweep status {app.out.name}` shows them" in output
    wait_until(lambda: cluster.workers() == [])
    assert app.ran() == [0, 1, 2]
    wait_until(lambda: app.states() == ["completed"] * 3)  # the last worker writes it


def test_more_workers_than_an_array_may_have(app, cluster):
    workers = MAX_ARRAY + 2
    more = (f"hydra.launcher.slurm.workers={workers}", "hydra.launcher.slurm.cores=1")
    code, output = app.run("job=range(7)", "sleep_s=0.5", *ON_SLURM, *more)
    assert code == 0, output
    assert f"{workers} workers are more than the cluster's MaxArraySize of {MAX_ARRAY}" in output
    assert f"arrays of {MAX_ARRAY}, 2" in output
    assert app.ran() == list(range(7))
    assert len(submissions(app.out)[0].arrays) == 2


def test_an_unknown_partition_is_refused_in_one_line(app, cluster):
    code, output = app.run("job=0", *ON_SLURM, "hydra.launcher.slurm.partition=fast")
    assert code == 2
    assert output == (
        "walle: hydra.launcher.slurm.partition=fast: the cluster has no partition fast; choose "
        "among high, low\n"
    )
    assert not (app.out / "manifest.json").exists()
    assert cluster.workers() == []


def test_what_slurm_refuses_is_one_line(app, cluster):
    code, output = app.run("job=0", *ON_SLURM, "hydra.launcher.slurm.time=soon")
    assert code == 2
    assert output.strip().splitlines()[-1].startswith("walle: sbatch --parsable: ")
    assert "Traceback" not in output
