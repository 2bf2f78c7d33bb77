"""Calls of Slurm's commands, and the batch script of a worker."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from walle.errors import ConfigError
from walle.launcher.settings import SlurmConf
from walle.system.machine import parse_cpu_list

log = logging.getLogger(__name__)

TIMEOUT_S = 60.0
TRIES, PAUSE_S = 5, 5.0
NEEDED = ("sbatch", "squeue", "sinfo", "scontrol", "scancel")
DEFAULT_ARRAY_SIZE = 1001  # Slurm's own default of MaxArraySize
WANT_REQUEUE = ("RUNNING", "PREEMPTED", "TIMEOUT")
# settings that have the names of options of sbatch
NAMED_ALIKE = ("partition", "account", "qos", "constraint", "time")
OPTIONS, SETUP, COMMAND = "@OPTIONS@", "@SETUP@", "@COMMAND@"
TEMPLATE = f"""#!/bin/bash
{OPTIONS}
{SETUP}
exec {COMMAND}
"""


class SlurmError(ConfigError):
    """Slurm is missing, does not answer or refuses; the message is one line."""


def check(partition: str | None) -> None:
    """Raises `SlurmError` unless Slurm answers here, and the cluster has the partition."""
    where = "start the sweep on a login node of the cluster, or leave the backend local"
    if absent := [name for name in NEEDED if shutil.which(name) is None]:
        raise SlurmError(
            f"hydra.launcher.backend=slurm needs Slurm's commands, and {', '.join(absent)} cannot "
            f"be found: {where}"
        )
    try:
        known = sorted(set(_call("sinfo", "-h", "-o", "%R").split()))
    except SlurmError as error:
        raise SlurmError(f"hydra.launcher.backend=slurm: no answer ({error}): {where}") from None
    asked = [] if partition is None else partition.split(",")
    if unknown := [name for name in asked if name not in known]:
        raise SlurmError(
            f"hydra.launcher.slurm.partition={partition}: the cluster has no "
            f"partition {unknown[0]}; choose among {', '.join(known)}"
        )


def array_sizes(workers: int) -> list[int]:
    """The sizes of the arrays of jobs; warns when one array cannot hold all workers."""
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", _call("scontrol", "show", "config"))
    most = int(match[1]) if match else DEFAULT_ARRAY_SIZE
    if most == 0:
        raise SlurmError(
            "the cluster allows no arrays of jobs (MaxArraySize=0), and a sweep's workers are one: "
            "run the sweep inside of an allocation with hydra.launcher.backend=local"
        )
    sizes = [min(most, workers - start) for start in range(0, workers, most)]
    if len(sizes) > 1:
        log.warning(
            f"{workers} workers are more than the cluster's MaxArraySize of {most}: they are "
            f"submitted as arrays of {', '.join(map(str, sizes))}"
        )
    return sizes


def batch_script(
    settings: SlurmConf, command: str, *, name: str, logs: Path, cores: int | None
) -> str:
    """The text for sbatch: the launcher's own, or the user's template.

    The shell replaces itself with `command`, so that the worker gets Slurm's signals. `cores` is
    None for a whole node.

    Raises SlurmError if the template cannot be read, or does not start the worker.
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
        **{key: getattr(settings, key) for key in NAMED_ALIKE},
        "mem": settings.memory,
        "gres": f"gpu:{settings.gpus}" if settings.gpus else None,
        "cpus-per-task": cores,
        "output": str(logs).replace("%", "%%") + "/%A_%a.log",
        "open-mode": "append",  # a worker that is started again continues its log
        "nodes": 1,
        "ntasks": 1,
        "signal": f"B:USR1@{settings.save_s}",
    }
    given = [f"--{key}={value}" for key, value in named.items() if value is not None]
    # A directory's name may hold spaces and quotes.
    given = [shlex.quote(text) if re.search(r"[\s'\"#\\]", text) else text for text in given]
    options = [*given, "--requeue", *(["--exclusive"] if cores is None else []), *settings.options]
    lines = "\n".join(f"#SBATCH {option}" for option in options)
    parts = {OPTIONS: lines, SETUP: "\n".join(settings.setup), COMMAND: command}
    for word, part in parts.items():
        text = text.replace(word, part)
    return text


