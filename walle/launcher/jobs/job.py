"""A job inside its own process: pinned to its cores, its output in a file, its result recorded."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Any, NamedTuple

import cloudpickle
from hydra.core.singleton import Singleton
from hydra.core.utils import JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

UNFINISHED, FINISHED = b"\0", b"\1"


class HydraState(NamedTuple):
    """What Hydra needs in every job of a sweep."""

    task_function: TaskFunction  # the user's function
    hydra_context: HydraContext  # Hydra's configuration loader and callbacks
    singletons: Any  # the state of Hydra's singletons in the launcher's process

    def install(self) -> None:
        """Copies Hydra's global state into this process."""
        setup_globals()
        Singleton.set_state(self.singletons)


class Request(NamedTuple):
    """A request to run one job."""

    config: DictConfig  # the composed config with its `hydra` node
    log: str  # path of the file that gets everything the job prints; appended to
    cores: tuple[int, ...]  # cores for the job and for all processes that it starts
    environ: dict[str, str]  # environment variables of this job alone


class JobResult(NamedTuple):
    """The value that a job's function returned, or the exception that it raised."""

    value: Any = None  # the value that it returned; None when it raised
    error: str | None = None  # one line naming the exception; None when it returned


def run(request: Request, state: HydraState, result_fd: int) -> int | str | None:
    """Runs the job in this process; its result goes to the file `result_fd`, for `read_result`.

    Returns:
        The status to leave the process with, in the form that `sys.exit` takes.
    """
    _set_up_process(request)
    try:
        returned = run_job(
            hydra_context=state.hydra_context,
            task_function=state.task_function,
            config=request.config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        if returned.status != JobStatus.COMPLETED:
            raise returned._return_value  # noqa: TRY301  handled as the function's own exception
        _write(result_fd, JobResult(value=returned.return_value))
    except SystemExit as error:
        _write(result_fd, JobResult(error=f"SystemExit: {error.code}"))
        raise
    except KeyboardInterrupt:
        _write(result_fd, JobResult(error="KeyboardInterrupt"))
        traceback.print_exc()
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001  whatever it is, the log and the result show it
        traceback.print_exc()
        _write(result_fd, JobResult(error=one_line(error)))
        return 1
    return 0


def read_result(result_fd: int) -> bytes | None:
    """The pickled `JobResult` of a job; None when the job ended before it had written all of it."""
    os.lseek(result_fd, 0, os.SEEK_SET)
    with open(result_fd, "rb") as file:
        content = file.read()
    return content[1:] if content[:1] == FINISHED else None


def one_line(error: BaseException) -> str:
    """`TypeName: first line of its message`."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _set_up_process(request: Request) -> None:
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


def _write(result_fd: int, result: JobResult) -> None:
    content = cloudpickle.dumps(result)
    os.ftruncate(result_fd, 0)
    os.lseek(result_fd, 0, os.SEEK_SET)
    with open(result_fd, "wb", closefd=False) as file:
        file.write(UNFINISHED + content)
    os.pwrite(result_fd, FINISHED, 0)
