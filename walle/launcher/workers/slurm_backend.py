"""The backend of Slurm: submits workers in arrays of batch jobs."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from walle.launcher.planning import Plan
from walle.launcher.settings import SlurmConf, WalleLauncherConf
from walle.launcher.workers import slurm
from walle.launcher.workers.backend import WorkersBackend
from walle.launcher.workers.slurm import SlurmError
from walle.launcher.workers.submission import LOGS, Submission
from walle.system.format import count_text

log = logging.getLogger(__name__)

MOST_WORKERS = 16
OPTIONS, SETUP, COMMAND = "@OPTIONS@", "@SETUP@", "@COMMAND@"
TEMPLATE = f"""#!/bin/bash
{OPTIONS}
{SETUP}
exec {COMMAND}
"""


class SlurmBackend(WorkersBackend):
    """Runs jobs in workers on the nodes of a cluster."""

    def __init__(self, settings: WalleLauncherConf) -> None:
        super().__init__(settings, settings.slurm)
        self._slurm = settings.slurm
        slurm.check_installed()
        slurm.check_partition(self._slurm.partition)
        batch_script(self._slurm, "", name="", log="", cores=None)  # can its template be used?

    def where(self, plan: Plan) -> str:
        """See `WorkersBackend`."""
        cores = worker_cores(plan, self._slurm)
        each = "a whole node" if cores is None else count_text(cores, "core")
        return f"in {count_text(self._count(plan), 'worker')} of Slurm with {each}"

    def _states(self, names: Sequence[str]) -> Mapping[str, object] | None:
        return slurm.states(names)

    def _how_to_end(self, submission: Submission) -> tuple[str, str]:
        cancel = f"scancel {' '.join(submission.arrays)}"
        return f"end them with {cancel}", f", `{cancel}` ends them"

    def _submit(self, plan: Plan, sweep: Path, directory: Path) -> Submission:
        module = "walle.launcher.workers.worker"
        script = batch_script(
            self._slurm,
            shlex.join([sys.executable, "-m", module, str(directory)]),
            name=f"walle-{sweep.name}",
            log=str(directory / LOGS / "%A_%a.log"),
            cores=worker_cores(plan, self._slurm),
        )
        (directory / "batch.sh").write_text(script)
        workers, submission = self._count(plan), Submission(directory, [], plan.nums)
        for elements in array_sizes(workers, slurm.max_array_size()):
            submission.arrays.append(slurm.submit(script, elements))
            submission.record()
        log.info(
            f"submitted {count_text(workers, 'worker')} to Slurm: {', '.join(submission.arrays)}"
        )
        return submission

    def _count(self, plan: Plan) -> int:
        """How many workers to submit: no more than jobs to run, and one if times are compared."""
        cores, jobs = worker_cores(plan, self._slurm), len(plan.order)
        if cores is None:
            enough = 1 if self._compares_times(plan) else jobs
        else:
            needs = (plan.jobs[index].need.cores or 1 for index in plan.order)
            enough = -(-sum(min(need, cores) for need in needs) // cores)
        return min(self._slurm.workers or min(enough, MOST_WORKERS), jobs)


def worker_cores(plan: Plan, settings: SlurmConf) -> int | None:
    """Cores of a worker; None for a whole node."""
    needs = [plan.jobs[index].need.cores for index in plan.order]
    if plan.exclusive or None in needs:
        return None
    return settings.cores or max((need or 1 for need in needs), default=1)


def array_sizes(workers: int, most: int) -> list[int]:
    """The sizes of the arrays of jobs; warns when one array cannot hold all workers."""
    sizes = [min(most, workers - start) for start in range(0, workers, most)]
    if len(sizes) > 1:
        log.warning(
            f"{workers} workers are more than the cluster's MaxArraySize of {most}: they are "
            f"submitted as arrays of {', '.join(map(str, sizes))}"
        )
    return sizes


def batch_script(
    settings: SlurmConf, command: str, *, name: str, log: str, cores: int | None
) -> str:
    """The text for sbatch: the launcher's own, or a template of the user's.

    The shell replaces itself by `command`, so that the worker gets Slurm's signals. `cores` is None
    for a whole node.

    Raises:
        SlurmError: the template cannot be read, or does not start the worker.
    """
    text = TEMPLATE
    if settings.template is not None:
        setting = f"hydra.launcher.slurm.template={settings.template}"
        try:
            text = Path(settings.template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SlurmError(f"{setting} cannot be read ({error}): name a batch script") from None
        if COMMAND not in text:
            raise SlurmError(
                f"{setting} does not contain {COMMAND}: put it where the worker is to be started, "
                f"as in `exec {COMMAND}`"
            )
    named = {
        "job-name": name,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": settings.constraint,
        "time": settings.time,
        "mem": settings.memory,
        "gres": f"gpu:{settings.gpus}" if settings.gpus else None,
        "cpus-per-task": cores,
        "output": log,
        "open-mode": "append",  # a worker that is started again continues its log
        "nodes": 1,
        "ntasks": 1,
        "signal": f"B:USR1@{settings.save_s}",
    }
    given = [f"--{key}={value}" for key, value in named.items() if value is not None]
    # A directory's name may hold spaces.
    given = [shlex.quote(text) if any(map(str.isspace, text)) else text for text in given]
    options = [*given, "--requeue", *(["--exclusive"] if cores is None else []), *settings.options]
    lines = "\n".join(f"#SBATCH {option}" for option in options)
    parts = {OPTIONS: lines, SETUP: "\n".join(settings.setup), COMMAND: command}
    for word, part in parts.items():
        text = text.replace(word, part)
    return text
