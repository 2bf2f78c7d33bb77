"""Slurm's commands: what the launcher and its workers ask of the scheduler, each in one call."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from walle.launcher.allocation import parse_cpu_list
from walle.launcher.settings import BackendError

TIMEOUT_S = 60.0
NEEDED = ("sbatch", "squeue", "sinfo", "scontrol", "scancel")
DEFAULT_ARRAY_SIZE = 1001  # Slurm's own default of MaxArraySize
WANT_REQUEUE = ("RUNNING", "PREEMPTED", "TIMEOUT")


class SlurmError(BackendError):
    """Slurm is missing, does not answer or refuses; the message is one line."""


def check_installed() -> None:
    """Raises `SlurmError` unless Slurm's commands are there."""
    if absent := [name for name in NEEDED if shutil.which(name) is None]:
        raise SlurmError(
            f"hydra.launcher.backend=slurm needs Slurm's commands, and {', '.join(absent)} cannot "
            "be found: start the sweep on a login node of the cluster, or leave the backend local"
        )


def check_partition(wanted: str | None) -> None:
    """Raises `SlurmError` unless the cluster has the partitions of `slurm.partition`."""
    if wanted is None:
        return
    known = sorted(set(_call("sinfo", "-h", "-o", "%R").split()))
    if unknown := [name for name in wanted.split(",") if name not in known]:
        raise SlurmError(
            f"hydra.launcher.slurm.partition={wanted}: the cluster has no partition {unknown[0]}; "
            f"choose among {', '.join(known)}"
        )


def max_array_size() -> int:
    """The number of elements that one array of jobs may have."""
    match = re.search(r"MaxArraySize\s*=\s*(\d+)", _call("scontrol", "show", "config"))
    most = int(match[1]) if match else DEFAULT_ARRAY_SIZE
    if most == 0:
        raise SlurmError(
            "the cluster allows no arrays of jobs (MaxArraySize=0), and a sweep's workers are one: "
            "run the sweep inside of an allocation with hydra.launcher.backend=local"
        )
    return most


def submit(script: str, elements: int) -> str:
    """Submits an array of jobs with a batch script; returns its number."""
    output = _call("sbatch", "--parsable", f"--array=0-{elements - 1}", given=script)
    return output.strip().splitlines()[-1].partition(";")[0]


class InQueue(NamedTuple):
    """A worker in Slurm's queue: its state, such as `PENDING`, and why it waits, if it does."""

    state: str
    reason: str


def states(arrays: Sequence[str]) -> dict[str, InQueue] | None:
    """The state of every worker in the queue, by its name such as `12_0`, in one call.

    None where Slurm cannot be asked: it is not installed here, or does not answer.
    """
    try:
        output = _call("squeue", "-h", "-r", "-o", "%i %T %r", "-j", ",".join(arrays))
    except SlurmError as error:
        return {} if "Invalid job id" in str(error) else None  # all have left the queue
    lines = (line.split(maxsplit=2) for line in output.splitlines() if line.strip())
    return {name: InQueue(state, *(reason or [""])) for name, state, *reason in lines}


def cancel_waiting(arrays: Iterable[str]) -> None:
    """Cancels the workers that have not started; ignores scancel's exit status."""
    command = ["scancel", "--state=PENDING", *arrays]
    subprocess.run(command, capture_output=True, check=False, timeout=TIMEOUT_S)


def worker_name(environ: Mapping[str, str]) -> str | None:
    """The name of this worker for Slurm, such as `12_0`; None outside of Slurm.

    `SLURM_JOB_ID` would not do: of the last element it is the number of the whole array.
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID")


def requeue(name: str) -> bool:
    """Asks Slurm to start a worker again, unless its user cancelled it or Slurm does so by itself.

    Returns whether Slurm was asked.
    """
    match = re.search(r"JobState=(\w+)", _call("scontrol", "show", "job", "-o", name))
    wanted = match is not None and match[1] in WANT_REQUEUE
    if wanted:
        _call("scontrol", "requeue", name)
    return wanted


def own_cores(name: str, environ: Mapping[str, str], usable: Sequence[int]) -> list[int]:
    """The cores of this worker's allocation.

    Where Slurm binds its jobs to cores, they are `usable`, those on which this process may run.
    Where it does not, Slurm's numbers of the allocated cores are taken, which are different for
    every job of a node.
    """
    count = int(environ.get("SLURM_CPUS_ON_NODE", len(usable)))
    if len(usable) <= count:
        return list(usable)
    shown = _call("scontrol", "show", "job", "-d", "-o", name)
    allocated = allocated_cores(shown, environ.get("SLURMD_NODENAME", os.uname().nodename))
    if not allocated:
        return list(usable)[:count]
    if set(allocated) <= set(usable):
        return allocated
    return sorted({usable[core % len(usable)] for core in allocated})  # others of as many cores


def allocated_cores(shown: str, node: str) -> list[int]:
    """The cores of a job on a node, from `scontrol show job -d -o`; empty if unknown."""
    for nodes, cores in re.findall(r"\bNodes=(\S+) CPU_IDs=(\S+)", shown):
        if nodes == node:
            return parse_cpu_list(cores)
    return []


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
    """The line in which a command of Slurm says why it refuses; a hint may follow it."""
    lines = [line for line in output.splitlines() if line.strip()] or ["no reason given"]
    return next((line for line in reversed(lines) if line.startswith(f"{command}:")), lines[-1])
