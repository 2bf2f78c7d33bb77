"""Facts about this machine: cores, clock, memory, and the variables that limit threads."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

import psutil

_CPUINFO = Path("/proc/cpuinfo")
# Numerical libraries read these variables once, when they are imported.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)


def memory_bytes() -> int:
    """The memory that this process may use, in bytes: the machine's, or less in a container."""
    return min([int(psutil.virtual_memory().total), *memory_limits()])


def memory_limits(root: Path = Path("/")) -> list[int]:
    """The memory limits in bytes of this process's control groups; shared memory counts too."""
    file, limits = root / "proc/self/cgroup", []
    for line in file.read_text().splitlines() if file.exists() else ():
        _, controllers, path = line.split(":", 2)
        top, name = root / "sys/fs/cgroup", "memory.max"
        if controllers:
            top, name = top / "memory", "memory.limit_in_bytes"
        if not controllers or "memory" in controllers.split(","):
            group = top / path.lstrip("/")  # a container may see no groups but the top one
            groups = [group, *(parent for parent in group.parents if parent.is_relative_to(top))]
            texts = [(g / name).read_text().strip() for g in groups if (g / name).is_file()]
            limits += [int(text) for text in texts if text.isdigit()]  # "max": unlimited
    return limits


def usable_cores() -> list[int]:
    """The cores on which this process may run; a container or a launcher may limit them."""
    return sorted(os.sched_getaffinity(0))


def cpu_model() -> str:
    """The name of the processor."""
    text = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    model = re.search(r"^model name\s*: *(.*)$", text, re.M)
    return model[1].strip() if model else platform.processor() or platform.machine()


def physical_cores() -> int:
    """The number of physical cores; hyperthreads of a core count once."""
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def clock_mhz(cores: Sequence[int]) -> float | None:
    """The present mean clock frequency of `cores` in MHz; None if the kernel does not show it."""
    try:
        frequencies = psutil.cpu_freq(percpu=True)
    except (NotImplementedError, FileNotFoundError):
        return None
    mhz = [frequencies[core].current for core in cores if core < len(frequencies)]
    return sum(mhz) / len(mhz) if mhz and all(mhz) else None


def busy_s(cores: Sequence[int]) -> float | None:
    """Busy seconds of `cores` since the machine started, with time that a host gave to others.

    None if the kernel does not show it.
    """
    times = psutil.cpu_times(percpu=True)
    if max(cores) >= len(times):
        return None
    busy = ("user", "nice", "system", "irq", "softirq", "steal")  # without idle and iowait
    return float(sum(getattr(times[core], field, 0.0) for core in cores for field in busy))


def oom_kills() -> int:
    """The number of processes killed for lack of memory since the machine started."""
    match = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.M)
    return int(match[1]) if match else 0
