"""Sweeps of a small application on a real Ray cluster of two nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from walle.launcher.workers.claims import Claims
from walle.launcher.workers.submitted import submissions

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]
ACTOR = "ray::Supervisor"
PROGRAM = "walle.launcher.workers.ray_cluster.program"


@pytest.fixture(scope="module")
def cluster():
    """A head without cores, and two nodes with one core each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80_000_000}
    found = Cluster(True, head_node_args={**small, "num_cpus": 0, "include_dashboard": False})
    found.add = lambda: found.add_node(**small, num_cpus=1)
    try:
        for _ in range(2):
            found.add()
        yield found
    finally:
        found.shutdown()


@pytest.fixture
def on_ray(cluster):
    """The settings of a sweep on the cluster."""
    keys = {"address": cluster.address, "heartbeat_s": 0.3}
    return ("hydra.launcher.backend=ray", *(f"hydra.launcher.ray.{k}={v}" for k, v in keys.items()))


def processes(word):
    """The processes of these tests with a word in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(word in part for part in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def claims(app):
    """The claims of the newest submission."""
    return Claims(submissions(app.out)[-1].directory)


def owners(app):
    found = claims(app)
    return {claim.job: found.owner(claim) for claim in found.newest().values()}


def states(app):
    return [row["state"] for row in app.index()]


def test_a_sweep_over_two_nodes(app, on_ray):
    code, output = app.run("job=range(6)", "sleep_s=0.5", *on_ray)
    assert code == 0, output
    assert app.ran() == list(range(6))
    assert states(app) == ["completed"] * 6
    assert [row["return_value"] for row in app.index()] == [str(10 * job) for job in range(6)]
    assert len(set(owners(app).values())) == 2
    assert "started 2 workers on Ray: 1 core of " in output
    assert "6 of 6 jobs are complete" in output
    app.wait_until(lambda: not processes(PROGRAM) and not processes(ACTOR))
