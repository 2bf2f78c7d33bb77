"""What worker processes have in common: how they begin, and how they end with the agent."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any

import torch

_SINGLE_THREADED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def forkserver_context() -> Any:
    """A context whose server has torch loaded, from which a worker forks in milliseconds.

    The server, and so every worker, gets its thread limits before anything is imported, and ignores
    the SIGTERM that a shell, a container or Slurm sends to the whole group: the agent ends them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["walle.sampler", "walle.envs.gymnasium_lanes"])
    with _environment(dict.fromkeys(_SINGLE_THREADED, "1")), _ignored(signal.SIGTERM):
        forkserver.ensure_running()
    return context


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


def become_worker(threads: int) -> None:
    """Leaves Ctrl-C to the agent, dies with it, and keeps to its threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_agent, name="walle-lifeline", daemon=True).start()
    torch.set_num_threads(threads)


def _die_with_agent() -> None:
    """Ends this process when the agent's ends, by whatever signal.

    A waiting worker sees its pipes close; this covers one that is busy.
    """
    agent = multiprocessing.parent_process()
    assert agent is not None
    multiprocessing.connection.wait([agent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


def how_it_ended(process: Any) -> str:
    """The end of a process that has ended, in a sentence with its name."""
    process.join()
    code = process.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    hint = "; was it out of memory?" if code == -signal.SIGKILL else ""
    return f"{process.name} (pid {process.pid}) {how}{hint}"
