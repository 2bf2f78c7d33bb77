"""The process that samplers are forked from. Light: it is started before torch is imported."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker

from walle.machine import THREAD_VARIABLES


def start_fork_server() -> None:
    """A server with torch and MuJoCo loaded, from which a sampler forks in milliseconds.

    It loads them on a core of its own if it is started before this process loads its part.
    Starting it again does nothing.

    It, and so every sampler, gets its thread limits before anything is imported, and is deaf to
    the SIGINT and SIGTERM that a terminal, a container or Slurm sends to the whole group: the agent
    ends them. (Python's server ignores SIGINT too, but not before it has imported torch.)
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["walle.collecting.sampler", "walle.envs.gymnasium_lanes", "walle.envs.mujoco.registry"]
    )
    resource_tracker.ensure_running()  # first: it would lift the blocking again
    limits = _environment(dict.fromkeys(THREAD_VARIABLES, "1"))
    with limits, _blocked(signal.SIGINT, signal.SIGTERM):
        forkserver.ensure_running()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Sets variables for what the body starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _blocked(*numbers: int) -> Iterator[None]:
    """Lets what the body starts inherit blocked signals; here they come after the body."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
