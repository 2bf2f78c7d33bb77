"""Finds the processes of runs on a Ray cluster."""

import os
import time
from contextlib import suppress

import psutil

ACTOR = "ray::NodeSampling"


def actors():
    """The processes in which nodes of walle's runs live."""
    return [p for p in _processes() if p.info["cmdline"] and p.info["cmdline"][0].startswith(ACTOR)]


def samplers():
    """The samplers on all nodes: the children of the actors' fork servers."""
    below = [process for actor in actors() for process in actor.children(recursive=True)]
    servers = {process.pid for process in below if process.children()}
    return [process for process in below if process.ppid() in servers]


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
