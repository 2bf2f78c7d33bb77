"""The resources of a sweep: cores, GPUs, and the threads of the libraries in a job."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from walle.system.machine import THREAD_VARIABLES, usable_cores

TOPOLOGY = Path("/sys/devices/system/cpu")
# With these variables a library binds its threads to cores, against the pinning of the samplers.
BINDING_VARIABLES = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES")


class Resources(NamedTuple):
    """Cores and GPUs that a sweep may use."""

    cores: list[int]  # in the order to hand them out
    gpus: list[str]  # a GPU may be named more than once


def sweep_cores(wanted: Sequence[int] | None) -> list[int]:
    """The cores of `hydra.launcher.cores`, or all usable ones, in the order to hand them out.

    Raises:
        ValueError: it names a core that this process may not use, none, or one twice.
    """
    usable = usable_cores()
    cores = usable if wanted is None else list(wanted)
    if unusable := sorted(set(cores).difference(usable)):
        raise ValueError(
            f"hydra.launcher.cores names {unusable}, but this process may only run on {usable}: "
            "name some of these, or leave it null for all"
        )
    if not cores or len(set(cores)) != len(cores):
        raise ValueError(
            f"hydra.launcher.cores={cores} must name at least one core, and none twice"
        )
    return spread(cores, read_siblings(cores))


def spread(cores: Sequence[int], siblings: Mapping[int, Sequence[int]]) -> list[int]:
    """Orders cores: the first hardware thread of every physical core, then the second ones.

    `siblings` has all hardware threads of each core's physical core.
    """

    def rank(core: int) -> tuple[int, int]:
        return sum(other < core for other in siblings.get(core, ()) if other in cores), core

    return sorted(cores, key=rank)


def read_siblings(cores: Sequence[int], topology: Path = TOPOLOGY) -> dict[int, list[int]]:
    """Reads the hardware threads of each core's physical core, where the kernel lists them."""
    files = {core: topology / f"cpu{core}" / "topology/thread_siblings_list" for core in cores}
    return {core: parse_cpu_list(f.read_text()) for core, f in files.items() if f.exists()}


def parse_cpu_list(text: str) -> list[int]:
    """Reads the kernel's notation: `0-2,8` is `[0, 1, 2, 8]`."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return cores


def visible_gpus(wanted: Sequence[str] | None, environ: Mapping[str, str]) -> list[str]:
    """The sweep's GPUs, named as in `CUDA_VISIBLE_DEVICES`: `wanted` ones, visible ones, or all."""
    if wanted is not None:
        return list(wanted)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    listing = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    count = listing.stdout.count("GPU ") if listing.returncode == 0 else 0
    return [str(gpu) for gpu in range(count)]


def thread_settings(threads: int) -> dict[str, str]:
    """Environment variables that fix the number of threads of a job's libraries."""
    settings = dict.fromkeys(THREAD_VARIABLES, str(threads))
    return settings | {"OMP_PROC_BIND": "false", "OMP_DYNAMIC": "false", "MKL_DYNAMIC": "FALSE"}


def job_environment(inherited: Mapping[str, str], threads: Mapping[str, str]) -> dict[str, str]:
    """The environment of every job: the user's, with the sweep's thread settings."""
    kept = {key: value for key, value in inherited.items() if key not in BINDING_VARIABLES}
    return {**kept, **threads}