def submit(script: str, elements: int) -> str:
    """Submits an array of jobs with a batch script; returns its number.

    The script's options are given again, because variables such as SBATCH_ACCOUNT win over it.
    """
    head = takewhile(lambda line: not line or line.startswith("#"), script.splitlines())
    lines = [line.removeprefix("#SBATCH") for line in head if line.startswith("#SBATCH ")]
    try:
        options = [word for line in lines for word in shlex.split(line, comments=True)]
    except ValueError as error:
        raise SlurmError(
            f"an option of sbatch cannot be read ({error}): check its quotes"
        ) from None
    array = f"--array=0-{elements - 1}"
    output = _call("sbatch", "--parsable", *options, array, given=script)
    return output.strip().splitlines()[-1].partition(";")[0]


def states(arrays: Sequence[str]) -> dict[str, tuple[str, str]] | None:
    """The state of each worker in the queue, by names such as `12_0`, and why it waits.

    None if Slurm is not installed here or does not answer.
    """
    try:
        output = _call("squeue", "-h", "-r", "-o", "%i %T %r", "-j", ",".join(arrays))
    except SlurmError as error:
        return {} if "Invalid job id" in str(error) else None  # all have left the queue
    lines = (line.split(maxsplit=2) for line in output.splitlines() if line.strip())
    return {name: (state, "".join(reason)) for name, state, *reason in lines}


def cancel_waiting(arrays: Iterable[str]) -> None:
    """Cancels the workers that have not started; ignores scancel's exit status."""
    command = ["scancel", "--state=PENDING", *arrays]
    subprocess.run(command, capture_output=True, check=False, timeout=TIMEOUT_S)


def worker_name(environ: Mapping[str, str]) -> str | None:
    """The name of this worker for Slurm, such as `12_0`; None outside of Slurm.

    `SLURM_JOB_ID` would not do: for the last element it is the number of the whole array.
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID")


def requeue(name: str) -> bool:
    """Asks Slurm to start a worker again, unless its user cancelled it or Slurm restarts it anyway.

    Returns whether Slurm was asked; tries a few times, as many workers ask at a time limit.
    """
    asked = False
    for left in reversed(range(TRIES)):
        try:
            match = re.search(r"JobState=(\w+)", _call("scontrol", "show", "job", "-o", name))
            if match is None or match[1] not in WANT_REQUEUE:
                break
            asked = True
            _call("scontrol", "requeue", name)
            break
        except SlurmError as error:
            if not left:
                raise
            log.warning(f"the requeue failed, trying again: {error}")
            time.sleep(PAUSE_S)
    return asked


def own_cores(name: str, environ: Mapping[str, str], usable: Sequence[int]) -> list[int]:
    """The cores of this worker's allocation.

    If Slurm binds its jobs to cores, these are `usable`, the cores on which this process may run.
    Otherwise they are Slurm's numbers of the allocated cores, which differ between the jobs of a
    node.
    """
    count = int(environ.get("SLURM_CPUS_ON_NODE", len(usable)))
    if len(usable) <= count:
        return list(usable)
    shown = _call("scontrol", "show", "job", "-d", "-o", name)
    node = environ.get("SLURMD_NODENAME", os.uname().nodename)
    listed = dict(re.findall(r"\bNodes=(\S+) CPU_IDs=(\S+)", shown))
    allocated = parse_cpu_list(listed[node]) if node in listed else []
    if not allocated:
        return list(usable)[:count]
    if set(allocated) <= set(usable):
        return allocated
    return sorted({usable[core % len(usable)] for core in allocated})  # other cores, as many


def _call(*command: str, given: str | None = None) -> str:
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except FileNotFoundError:
        raise SlurmError(f"Slurm's command {command[0]} cannot be found") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} has not answered for {TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise SlurmError(f"{' '.join(command[:2])}: {refusal(done.stderr, command[0])}")
    return done.stdout


def refusal(output: str, command: str) -> str:
    """The line in which a Slurm command explains its refusal; a hint may follow it."""
    lines = [line for line in output.splitlines() if line.strip()] or ["no reason given"]
    return next((line for line in reversed(lines) if line.startswith(f"{command}:")), lines[-1])
