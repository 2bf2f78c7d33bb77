"""The jobs of a launch or of a worker: a fork server, and the loop that starts jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from walle.launcher.allocation import Allocator
from walle.launcher.jobs.client import ForkServer
from walle.launcher.jobs.fork_server import Preparation
from walle.launcher.jobs.watch import Watch
from walle.launcher.planning import Plan
from walle.launcher.resources import Resources, job_environment, thread_settings
from walle.launcher.runner import Runner
from walle.launcher.screen import open_screen
from walle.launcher.settings import WalleLauncherConf
from walle.launcher.timed.building import build_first
from walle.system.commands import COMMAND_VARIABLE, command_line


@contextmanager
def runner(
    plan: Plan,
    source: Allocator,
    resources: Resources,
    settings: WalleLauncherConf,
    wanted: Preparation,
    lock_fd: int,
    ending: Sequence[int],
    watch: Watch | None = None,
    command: str | None = None,
) -> Iterator[Runner]:
    """Makes a runner with its processes and its screen, which end with the body.

    Jobs that run one at a time are timed, so what they have in common is built before the first.

    Args:
        plan: the jobs.
        source: hands out the jobs, by their index in `plan.jobs`.
        resources: cores and GPUs of the sweep.
        settings: of the launcher.
        wanted: what the jobs import.
        lock_fd: the jobs' lock on the sweep's directory.
        ending: signals that ask for the end so far; grows.
        watch: tells which jobs need not run to their ends.
        command: the command that started the sweep; None for that of this process.
    """
    environ = job_environment(os.environ, thread_settings(settings.threads))
    environ[COMMAND_VARIABLE] = command or command_line()
    server = ForkServer(wanted, environ, lock_fd)
    try:
        if settings.prepare and plan.exclusive:
            build_first(plan, resources, settings.prepare, settings.repeat, server.start, ending)
        with closing(open_screen(len(plan.jobs), len(plan.done))) as screen:
            yield Runner(plan, source, settings, server.start, screen, watch)
    finally:
        server.close()
