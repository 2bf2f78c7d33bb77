"""Facts about this machine: cores, clock, memory, and the variables that limit threads."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_STAT = Path("/proc/stat")
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
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *memory_limits()])


def memory_limits(root: Path = Path("/")) -> list[int]:
    """The limits of memory in bytes of this process's control groups, of both versions.

    The kernel counts shared memory too, and ends a process that would go beyond a limit.

    Args:
        root: where `proc` and `sys` lie.
    """
    file, found = root / "proc/self/cgroup", []
    for line in file.read_text().splitlines() if file.exists() else ():
        _, controllers, path = line.split(":", 2)
        top, name = root / "sys/fs/cgroup", "memory.max"
        if controllers:
            top, name = top / "memory", "memory.limit_in_bytes"
        if not controllers or "memory" in controllers.split(","):
            group = top / path.lstrip("/")  # a container may see no groups but the top one
            limits = (each / name for each in (group, *group.parents) if each.is_relative_to(top))
            texts = (limit.read_text().strip() for limit in limits if limit.is_file())
            found += [int(text) for text in texts if text.isdigit()]  # "max" is no limit
    return found


def usable_cores() -> list[int]:
    """The cores on which this process may run; a container or a launcher may limit them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_model() -> str:
    """The name of the processor."""
    names = [processor["model name"] for processor in _cpuinfo() if "model name" in processor]
    return names[0] if names else platform.processor() or platform.machine()


def physical_cores() -> int:
    """The number of physical cores; hyperthreads of a core count once."""
    pairs = {
        (processor.get("physical id", ""), processor["core id"])
        for processor in _cpuinfo()
        if "core id" in processor
    }
    return len(pairs) or os.cpu_count() or 1


def clock_mhz(cores: Sequence[int]) -> float | None:
    """The present mean clock frequency of `cores` in MHz; None if the kernel does not show it."""
    found = [mhz for core in cores if (mhz := _scaling_mhz(core)) is not None]
    if not found:
        listed = {p.get("processor"): float(p["cpu MHz"]) for p in _cpuinfo() if "cpu MHz" in p}
        found = [listed[str(core)] for core in cores if str(core) in listed]
    return sum(found) / len(found) if found else None


def _scaling_mhz(core: int) -> float | None:
    file = Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq")
    return int(file.read_text()) / 1000 if file.exists() else None


def busy_s(cores: Sequence[int]) -> float | None:
    """Seconds that `cores` have been busy since the machine started, summed over them.

    Time that a virtual machine's host gave to others counts too (steal). None if the kernel does
    not show it.
    """
    ticks = dict(_busy_ticks(line) for line in _lines(_STAT) if re.match(r"cpu\d", line))
    if not set(cores) <= ticks.keys():
        return None
    return sum(ticks[core] for core in cores) / os.sysconf("SC_CLK_TCK")


def _busy_ticks(line: str) -> tuple[int, int]:
    """The number of a core and its ticks of user, nice, system, irq, softirq and steal."""
    name, *fields = line.split()
    user, nice, system, _, _, *others = map(int, fields[:8])  # without idle and iowait
    return int(name.removeprefix("cpu")), user + nice + system + sum(others)


def _lines(file: Path) -> list[str]:
    """The file's lines; none on a system without the file."""
    return file.read_text().splitlines() if file.exists() else []


def oom_kills() -> int:
    """The number of processes killed for lack of memory since the machine started."""
    match = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.M)
    return int(match[1]) if match else 0


def _cpuinfo() -> list[dict[str, str]]:
    """The fields of each processor in /proc/cpuinfo; empty on a system without that file."""
    paragraphs = _CPUINFO.read_text().split("\n\n") if _CPUINFO.exists() else []
    return [dict(_field(line) for line in text.splitlines()) for text in paragraphs]


def _field(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip(), value.strip()
