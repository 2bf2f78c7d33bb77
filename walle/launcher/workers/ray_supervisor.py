"""The actor of Ray on a node: starts a worker's process, and ends with it.

An actor is detached: it continues without the command, and Ray starts it again on another node if
its node is lost. It runs no job itself. The worker's process is a child, as under Slurm, with the
command's environment; the kernel kills it when the actor dies, and then the jobs end as they do
whenever their launcher dies. When the worker ends, the actor ends itself.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from pathlib import Path
from signal import SIGTERM
from typing import NamedTuple

from walle.launcher.workers.claims import Claims
from walle.launcher.workers.submission import LOGS, digest, read_submission

NAMESPACE = "walle"
SEEN_S = 15.0  # a node may have cached an earlier listing of the directory
RESTARTS = 3
_LOOK_S = 0.5


class WorkerTask(NamedTuple):
    """The arguments with which a worker is started."""

    directory: Path  # of the submission
    digest: str  # of its plan
    name: str  # of the worker among those of its submission
    cores: int  # that it gets
    python: str  # the command's interpreter
    cwd: str  # the command's working directory
    environ: dict[str, str]  # the command's environment


def obstacle(task: WorkerTask, patience_s: float = SEEN_S) -> str | None:
    """Why a worker cannot run on the node of this process; None if it can.

    The new submission must have appeared in the sweep's directory within `patience_s` seconds.
    """
    directory, deadline = task.directory, time.monotonic() + patience_s
    while True:
        with contextlib.suppress(OSError):
            if digest(directory) == task.digest:
                break
        sweep = directory.parent.parent
        if not sweep.exists() or time.monotonic() > deadline:
            return (
                f"does not see what the sweep's directory {sweep} holds here: put it on a file "
                "system that all nodes share, with hydra.sweep.dir=..."
            )
        time.sleep(_LOOK_S)
    if not os.access(directory / LOGS, os.W_OK):
        return f"may not write into {directory}: mount it there for reading and writing"
    for path, what in ((task.python, "interpreter"), (task.cwd, "working directory")):
        if not os.path.exists(path):
            return f"does not have this command's {what} {path}: it must be the same on all nodes"
    return None


class Supervisor:
    """Starts a worker's process, passes signals on to it, and ends when the process ends."""

    def __init__(self, task: WorkerTask) -> None:
        """Starts the worker, unless this node cannot run it.

        Ray calls this again on another node if it has lost the actor.
        """
        self._task, self._lock = task, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._may_start = True
        threading.Thread(target=self._supervise, daemon=True).start()

    def signal(self, number: int) -> None:
        """Sends the worker a signal; SIGTERM asks its jobs to write their checkpoints and end."""
        with self._lock:
            self._may_start &= number != SIGTERM
            if self._process is not None:
                self._process.send_signal(number)

    def _supervise(self) -> None:
        """Waits in a thread for the worker: the kernel kills the worker when this thread ends."""
        import ray

        try:
            if refusal := obstacle(self._task):
                print(f"node {os.uname().nodename} {refusal}")
            else:
                self._run(",".join(str(gpu) for gpu in ray.get_gpu_ids()))
                submission = read_submission(self._task.directory)
                if Claims(submission.directory).all_over(submission.jobs):
                    for number, actor in enumerate(submission.arrays):  # some may still wait
                        if str(number) != self._task.name:
                            with contextlib.suppress(ValueError):  # it has ended
                                ray.kill(ray.get_actor(actor, NAMESPACE), no_restart=True)
        finally:  # ends this actor for good
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _run(self, gpus: str) -> None:
        """Starts the worker, again up to `RESTARTS` times if it is killed; waits for its end.

        `gpus` names those that Ray has reserved for this actor, as in `CUDA_VISIBLE_DEVICES`.
        """
        task = self._task
        program = [task.python, "-m", "walle.launcher.workers.worker"]
        arguments = [str(task.directory), task.name, str(task.cores), str(os.getpid())]
        with (task.directory / LOGS / f"{task.name}.log").open("ab") as log:
            for _ in range(1 + RESTARTS):
                with self._lock:
                    if not self._may_start:
                        return
                    self._process = subprocess.Popen(
                        [*program, *arguments],
                        cwd=task.cwd,
                        env=task.environ | {"CUDA_VISIBLE_DEVICES": gpus},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                if self._process.wait() >= 0:
                    return
