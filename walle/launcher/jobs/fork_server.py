"""The fork server: it has imported everything once, and every job is a fork of it.

The launcher starts it as `python -c "from ... import main; main(...)"` in a session of its own,
with the jobs' thread settings already in its environment. For each job it forks a supervisor, and
the supervisor forks the job:

    launcher -- fork server -- supervisor -- job -- processes that the job starts
         `--------- link ---------'

The supervisor adopts every orphan below it, and ends them all with the job. Over the link the
launcher sends signals for the job, and the supervisor reports how the job ended. When the launcher
dies, by whatever signal, the link closes, and the supervisor asks the job to end (SIGTERM), so that
the job can write a checkpoint, and kills it after `ORPHAN_GRACE_S`. When the supervisor dies, the
kernel kills the job.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe, reduction, spawn
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import cloudpickle

from walle.errors import ConfigError
from walle.launcher.jobs import job
from walle.system.process_tree import adopt_orphans, die_with_parent, end_descendants
from walle.system.signals import SAVING

log = logging.getLogger(__name__)

LINGER_S = 1.0
ORPHAN_GRACE_S = 5.0  # the next launcher waits longer than that for the jobs' lock
COMMAND = (
    "import sys; sys.path[:] = {path!r}; "
    "from walle.launcher.jobs.fork_server import main; main({link}, {lock})"
)
Preparation = bytes  # made by `preparation`


class Ended(NamedTuple):
    """How a job's process ended."""

    exit_code: int | None  # of the process; None when a signal ended it
    signal: int | None  # the number of that signal, or None
    result: bytes | None  # the pickled `JobResult`; None when the process ended before it had one
    peak_memory_bytes: int  # the largest resident set of the job's main process
    survivors: list[int]  # processes of the job that could not be killed
    # processor seconds of all the job's processes; None if they are not known
    cpu_s: float | None = None


def send_signal(link: Connection, signum: int) -> None:
    """Sends a signal to the main process of a job; does nothing once that has ended."""
    with contextlib.suppress(ConnectionError):
        link.send(signum)


def wait_for_end(link: Connection) -> Ended:
    """Waits until a job has ended; returns how."""
    with link:
        try:
            ended: Ended = link.recv()
        except (EOFError, ConnectionError):
            # The supervisor was killed, and the kernel killed the job with it.
            ended = Ended(None, signal.SIGKILL, None, 0, [])
    return ended


def preparation(state: job.HydraState, preload: Sequence[str]) -> Preparation:
    """What a fork server imports before the first job: this process's main module, and `preload`."""
    main = spawn.get_preparation_data("MainProcess")
    main.pop("authkey")  # it cannot be pickled, and the jobs need no key
    return pickle.dumps((main, tuple(preload), cloudpickle.dumps(state)))


class ForkServer:
    """A process that has imported everything, and forks one job after the other."""

    def __init__(self, wanted: Preparation, environ: Mapping[str, str], lock_fd: int) -> None:
        """Starts the process in this environment and waits until it is ready.

        It and its jobs keep `lock_fd`, the jobs' lock on the sweep's directory.

        Raises:
            ConfigError: an import failed; the text holds the traceback.
        """
        self._wanted, self._environ, self._lock_fd = wanted, dict(environ), lock_fd
        self._start_process()

    def _start_process(self) -> None:
        self._link, theirs = Pipe()
        with theirs:
            command = COMMAND.format(path=sys.path, link=theirs.fileno(), lock=self._lock_fd)
            self._process = subprocess.Popen(
                [sys.executable, "-c", command],
                env=self._environ,
                pass_fds=[theirs.fileno(), self._lock_fd],
                start_new_session=True,  # a Ctrl-C on the terminal reaches the launcher alone
            )
        try:
            self._link.send_bytes(self._wanted)
            failure: str | None = self._link.recv()
        except (EOFError, ConnectionError):
            failure = (
                f"the process that starts the jobs ended with status {self._process.wait()} while "
                "it imported what they need; its output above says why"
            )
        except BaseException:
            self.close()
            raise
        if failure:
            self.close()
            raise ConfigError(failure)

    def start(self, request: job.Request) -> Connection:
        """Starts a job; starts another process first if this one was killed.

        Returns:
            the link to the job's supervisor, which becomes readable when the job ends.

        Raises:
            ConfigError: the other process could not be started.
        """
        try:
            return self._fork(request)
        except ConnectionError:
            log.warning("the process that starts the jobs was killed: starting another one")
            self.close()
            self._start_process()
            return self._fork(request)

    def _fork(self, request: job.Request) -> Connection:
        link, theirs = Pipe()
        with theirs:
            self._link.send_bytes(cloudpickle.dumps(request))
            reduction.send_handle(self._link, theirs.fileno(), self._process.pid)
        return link

    def close(self) -> None:
        """Ends the process; does not touch the jobs that are still running."""
        self._link.close()
        self._process.wait()


