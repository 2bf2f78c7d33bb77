"""A job inside its own process: pinned, its output in a file, its outcome left behind."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Any, NamedTuple

import cloudpickle
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

UNFINISHED, FINISHED = b"\0", b"\1"


class Common(NamedTuple):
    """What all jobs of a sweep share.

    Attributes:
        task_function: the user's function.
        hydra_context: Hydra's configuration loader and callbacks.
        singletons: the state of Hydra's singletons in the launcher's process.
    """

    task_function: TaskFunction
    hydra_context: HydraContext
    singletons: Any

    def install(self) -> None:
        """Puts Hydra's global state into this process."""
        setup_globals()
        Singleton.set_state(self.singletons)


class Request(NamedTuple):
    """One job.

    Attributes:
        config: composed, `hydra` node included.
        log: path of the file that takes all it prints; appended to.
        cores: what it and all it starts may run on.
        environ: environment variables of this job alone.
    """

    config: DictConfig
    log: str
    cores: tuple[int, ...]
    environ: dict[str, str]


class Outcome(NamedTuple):
    """What a job's function came to.

    Attributes:
        value: what it returned; None when it raised.
        error: one line naming the exception; None when it returned.
    """

    value: Any = None
    error: str | None = None


def run(request: Request, common: Common, outcome_fd: int) -> int | str | None:
    """Runs the job in this process.

    Args:
        request: the job.
        common: what it shares with the others.
        outcome_fd: a seekable file, for `read_outcome`.

    Returns:
        The status to leave the process with, as `sys.exit` takes it.
    """
    _settle(request)
    try:
        returned = run_job(
            hydra_context=common.hydra_context,
            task_function=common.task_function,
            config=request.config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        return _leave(returned, outcome_fd)
    except SystemExit as error:
        _write(outcome_fd, Outcome(error=f"SystemExit: {error.code}"))
        raise
    except KeyboardInterrupt:
        _write(outcome_fd, Outcome(error="KeyboardInterrupt"))
        traceback.print_exc()
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001  Hydra's own part failed: the log tells
        traceback.print_exc()
        _write(outcome_fd, Outcome(error=one_line(error)))
        return 1


def read_outcome(outcome_fd: int) -> bytes | None:
    """The pickled `Outcome` a job left; None when it ended before it had written all of it."""
    os.lseek(outcome_fd, 0, os.SEEK_SET)
    with open(outcome_fd, "rb") as file:
        content = file.read()
    return content[1:] if content[:1] == FINISHED else None


def one_line(error: BaseException) -> str:
    """`TypeName: first line of its message`."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _settle(request: Request) -> None:
    """Everything that has to be so before the first line of the user's code."""
    os.sched_setaffinity(0, request.cores)
    os.environ.update(request.environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _redirect(request.log)
    if "numpy" in sys.modules:  # or all jobs would share the state of NumPy's global generator
        sys.modules["numpy"].random.seed()


def _redirect(log: str) -> None:
    """Sends all output to the file, line by line, so that a killed job's last words are there."""
    os.makedirs(os.path.dirname(log), exist_ok=True)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(out)
    os.close(null)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _leave(returned: JobReturn, outcome_fd: int) -> int:
    """Writes down what the function came to; returns the process's exit code."""
    if returned.status == JobStatus.COMPLETED:
        _write(outcome_fd, Outcome(value=returned.return_value))
        return 0
    error: Exception = returned._return_value
    traceback.print_exception(error)
    _write(outcome_fd, Outcome(error=one_line(error)))
    return 1


def _write(outcome_fd: int, outcome: Outcome) -> None:
    content = cloudpickle.dumps(outcome)
    os.ftruncate(outcome_fd, 0)
    os.lseek(outcome_fd, 0, os.SEEK_SET)
    with open(outcome_fd, "wb", closefd=False) as file:
        file.write(UNFINISHED + content)
    os.pwrite(outcome_fd, FINISHED, 0)
