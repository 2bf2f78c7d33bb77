"""The processes of a sweep's jobs: the fork server, a job's supervisor, and the job.

The fork server has imported everything once, and every job is a fork of it. The launcher starts it
as `python -c "from ... import main; main(...)"` in a session of its own, with the jobs' thread
settings already in its environment. For each job the server forks a supervisor, which forks the
job:

    launcher -- fork server -- supervisor -- job -- processes that the job starts
         `--------- link ---------'

The supervisor adopts every orphan below it, and ends them all when the job ends. Over the link the
launcher sends signals for the job, and the supervisor reports how the job ended. When the launcher
dies, for whatever reason, the link closes, and the supervisor asks the job to end (SIGTERM), so
that the job can write a checkpoint, and kills it after `ORPHAN_GRACE_S`. When the supervisor dies,
the kernel kills the job.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import Pipe, reduction, spawn
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import cloudpickle
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from walle.errors import ConfigError, cause_text
from walle.system.process_tree import adopt_orphans, die_with_parent, end_descendants
from walle.system.signals import SAVING

log = logging.getLogger(__name__)

LINGER_S = 1.0
ORPHAN_GRACE_S = 5.0  # the next launcher waits longer than this for the jobs' lock
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
UNFINISHED, FINISHED = b"\0", b"\1"  # the first byte of a file with a job's `Verdict`
COMMAND = (
    "import sys; sys.path[:] = {path!r}; from walle.launcher.jobs import main; main({link}, {lock})"
)


class Request(NamedTuple):
    """A request to run one job."""

    config: DictConfig  # the composed config with its `hydra` node
    log: str  # path of the file to which all output of the job is appended
    cores: tuple[int, ...]  # cores for the job and for all processes that it starts
    environ: dict[str, str]  # environment variables of this job alone


class Ended(NamedTuple):
    """How a job's process ended."""

    exit_code: int | None  # of the process; None when a signal ended it
    signal: int | None  # the number of that signal, or None
    result: bytes | None  # the job's own pickled `Verdict`; None when it ended before it had one
    peak_memory_bytes: int  # the largest resident set of the job's main process
    survivors: list[int]  # processes of the job that could not be killed
    # processor seconds of all the job's processes; None if they are not known
    cpu_s: float | None = None


class Verdict(NamedTuple):
    """How a job ended, for people and status.json."""

    state: str  # completed, failed, interrupted or pruned; pending for a job that never started
    error: str | None = None  # why it did not complete, in one line
    exit_code: int | None = None  # the exit code of its process
    signal: str | None = None  # the name of the signal that ended the process or made it exit
    value: Any = None  # the value that the job returned


def judge(
    ended: Ended,
    status: Mapping[str, Any],  # what the job itself wrote into status.json
    *,
    timeout_s: float | None = None,  # the time limit, if the job ran past it
    pruned: str | None = None,  # why the launcher asked the job to stop before its end
    interrupted: bool = False,  # whether the sweep was being stopped
    out_of_memory: bool = False,  # whether the kernel killed processes for lack of memory
    last_line: str | None = None,  # the last line that the job printed
) -> Verdict:
    """Decides between completed, failed, interrupted and pruned, with the reason in one line."""
    result = Verdict("failed")
    if ended.result is not None:
        try:
            result = pickle.loads(ended.result)
        except Exception as error:  # noqa: BLE001  the value's own code runs: any error is possible
            result = Verdict("failed", f"what it returned cannot be read: {one_line(error)}")
    name = signal.Signals(ended.signal).name if ended.signal is not None else None
    verdict = Verdict("failed", None, ended.exit_code, name or status.get("signal"))
    own_state = status.get("state")
    if timeout_s is not None:
        return verdict._replace(error=f"ran past its limit of {timeout_s:g} s")
    if result.state == "completed" and own_state not in ("failed", "interrupted"):
        return verdict._replace(state="completed", value=result.value)
    if pruned is not None:
        return verdict._replace(state="pruned", error=pruned)
    if (
        interrupted
        or own_state == "interrupted"
        or ended.exit_code in [128 + number for number in INTERRUPTS]
        or ended.signal in INTERRUPTS
        or result.error == "KeyboardInterrupt"
    ):
        return verdict._replace(state="interrupted", error="stopped before its end")
    if ended.signal == signal.SIGKILL and out_of_memory:
        peak = f"(peak {ended.peak_memory_bytes / 2**30:.1f} GiB)"
        return verdict._replace(error=f"killed by the kernel: out of memory {peak}")
    own_error = cause_text(status.get("error") or "")
    if own_state == "failed" and own_error:
        reason = own_error
    elif result.error:
        # A program that exits with a number alone has printed the reason before.
        number = re.fullmatch(r"SystemExit: \d+", result.error)
        reason = (last_line if number else None) or result.error
    elif name is not None:
        reason = f"killed by {name}"
    else:
        reason = f"its process ended with exit code {ended.exit_code} before the job returned"
    note = "; the kernel was ending processes for lack of memory" if out_of_memory else ""
    return verdict._replace(error=reason + note)


