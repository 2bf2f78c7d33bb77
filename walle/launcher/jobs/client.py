"""The launcher's side of the fork server: starts it, requests jobs, waits for their ends."""

from __future__ import annotations

import logging
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import reduction, spawn
from multiprocessing.connection import Connection

import cloudpickle

from walle.launcher.jobs.fork_server import Ended, Preparation
from walle.launcher.jobs.job import HydraState, Request

log = logging.getLogger(__name__)

COMMAND = (
    "import sys; sys.path[:] = {path!r}; "
    "from walle.launcher.jobs.fork_server import main; main({link}, {lock})"
)


class PreparationError(RuntimeError):
    """The fork server could not import what the jobs need."""


class RunningJob:
    """A job that was started. Its `link` becomes readable when the job ends."""

    def __init__(self, link: Connection) -> None:
        """Takes the launcher's end of the link to the job's supervisor."""
        self.link = link

    def signal(self, signum: int) -> None:
        """Sends a signal to the job's main process; does nothing once that has ended."""
        try:
            self.link.send(signum)
        except ConnectionError:
            return

    def result(self) -> Ended:
        """Waits until the job has ended; returns how."""
        try:
            ended: Ended = self.link.recv()
        except (EOFError, ConnectionError):
            # The supervisor was killed, and the kernel killed the job with it.
            ended = Ended(None, signal.SIGKILL, None, 0, [])
        self.link.close()
        return ended


def preparation(state: HydraState, preload: Sequence[str]) -> Preparation:
    """The preparation of a fork server for this process's main module; imports `preload` too."""
    main = spawn.get_preparation_data("MainProcess")
    main.pop("authkey")  # it cannot be pickled, and the jobs need no key
    return Preparation(main, tuple(preload), cloudpickle.dumps(state))


class ForkServer:
    """A process that has imported everything, and forks one job after the other."""

    def __init__(self, wanted: Preparation, environ: Mapping[str, str], lock_fd: int) -> None:
        """Starts the process in this environment and waits until it is ready.

        It and its jobs keep `lock_fd`, the jobs' lock on the sweep's directory.

        Raises:
            PreparationError: an import failed; the text holds the traceback.
        """
        self._wanted, self._environ, self._lock_fd = wanted, dict(environ), lock_fd
        self._start_process()

    def _start_process(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = COMMAND.format(path=sys.path, link=theirs.fileno(), lock=self._lock_fd)
            self._process = subprocess.Popen(
                [sys.executable, "-c", command],
                env=self._environ,
                pass_fds=[theirs.fileno(), self._lock_fd],
                start_new_session=True,  # a Ctrl-C on the terminal reaches the launcher alone
            )
        self._link = Connection(ours.detach())
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        try:
            self._link.send_bytes(pickle.dumps(self._wanted))
            failure: str | None = self._link.recv()
        except (EOFError, ConnectionError):
            code = self._process.wait()
            raise PreparationError(
                f"the process that starts the jobs ended with status {code} while it imported "
                "what they need; its output above says why"
            ) from None
        if failure:
            raise PreparationError(f"the jobs' modules could not be imported:\n{failure}")

    def start(self, request: Request) -> RunningJob:
        """Starts a job; starts another process first if this one was killed.

        Raises:
            PreparationError: the other process could not be started.
        """
        try:
            return self._fork(request)
        except ConnectionError:
            log.warning("the process that starts the jobs was killed: starting another one")
            self.close()
            self._start_process()
            return self._fork(request)

    def _fork(self, request: Request) -> RunningJob:
        ours, theirs = socket.socketpair()
        with theirs:
            self._link.send_bytes(cloudpickle.dumps(request))
            reduction.send_handle(self._link, theirs.fileno(), self._process.pid)
        return RunningJob(Connection(ours.detach()))

    def close(self) -> None:
        """Ends the process; does not touch the jobs that are still running."""
        self._link.close()
        self._process.wait()
