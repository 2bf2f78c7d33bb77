"""The machine while a sweep runs: thread settings, load, clock frequency, GPUs, memory ends."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)
# A runtime that binds threads by itself would undo the pinning of the samplers.
BINDING_VARIABLES = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES")


def thread_settings(threads: int) -> dict[str, str]:
    """The environment variables that fix the threads of a job's libraries."""
    settings = dict.fromkeys(THREAD_VARIABLES, str(threads))
    return settings | {"OMP_PROC_BIND": "false", "OMP_DYNAMIC": "false", "MKL_DYNAMIC": "FALSE"}


def job_environment(inherited: Mapping[str, str], threads: Mapping[str, str]) -> dict[str, str]:
    """The environment every job starts from: the user's, with the sweep's thread settings."""
    kept = {key: value for key, value in inherited.items() if key not in BINDING_VARIABLES}
    return {**kept, **threads}


class Moment(NamedTuple):
    """The state of the machine at one moment.

    Attributes:
        load: load average over one minute.
        mhz: mean clock frequency of the cores asked about; None where the kernel hides it.
    """

    load: float
    mhz: float | None


def moment(cores: Sequence[int]) -> Moment:
    """The load, and the clock frequency of `cores`, now."""
    frequencies = [mhz for core in cores if (mhz := _scaling_mhz(core)) is not None]
    if not frequencies:
        everything = parse_cpuinfo_mhz(Path("/proc/cpuinfo").read_text())
        frequencies = [everything[core] for core in cores if core in everything]
    mean = sum(frequencies) / len(frequencies) if frequencies else None
    return Moment(os.getloadavg()[0], mean)


def _scaling_mhz(core: int) -> float | None:
    file = Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq")
    return int(file.read_text()) / 1000 if file.exists() else None


def parse_cpuinfo_mhz(text: str) -> dict[int, float]:
    """MHz of each processor that `/proc/cpuinfo` lists one for."""
    found = re.findall(r"^processor\s*: (\d+)$(?:\n.+)*?\ncpu MHz\s*: ([\d.]+)$", text, re.M)
    return {int(core): float(mhz) for core, mhz in found}


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    match = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.M)
    return int(match[1]) if match else 0


def visible_gpus(asked: Sequence[str] | None, environ: Mapping[str, str]) -> list[str]:
    """The sweep's GPU slots, as `CUDA_VISIBLE_DEVICES` names them.

    Args:
        asked: `hydra.launcher.gpus`.
        environ: where `CUDA_VISIBLE_DEVICES` may stand.
    """
    if asked is not None:
        return list(asked)
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [gpu.strip() for gpu in listed.split(",") if gpu.strip()]
    return [str(gpu) for gpu in range(_gpu_count())]


def _gpu_count() -> int:
    """GPUs that the driver lists; none without its tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    listing = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return listing.stdout.count("GPU ") if listing.returncode == 0 else 0