def one_line(error: BaseException) -> str:
    """`TypeName: first line of its message`."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def send_signal(link: Connection, signum: int) -> None:
    """Sends a signal to the main process of a job; does nothing if it has ended."""
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


def preparation(
    task_function: TaskFunction, context: HydraContext, preload: Sequence[str]
) -> bytes:
    """The input of a fork server: this process's main module, `preload`, and Hydra's state."""
    main = spawn.get_preparation_data("MainProcess")
    main.pop("authkey")  # it cannot be pickled, and the jobs need no key
    run_one = partial(
        run_job,
        hydra_context=context,
        task_function=task_function,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
    state = cloudpickle.dumps((run_one, Singleton.get_state()))
    return pickle.dumps((main, tuple(preload), state))


class ForkServer:
    """A process that has imported everything and forks the jobs."""

    def __init__(self, wanted: bytes, environ: Mapping[str, str], lock_fd: int) -> None:
        """Starts the process in this environment, with its `preparation`; waits until it is ready.

        It and its jobs keep `lock_fd`, the jobs' lock on the sweep's directory. Raises
        `ConfigError`, with the traceback, if an import failed.
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

    def start(self, request: Request) -> Connection:
        """Starts a job; first restarts the fork server if it was killed.

        Returns the link to the job's supervisor, which becomes readable when the job ends.
        """
        try:
            return self._fork(request)
        except ConnectionError:
            log.warning("the process that starts the jobs was killed: starting another one")
            self.close()
            self._start_process()
            return self._fork(request)

    def _fork(self, request: Request) -> Connection:
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
    """Forks a supervisor for every request until the link closes; in a job's process, runs the job.

    Each supervisor keeps `lock_fd`, the jobs' lock on the sweep's directory, until its job has
    ended, so that a launcher with the lock knows that no earlier job is running.
    """
    link = Connection(link_fd)
    for number in SAVING:
        signal.signal(number, signal.SIG_IGN)  # here, and in a job until it handles them
    # Slurm signals every process of its job, but only the launcher decides, and asks the jobs to
    # end.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    adopt_orphans()
    try:
        main_module, preload, state = pickle.loads(link.recv_bytes())
        try:  # imports what the jobs need, so that no job spends time on it
            spawn.prepare(main_module)
            for module in preload:
                importlib.import_module(module)
            run_one, singletons = pickle.loads(state)
            setup_globals()
            Singleton.set_state(singletons)
        except Exception:  # noqa: BLE001  whatever it is, the launcher shows it to the user
            link.send(f"the jobs' modules could not be imported:\n{traceback.format_exc()}")
            return
        gc.collect()
        gc.freeze()  # the forks share these pages until a collection touches them
        link.send(None)
    except (EOFError, ConnectionError):
        return  # the launcher is gone
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
            return
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            link.close()
            for pidfd in supervisors.values():
                os.close(pidfd)
            result_fd = _supervise(supervisor_link)
            os.close(lock_fd)
            sys.exit(_run(pickle.loads(request), run_one, result_fd))
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
    os.lseek(result_fd, 0, os.SEEK_SET)
    with open(result_fd, "rb") as file:
        content = file.read()
    ended = Ended(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        # None when the job ended before it had written its whole result
        result=content[1:] if content[:1] == FINISHED else None,
        peak_memory_bytes=usage.ru_maxrss * 1024,
        survivors=survivors,
        cpu_s=used.ru_utime + used.ru_stime,
    )
    with contextlib.suppress(ConnectionError):  # the launcher may be gone
        link.send(ended)
    os._exit(0)


def _run(request: Request, run_one: Callable[..., JobReturn], result_fd: int) -> int:
    """Runs the job in this process; returns the status to leave the process with.

    `run_one` is Hydra's function for a config. The job's `Verdict` goes to the file `result_fd`.
    """
    os.sched_setaffinity(0, request.cores)
    os.environ.update(request.environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    if "numpy" in sys.modules:  # all forks have the same state of NumPy's global generator
        sys.modules["numpy"].random.seed()
    # All output goes to the log line by line, so that a killed job's last line is in it.
    os.makedirs(os.path.dirname(request.log), exist_ok=True)
    out = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(out)
    os.close(null)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    try:
        returned = run_one(config=request.config)
        if returned.status != JobStatus.COMPLETED:
            raise returned._return_value  # noqa: TRY301  handled as the function's own exception
        _write(result_fd, Verdict("completed", value=returned.return_value))
    except SystemExit as error:
        _write(result_fd, Verdict("failed", f"SystemExit: {error.code}"))
        raise
    except KeyboardInterrupt:
        _write(result_fd, Verdict("failed", "KeyboardInterrupt"))
        traceback.print_exc()
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001  whatever it is, the log and the result show it
        traceback.print_exc()
        _write(result_fd, Verdict("failed", one_line(error)))
        return 1
    return 0


def _write(result_fd: int, verdict: Verdict) -> None:
    content = cloudpickle.dumps(verdict)
    os.ftruncate(result_fd, 0)
    os.lseek(result_fd, 0, os.SEEK_SET)
    with open(result_fd, "wb", closefd=False) as file:
        file.write(UNFINISHED + content)
    os.pwrite(result_fd, FINISHED, 0)
