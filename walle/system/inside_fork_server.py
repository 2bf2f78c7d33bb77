"""Makes the fork server the keeper of all that it starts: what is left ends with it.

The fork server adopts the orphans of workers that die. It ends when the agent ends, by whatever
signal, and then it ends all other processes of the run. Multiprocessing offers no other way to run
code in its fork server than to import a module there. Everywhere else the import does nothing.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import warnings

from walle.system.process_tree import (
    LINGER_S,
    adopt_orphans,
    end_descendants,
    end_processes,
    marked_processes,
    signal_when_parent_ends,
)
from walle.system.signals import AGENT_ENDED

AGENT = "WALLE_AGENT"  # the agent's process id, in the environment of the fork server alone


def _keep(agent: int) -> None:
    gc.disable()  # a tenth of the imports' time; `become_worker` enables it
    adopt_orphans()
    atexit.register(_end, os.getpid())
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")  # an orphan
    # The agent's end closes a pipe too, but the server looks at it only after its imports.
    server = os.getpid()
    signal.signal(AGENT_ENDED, lambda *_: _end_without(agent, server))
    signal_when_parent_ends(AGENT_ENDED)
    _end_without(agent, server)


def _end_without(agent: int, server: int) -> None:
    """Ends the server if the agent has ended, and not merely one of its threads."""
    if os.getppid() != agent:
        _end(server)


def _end(server: int) -> None:
    if os.getpid() != server:  # a fork
        return
    end_descendants(LINGER_S)
    end_processes(marked_processes, LINGER_S)
    os._exit(0)  # Python would take its time to unload torch


if AGENT in os.environ:
    _keep(int(os.environ.pop(AGENT)))
