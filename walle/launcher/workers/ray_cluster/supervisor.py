"""The actor on a node: starts a worker's process, and ends with it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple

from walle.launcher.workers.claims import Claims
from walle.launcher.workers.submitted import LOGS, read_submission

NAMESPACE = "walle"
SEEN_S = 15.0  # a node may have looked into a directory before, and remember what was there
RESTARTS = 3
_LOOK_S = 0.5


class Task(NamedTuple):
    """The arguments with which a worker is started.

    Attributes:
        plan: the file with the submission's plan, in the submission's directory.
        digest: of that file.
        name: of the worker among those of its submission.
        cores: that it gets.
        python: the command's interpreter.
        cwd: the command's working directory.
        environ: the command's environment.
    """

    plan: str
    digest: str
    name: str
    cores: int
    python: str
    cwd: str
    environ: dict[str, str]

    @property
    def directory(self) -> Path:
        """The submission's directory."""
        return Path(self.plan).parent


def digest(file: Path | str) -> str:
    """Tells the content of a file from every other content."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def obstacle(task: Task, patience_s: float = SEEN_S) -> str | None:
    """Why a worker cannot run on the node of this process; None if it can.

    Args:
        task: of the worker.
        patience_s: seconds until a new directory must have appeared in the sweep's.
    """
    directory, deadline = task.directory, time.monotonic() + patience_s
    while not _is_plan(task):
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


def _is_plan(task: Task) -> bool:
    try:
        return digest(task.plan) == task.digest
    except OSError:
        return False


class Supervisor:
    """Starts a worker's process, passes signals on to it, and ends when it ends."""

    def __init__(self, task: Task) -> None:
        """Starts the worker, unless this node cannot run it.

        Ray calls this again on another node when it has lost the actor.
        """
        self._task, self._lock = task, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._may_start = True
        threading.Thread(target=self._supervise, daemon=True).start()

    def signal(self, number: int) -> None:
        """Sends the worker a signal."""
        with self._lock:
            if self._process is not None:
                self._process.send_signal(number)

    def end(self) -> None:
        """Asks the worker to end, whose jobs write their checkpoints first."""
        with self._lock:
            self._may_start = False
            if self._process is not None:
                self._process.terminate()

    def _supervise(self) -> None:
        """Waits for the worker's end in a thread: the kernel kills the worker when that ends."""
        try:
            if refusal := obstacle(self._task):
                print(f"node {os.uname().nodename} {refusal}")
            else:
                self._run()
                self._end_others()
        finally:
            _leave()

    def _run(self) -> None:
        """Starts the worker, and again as often as it may be killed; waits for its end."""
        with (self._task.directory / LOGS / f"{self._task.name}.log").open("ab") as log:
            for _ in range(1 + RESTARTS):
                with self._lock:
                    if not self._may_start:
                        return
                    self._process = _start(self._task, log)
                if self._process.wait() >= 0:
                    return

    def _end_others(self) -> None:
        """Ends all other workers of the submission once all jobs have ended: some may wait."""
        submission = read_submission(self._task.directory)
        if Claims(submission.directory).all_over(submission.nums):
            for number, actor in enumerate(submission.arrays):
                if str(number) != self._task.name:
                    _kill(actor)


def _start(task: Task, log: IO[bytes]) -> subprocess.Popen[bytes]:
    program = [task.python, "-m", "walle.launcher.workers.ray_cluster.program"]
    return subprocess.Popen(
        [*program, str(task.directory), task.name, str(task.cores), str(os.getpid())],
        cwd=task.cwd,
        env=task.environ | {"CUDA_VISIBLE_DEVICES": _gpus()},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def _gpus() -> str:
    """The GPUs that Ray has reserved for this actor, as in `CUDA_VISIBLE_DEVICES`."""
    import ray

    return ",".join(str(gpu) for gpu in ray.get_gpu_ids())


def _kill(actor: str) -> None:
    import ray

    try:
        ray.kill(ray.get_actor(actor, NAMESPACE), no_restart=True)
    except ValueError:
        return  # it has ended


def _leave() -> None:
    """Ends this actor for good."""
    import ray

    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
