"""This machine: its cores, its memory, and the variables that limit a library's threads."""

from __future__ import annotations

import os
import platform
from pathlib import Path

# Numerical libraries read these once, when they are imported.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)


def memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_cores() -> list[int]:
    """The cores this process may run on; a container or a launcher may have narrowed them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_model() -> str:
    """The processor's name."""
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def physical_cores() -> int:
    """Cores of the machine that are not hyperthreads of one another."""
    pairs = set()
    package = ""
    for line in _cpuinfo():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "physical id":
            package = value
        elif key == "core id":
            pairs.add((package, value))
    return len(pairs) or os.cpu_count() or 1


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
