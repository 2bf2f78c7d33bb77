"""Starts the process that samplers are forked from. Imports little: it runs before torch loads."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver, resource_tracker

from walle.machine import THREAD_VARIABLES
from walle.processes.private_files import environment
from walle.processes.signals import FOR_AGENT, blocked_signals


def start_fork_server() -> None:
    """Starts a server that has torch and MuJoCo loaded: a sampler forks from it in milliseconds.

    Started early, it loads them while this process does its own imports. A second call does
    nothing.

    The server and its samplers get their thread limits before they import anything, and never see
    the signals that a terminal, a container or Slurm sends to the whole group: the agent handles
    them. (Python's own server ignores SIGINT too, but only after it has imported torch.)
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "walle.transport.sampler_process",
            "walle.envs.gymnasium_lanes",
            "walle.envs.mujoco.registry",
        ]
    )
    with blocked_signals(*FOR_AGENT):
        resource_tracker.ensure_running()  # started first, as it unblocks SIGINT and SIGTERM
    limits = environment(dict.fromkeys(THREAD_VARIABLES, "1"))
    with limits, blocked_signals(*FOR_AGENT):
        forkserver.ensure_running()
