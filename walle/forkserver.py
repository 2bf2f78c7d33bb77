"""The process that samplers are forked from. Light: it is started before torch is imported."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver

_SINGLE_THREADED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def start_fork_server() -> None:
    """A server with torch and MuJoCo loaded, from which a sampler forks in milliseconds.

    It loads them on a core of its own if it is started before this process loads its part.
    Starting it again does nothing.

    It, and so every sampler, gets its thread limits before anything is imported, and ignores the
    SIGTERM that a shell, a container or Slurm sends to the whole group: the agent ends them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["walle.sampler", "walle.envs.gymnasium_lanes", "walle.envs.mujoco.registry"]
    )
    with _environment(dict.fromkeys(_SINGLE_THREADED, "1")), _ignored(signal.SIGTERM):
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
def _ignored(number: int) -> Iterator[None]:
    """Lets what the body starts inherit that the signal is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)
