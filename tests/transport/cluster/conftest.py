"""A Ray cluster for the tests of a module, on this machine: a head without cores, three nodes."""

import os
import time
from contextlib import suppress

import psutil
import pytest

ACTOR = "ray::NodeSampling"


def actors():
    """The processes in which nodes of walle's runs live."""
    return [p for p in _processes() if p.info["cmdline"] and p.info["cmdline"][0].startswith(ACTOR)]


def fork_servers():
    """The processes from which the samplers of nodes are forked, and the samplers."""
    own = {os.getpid(), *(child.pid for child in psutil.Process().children())}
    return [
        process
        for process in _processes()
        if "multiprocessing.forkserver" in " ".join(process.info["cmdline"] or ())
        and process.info["ppid"] not in own
    ]


def _processes():
    """All processes of these tests: other checkouts may be tested at the same time."""
    found = []
    for process in psutil.process_iter(["cmdline", "ppid"]):
        with suppress(psutil.Error):
            if process.cwd() == os.getcwd() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def wait_until(holds, within_s=60):
    """Waits until the condition holds."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def no_process_left():
    """Ray keeps idle workers; a node's actor and its samplers must have ended."""
    before = {process.pid for process in fork_servers()}
    yield
    wait_until(lambda: not actors() and {p.pid for p in fork_servers()} <= before, within_s=20)


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80_000_000}
    found = Cluster(True, head_node_args={**small, "num_cpus": 0, "include_dashboard": False})
    found.add = lambda: found.add_node(**small, num_cpus=1)
    try:
        for _ in range(3):
            found.add()
        yield found
    finally:
        found.shutdown()
