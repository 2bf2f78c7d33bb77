"""The beginning of a command: whose processes it keeps, and imports without pauses."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from walle.system.forkserver import end_all_processes
from walle.system.process_tree import RUN_MARK, adopt_orphans, mark_processes


def keep_processes() -> None:
    """Lets this process end, at its own end, all that it will start; a second call does nothing."""
    if os.environ.get(RUN_MARK, "").startswith(f"{os.getpid()}-"):
        return
    adopt_orphans()
    mark_processes()
    atexit.register(end_all_processes)


@contextmanager
def without_collector() -> Iterator[None]:
    """Runs the body, which imports, without the garbage collector.

    Imports make some hundred thousand objects that live as long as the process. To look through
    them again and again is a tenth of torch's import. Later collections leave them out too.
    """
    with collector_paused():
        try:
            yield
        finally:
            gc.freeze()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Runs the body without the garbage collector, which visits what the body made afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
