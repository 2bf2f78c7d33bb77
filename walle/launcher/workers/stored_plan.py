"""The plan of a submission in files, for the workers that carry it out."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import cloudpickle
from omegaconf import open_dict, read_write

from walle.launcher.allocation import Need
from walle.launcher.composing import Job
from walle.launcher.jobs.fork_server import Preparation
from walle.launcher.planning import Plan
from walle.launcher.records import Manifest
from walle.launcher.settings import WalleLauncherConf
from walle.launcher.workers.submission import LOGS
from walle.system.commands import command_line

COMMON, JOBS = "common.pkl", "jobs"


class StoredPlan(NamedTuple):
    """What all workers of a submission need.

    Attributes:
        sweep: the sweep's directory.
        nums: the number of each job, by index.
        needs: of each job.
        order: indices of the jobs to run.
        resumed: indices of those that resume from a checkpoint.
        exclusive: one job at a time.
        settings: of the launcher.
        preparation: what the jobs import.
        command: the command that started the sweep.
        cwd: its working directory.
        path: its `sys.path`.
    """

    sweep: Path
    nums: list[int]
    needs: list[Need]
    order: list[int]
    resumed: list[int]
    exclusive: bool
    settings: WalleLauncherConf
    preparation: Preparation
    command: str
    cwd: str
    path: list[str]

    @staticmethod
    def read(directory: Path) -> StoredPlan:
        """Reads the plan from a submission's directory."""
        stored: StoredPlan = pickle.loads((directory / COMMON).read_bytes())
        return stored

    def plan(self, directory: Path) -> Plan:
        """The plan, whose jobs are read from the submission's directory when they are needed."""
        jobs: Any = StoredJobs(directory, self.nums)
        empty = Manifest((), {}, (), ())
        return Plan(jobs, {}, self.order, self.resumed, empty, self.exclusive)


class StoredJobs(Sequence[Job]):
    """The jobs of a submission, each in a file of its own: a worker reads those that it runs."""

    def __init__(self, directory: Path, nums: Sequence[int]) -> None:
        """Reads nothing yet; `nums` are the numbers of the jobs."""
        self._directory, self._nums = directory, nums

    def __len__(self) -> int:
        return len(self._nums)

    @overload
    def __getitem__(self, index: int) -> Job: ...

    @overload
    def __getitem__(self, index: slice) -> list[Job]: ...

    def __getitem__(self, index: int | slice) -> Job | list[Job]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        content = (self._directory / JOBS / f"{self._nums[index]}.pkl").read_bytes()
        job: Job = pickle.loads(content)
        return job


def store(
    directory: Path,
    sweep: Path,
    plan: Plan,
    settings: WalleLauncherConf,
    preparation: Preparation,
) -> None:
    """Writes the plan into a submission's directory, which it makes."""
    (directory / JOBS).mkdir(parents=True)
    (directory / LOGS).mkdir()
    for index in plan.order:
        job = plan.jobs[index]
        with read_write(job.config.hydra), open_dict(job.config.hydra):
            # A worker runs none of the application's code, so it can resolve nothing.
            job.config.hydra.sweep.dir = str(job.config.hydra.sweep.dir)
        (directory / JOBS / f"{job.num}.pkl").write_bytes(cloudpickle.dumps(job))
    stored = StoredPlan(
        sweep.absolute(),
        [job.num for job in plan.jobs],
        [job.need for job in plan.jobs],
        plan.order,
        plan.resumed,
        plan.exclusive,
        settings,
        preparation,
        command_line(),
        os.getcwd(),
        sys.path,
    )
    (directory / COMMON).write_bytes(cloudpickle.dumps(stored))
