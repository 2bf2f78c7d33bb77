"""The launcher's side of the warm process: start it, ask it for jobs, hear how they end."""

from __future__ import annotations

import logging
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import reduction, spawn
from multiprocessing.connection import Connection

import cloudpickle

from hydra_plugins.walle_launcher._compose import Job
from hydra_plugins.walle_launcher._cores import Grant
from hydra_plugins.walle_launcher._job import Common, Outcome, Request, one_line
from hydra_plugins.walle_launcher._records import LOG
from hydra_plugins.walle_launcher._server import Ended, Preparation, Prepared

log = logging.getLogger(__name__)

COMMAND = (
    "import sys; sys.path[:] = {path!r}; "
    "from hydra_plugins.walle_launcher._server import main; main({link}, {lock})"
)


class WarmupError(RuntimeError):
    """The warm process could not import what the jobs need."""


class Running:
    """A job that was started. Its link becomes readable when it ends."""

    def __init__(self, link: Connection) -> None:
        """Takes the launcher's end of the link to the job's supervisor."""
        self.link = link

    def signal(self, signum: int) -> None:
        """Sends a signal to the job's main process; nothing happens when it has ended."""
        try:
            self.link.send(signum)
        except ConnectionError:
            return

    def result(self) -> Ended:
        """How the job ended; blocks until it has."""
        try:
            ended: Ended = self.link.recv()
        except (EOFError, ConnectionError):
            # The supervisor was killed, and by its death the job.
            ended = Ended(None, signal.SIGKILL, None, 0, [])
        self.link.close()
        return ended


class WarmProcess:
    """A process that has imported everything, and forks one job after the other."""

    def __init__(
        self, common: Common, preload: Sequence[str], environ: Mapping[str, str], lock_fd: int
    ) -> None:
        """Starts the process and waits until it is ready.

        Args:
            common: what the jobs share.
            preload: modules to import there.
            environ: the whole environment of the process and its jobs.
            lock_fd: the sweep directory's lock.

        Raises:
            WarmupError: with the traceback of the import that failed.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            command = COMMAND.format(path=sys.path, link=theirs.fileno(), lock=lock_fd)
            self._process = subprocess.Popen(
                [sys.executable, "-c", command],
                env=dict(environ),
                pass_fds=[theirs.fileno(), lock_fd],
                start_new_session=True,  # a Ctrl-C on the terminal is the launcher's to handle
            )
        self._link = Connection(ours.detach())
        try:
            self._prepare(common, preload)
        except BaseException:
            self.close()
            raise

    def _prepare(self, common: Common, preload: Sequence[str]) -> None:
        main = spawn.get_preparation_data("MainProcess")
        main.pop("authkey")  # it refuses to be pickled, and the jobs connect to nothing of ours
        wanted = Preparation(main, tuple(preload), cloudpickle.dumps(common))
        try:
            self._link.send_bytes(pickle.dumps(wanted))
            answer: Prepared = self._link.recv()
        except (EOFError, ConnectionError):
            code = self._process.wait()
            raise WarmupError(
                f"the process that starts the jobs ended with status {code} while it imported "
                "what they need; its output above says why"
            ) from None
        if answer.error:
            raise WarmupError(f"the jobs' modules could not be imported:\n{answer.error}")

    def start(self, request: Request) -> Running:
        """Starts a job.

        Raises:
            ConnectionError: the process is gone, as after a SIGKILL.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._link.send_bytes(cloudpickle.dumps(request))
            reduction.send_handle(self._link, theirs.fileno(), self._process.pid)
        return Running(Connection(ours.detach()))

    def close(self) -> None:
        """Lets the process end; jobs still running are not touched."""
        self._link.close()
        self._process.wait()


class Starter:
    """Starts jobs from a warm process; starts another one should that be killed."""

    def __init__(
        self, common: Common, preload: Sequence[str], environ: Mapping[str, str], lock_fd: int
    ) -> None:
        """Warms up; the arguments are those of `WarmProcess`."""
        self._warm_up = partial(WarmProcess, common, preload, environ, lock_fd)
        self._warm = self._warm_up()

    def __call__(self, job: Job, grant: Grant) -> Running:
        """Starts a job on what it was granted."""
        # An application that knows no `device` decides about the GPUs it sees by itself.
        environ = {"CUDA_VISIBLE_DEVICES": ",".join(grant.gpus)} if "device" in job.config else {}
        request = Request(job.config, str(job.directory.absolute() / LOG), grant.cores, environ)
        try:
            return self._warm.start(request)
        except ConnectionError:
            log.warning("the process that starts the jobs was killed: starting another one")
            self.close()
            self._warm = self._warm_up()
            return self._warm.start(request)

    def close(self) -> None:
        """Ends the warm process; the jobs still running are not touched."""
        self._warm.close()


def unpickled(outcome: bytes | None) -> Outcome | None:
    """The outcome a job left, if it left one."""
    if outcome is None:
        return None
    try:
        content: Outcome = pickle.loads(outcome)
    except Exception as error:  # noqa: BLE001  the value's own code runs: anything may come
        return Outcome(error=f"what it returned cannot be read: {one_line(error)}")
    return content
