"""A worker: runs jobs on the cores that a scheduler assigns to it.

`python -m walle.launcher.workers.worker DIRECTORY` is a worker of Slurm. A worker of Ray has
further arguments: its name, its number of cores, and the process id of the actor with which it
ends.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
from omegaconf import open_dict, read_write

from walle.launcher.allocation import Need, Resources, visible_gpus
from walle.launcher.planning import Job, Plan
from walle.launcher.records import Manifest, jobs_locked, write_index
from walle.launcher.runner import Runner
from walle.launcher.settings import STALE_BEATS, WalleLauncherConf
from walle.launcher.workers import slurm
from walle.launcher.workers.claims import ClaimedJobs, ClaimLostError, Claims, Stops
from walle.launcher.workers.submission import COMMON, LOGS, read_submission
from walle.system.commands import command_line
from walle.system.locks import RUN_LOCK, is_locked
from walle.system.machine import read_siblings, spread
from walle.system.process_tree import die_with_parent
from walle.system.signals import ENDING, signal_handlers

LOCK_WAIT_S = 60.0
JOBS = "jobs"
_CORE_NAME = "\0walle-core-{core}"  # of a socket that has no file and ends with its process


class StoredJobs:
    """The jobs of a submission, each in a file of its own: a worker reads those that it runs."""

    def __init__(self, directory: Path, nums: Sequence[int]) -> None:
        self._directory, self._nums = directory, nums

    def __len__(self) -> int:
        return len(self._nums)

    def __getitem__(self, index: int) -> Job:
        content = (self._directory / JOBS / f"{self._nums[index]}.pkl").read_bytes()
        job: Job = pickle.loads(content)
        return job


class StoredPlan(NamedTuple):
    """The input shared by all workers of a submission."""

    sweep: Path  # the sweep's directory
    plan: Plan  # its jobs are `StoredJobs`
    nums: list[int]  # the number of each job, by index
    needs: list[Need]  # of each job
    settings: WalleLauncherConf  # of the launcher
    preparation: bytes  # what the jobs import
    command: str  # the command that started the sweep
    cwd: str  # its working directory
    path: list[str]  # its `sys.path`


def store(
    directory: Path, sweep: Path, plan: Plan, settings: WalleLauncherConf, preparation: bytes
) -> None:
    """Makes a submission's directory and writes the plan into it."""
    (directory / JOBS).mkdir(parents=True)
    (directory / LOGS).mkdir()
    for index in plan.order:
        job = plan.jobs[index]
        with read_write(job.config.hydra), open_dict(job.config.hydra):
            # A worker runs none of the application's code, so it can resolve nothing.
            job.config.hydra.sweep.dir = str(job.config.hydra.sweep.dir)
        (directory / JOBS / f"{job.num}.pkl").write_bytes(cloudpickle.dumps(job))
    nums, needs = [job.num for job in plan.jobs], [job.need for job in plan.jobs]
    jobs: Any = StoredJobs(directory, nums)
    nothing = Manifest((), {}, (), ())
    small = plan._replace(jobs=jobs, done=dict.fromkeys(plan.done), manifest=nothing)
    here = (command_line(), os.getcwd(), sys.path)
    stored = StoredPlan(sweep.absolute(), small, nums, needs, settings, preparation, *here)
    (directory / COMMON).write_bytes(cloudpickle.dumps(stored))


def take_cores(
    count: int,
    usable: Sequence[int],
    siblings: Mapping[int, Sequence[int]],
    held: list[socket.socket],
) -> list[int]:
    """Takes `count` of the usable cores, because Ray counts cores but does not number them.

    No other worker on this host takes the same cores while the sockets added to `held` are open;
    some cores are shared if too few are left. `siblings` has all hardware threads of each core's
    physical core: a worker gets whole physical cores as far as possible.
    """
    if count >= len(usable):
        return list(usable)
    ordered = sorted(usable, key=lambda core: (min(siblings.get(core, (core,))), core))
    taken: list[int] = []
    for core in ordered:
        if len(taken) == count:
            break
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(_CORE_NAME.format(core=core))
        except OSError:  # another worker has the core
            lock.close()
        else:
            held.append(lock)
            taken.append(core)
    if missing := count - len(taken):
        logging.warning(f"other workers on this host have the cores: sharing {missing}")
        taken += [core for core in reversed(ordered) if core not in taken][:missing]
    return sorted(taken)


def main(directory: Path, ray_name: str = "", count: str = "", parent: str = "") -> int:
    """Runs the jobs of a submission until none is left; returns the exit code.

    When asked to end, it waits until its jobs have written their checkpoints, and gives them back.
    """
    if parent:
        die_with_parent(int(parent))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the command's own Ray blocks some signals
    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s", stream=sys.stdout)
    stored: StoredPlan = pickle.loads((directory / COMMON).read_bytes())
    plan, settings = stored.plan, stored.settings
    os.chdir(stored.cwd)
    sys.path[:] = stored.path
    in_slurm = None if ray_name else slurm.worker_name(os.environ)
    ending: list[int] = []
    saving: list[int] = []

    def end(number: int) -> None:
        # Slurm sends SIGUSR1 some time before a time limit, as `--signal` asks it to, and more than
        # one SIGTERM when it takes the cores back; a second one must not interrupt the checkpoints.
        # A SIGINT after the first signal does interrupt them: the jobs are killed.
        if not ending or number == signal.SIGINT:
            ending.append(number if ending else signal.SIGTERM)

    handlers = dict.fromkeys((*ENDING, signal.SIGUSR1), end) | {signal.SIGUSR2: saving.append}
    with signal_handlers(handlers, keep_ignored=()):
        cores, core_locks = sorted(os.sched_getaffinity(0)), list[socket.socket]()
        if ray_name:
            cores = take_cores(int(count), cores, read_siblings(cores), core_locks)
        elif in_slurm is not None:
            cores = slurm.own_cores(in_slurm, os.environ, cores)
        os.sched_setaffinity(0, cores)
        beat_s = (settings.ray if ray_name else settings.slurm).heartbeat_s
        name = f"{ray_name or in_slurm or 0}-{os.uname().nodename}-{os.getpid()}"
        claims, stops = Claims(directory, name), Stops(directory, beat_s)
        claimed = ClaimedJobs(
            stored.needs,
            plan.order,
            Resources(spread(cores, read_siblings(cores)), visible_gpus(None, os.environ)),
            exclusive=plan.exclusive,
            nums=stored.nums,
            claims=claims,
            stale_s=STALE_BEATS * beat_s,
            is_locked=lambda index: is_locked(plan.jobs[index].directory / RUN_LOCK),
            ending=ending,
            max_failures=settings.max_failures,
        )
        prepared, command = stored.preparation, stored.command
        try:
            with (
                claims.beating(beat_s),
                jobs_locked(stored.sweep, LOCK_WAIT_S, shared=True) as lock,
                closing(Runner(plan, claimed, settings, prepared, lock, stops, command)) as runner,
            ):
                runner.run(ending, saving)
                while claimed.may_get_more() and not ending:
                    time.sleep(beat_s)
                    runner.run(ending, saving)
        except ClaimLostError as error:
            logging.warning(f"this worker was frozen: {error}")
            return 1
        if claims.all_over(stored.nums[index] for index in plan.order):
            write_index(stored.sweep)
            # A worker of Ray that still waits is ended by this worker's actor.
            if not ray_name and (arrays := read_submission(directory).arrays):
                slurm.cancel_waiting(arrays)
        elif ending and in_slurm is not None and slurm.requeue(in_slurm):
            logging.info("asked Slurm to start this worker again")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
