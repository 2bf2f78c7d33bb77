"""One Slurm for all tests of this directory, and sweeps of a small application on it."""

from __future__ import annotations

import pytest

from tests.launcher.conftest import app as app  # the fixture
from tests.slurm.cluster import Cluster, is_installed


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory):
    if not is_installed():
        pytest.skip("needs root, and slurmctld, slurmd and slurm-client: `make slurm`")
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(running_cluster, monkeypatch):
    """The running cluster, which is free before and after the test."""
    monkeypatch.setenv("SLURM_CONF", running_cluster.environ["SLURM_CONF"])
    yield running_cluster
    running_cluster.cancel_all()