def main(link_fd: int, lock_fd: int) -> None:
    """Serves the launcher until the link closes. In the forked jobs, runs the job and exits.

    Each supervisor keeps `lock_fd`, the jobs' lock on the sweep's directory, until its job has
    ended, so that a launcher with the lock knows that no earlier job is running.
    """
    link = Connection(link_fd)
    for number in SAVING:
        signal.signal(number, signal.SIG_IGN)  # here, and in a job until it handles them
    # Slurm signals every process of its job: the launcher alone decides, and asks the jobs to end.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    adopt_orphans()
    try:
        main_module, preload, pickled = pickle.loads(link.recv_bytes())
        try:  # imports what the jobs need, so that no job spends time on it
            spawn.prepare(main_module)
            for module in preload:
                importlib.import_module(module)
            state: job.HydraState = pickle.loads(pickled)
            state.install()
        except Exception:  # noqa: BLE001  whatever it is, the launcher shows it to the user
            link.send(f"the jobs' modules could not be imported:\n{traceback.format_exc()}")
            return
        gc.collect()
        gc.freeze()  # the forks share these pages until a collection touches them
        link.send(None)
    except (EOFError, ConnectionError):
        return  # the launcher is gone
    if (fork := _serve(link)) is not None:
        supervisor_link, request = fork
        result_fd = _supervise(supervisor_link)
        os.close(lock_fd)
        sys.exit(job.run(pickle.loads(request), state, result_fd))


def _serve(link: Connection) -> tuple[Connection, bytes] | None:
    """Forks a supervisor for every request; None at the end.

    Returns in each supervisor, with its own link and the pickled request of its job.
    """
    supervisors: dict[int, int] = {}  # process id -> a file descriptor readable once it ended
    while True:
        readable = wait([link, *supervisors.values()])
        ended = [pid for pid, pidfd in supervisors.items() if pidfd in readable]
        for pid in ended:
            os.waitpid(pid, 0)
            os.close(supervisors.pop(pid))
        if ended:  # the job of a supervisor that was killed
            end_descendants(LINGER_S, spare=supervisors)
        if link not in readable:
            continue
        try:
            request, supervisor_link = link.recv_bytes(), Connection(reduction.recv_handle(link))
        except (EOFError, ConnectionError):
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            link.close()
            for pidfd in supervisors.values():
                os.close(pidfd)
            return supervisor_link, request
        supervisor_link.close()
        supervisors[pid] = os.pidfd_open(pid)


def _supervise(link: Connection) -> int:
    """Starts the job, ends all its processes when it ends, and reports to the launcher.

    Returns in the job's process only, with the file for its result.
    """
    adopt_orphans()
    result_fd = os.memfd_create("result")
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        link.close()
        os.setsid()
        die_with_parent(supervisor)
        return result_fd
    pidfd = os.pidfd_open(pid)
    try:
        while pidfd not in wait([link, pidfd]):
            os.kill(pid, link.recv())
    except (EOFError, ConnectionError):  # the launcher is gone
        os.kill(pid, signal.SIGTERM)
        if not wait([pidfd], ORPHAN_GRACE_S):
            os.kill(pid, signal.SIGKILL)
            wait([pidfd])
    _, status, usage = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    survivors = end_descendants(LINGER_S)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = Ended(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        result=job.read_result(result_fd),
        peak_memory_bytes=usage.ru_maxrss * 1024,
        survivors=survivors,
        cpu_s=used.ru_utime + used.ru_stime,
    )
    with contextlib.suppress(ConnectionError):  # the launcher may be gone
        link.send(ended)
    os._exit(0)
