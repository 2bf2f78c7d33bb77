"""This machine: its cores, clock and memory, and the variables that limit a library's threads."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
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
    names = [processor["model name"] for processor in _cpuinfo() if "model name" in processor]
    return names[0] if names else platform.processor() or platform.machine()


def physical_cores() -> int:
    """Cores of the machine that are not hyperthreads of one another."""
    pairs = {
        (processor.get("physical id", ""), processor["core id"])
        for processor in _cpuinfo()
        if "core id" in processor
    }
    return len(pairs) or os.cpu_count() or 1


def clock_mhz(cores: Sequence[int]) -> float | None:
    """Mean clock frequency of `cores` at this moment; None where the kernel hides it."""
    found = [mhz for core in cores if (mhz := _scaling_mhz(core)) is not None]
    if not found:
        listed = {p.get("processor"): float(p["cpu MHz"]) for p in _cpuinfo() if "cpu MHz" in p}
        found = [listed[str(core)] for core in cores if str(core) in listed]
    return sum(found) / len(found) if found else None


def _scaling_mhz(core: int) -> float | None:
    file = Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq")
    return int(file.read_text()) / 1000 if file.exists() else None


def oom_kills() -> int:
    """Processes that the kernel has killed for lack of memory since the machine started."""
    match = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.M)
    return int(match[1]) if match else 0


def _cpuinfo() -> list[dict[str, str]]:
    """The fields of each processor in /proc/cpuinfo; empty on a system without that file."""
    blocks = _CPUINFO.read_text().split("\n\n") if _CPUINFO.exists() else []
    return [dict(_field(line) for line in block.splitlines()) for block in blocks]


def _field(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip(), value.strip()
