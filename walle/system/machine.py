"""Facts about this machine: cores, clock, memory, and the variables that limit threads."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import psutil

_CPUINFO = Path("/proc/cpuinfo")
TOPOLOGY = Path("sys/devices/system/cpu")  # below /
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
    names = ("memory.max", "memory.limit_in_bytes")
    files = [group / name for group in _groups("memory", root) for name in names]
    texts = [file.read_text().strip() for file in files if file.is_file()]
    return [int(text) for text in texts if text.isdigit()]  # "max": unlimited


def core_quota(root: Path = Path("/")) -> int | None:
    """The whole cores that the control groups' quotas allow, at least 1; None without quotas."""
    quotas = []
    for group in _groups("cpu", root):
        files = [group / f"cpu.{name}" for name in ("max", "cfs_quota_us", "cfs_period_us")]
        words = [word for f in files if f.is_file() for word in f.read_text().split()]
        if len(words) == 2 and all(word.isdigit() for word in words):  # "max" or -1: unlimited
            quotas.append(max(1, int(words[0]) // int(words[1])))
    return min(quotas, default=None)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The directories of this process's control groups with a controller, and of their parents."""
    file, top = root / "proc/self/cgroup", root / "sys/fs/cgroup"
    for line in file.read_text().splitlines() if file.exists() else ():
        _, controllers, path = line.split(":", 2)  # no controllers: version 2, which has them all
        if not controllers or controller in controllers.split(","):
            for mount in {top / controllers, top / (controllers and controller)}:
                group = mount / path.lstrip("/")  # a container may see no groups but the top one
                yield from (p for p in (group, *group.parents) if p.is_relative_to(mount))


def usable_cores(root: Path = Path("/")) -> list[int]:
    """The cores to run on, starting with one hardware thread of every physical core.

    A container or a launcher may allow only some cores, and a quota may limit their number.
    """
    cores = sorted(os.sched_getaffinity(0))
    quota = min(core_quota(root) or len(cores), len(cores))
    # Containers with quotas see all cores of their host: each starts at a core chosen by its name.
    start = crc32(platform.node().encode()) % len(cores) if quota < len(cores) else 0
    cores = [*cores[start:], *cores[:start]]
    return spread(cores, read_siblings(cores, root / TOPOLOGY))[:quota]


def usable_physical_cores(root: Path = Path("/")) -> int:
    """The number of physical cores among the usable ones."""
    cores = usable_cores(root)
    siblings = read_siblings(cores, root / TOPOLOGY)
    return len({min(siblings.get(core, [core])) for core in cores})


def spread(cores: Sequence[int], siblings: Mapping[int, Sequence[int]]) -> list[int]:
    """One hardware thread of every physical core, then the second ones, otherwise in their order.

    `siblings` has all hardware threads of each core's physical core.
    """
    place = {core: i for i, core in enumerate(cores)}

    def earlier(core: int) -> int:
        return sum(place.get(other, len(place)) < place[core] for other in siblings.get(core, ()))

    return sorted(cores, key=earlier)


def read_siblings(
    cores: Collection[int], topology: Path = Path("/") / TOPOLOGY
) -> dict[int, list[int]]:
    """Reads the hardware threads of each core's physical core, if the kernel lists them."""
    files = {core: topology / f"cpu{core}" / "topology/thread_siblings_list" for core in cores}
    return {core: parse_cpu_list(f.read_text()) for core, f in files.items() if f.exists()}


def parse_cpu_list(text: str) -> list[int]:
    """Reads the kernel's notation: `0-2,8` is `[0, 1, 2, 8]`."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return cores


def cpu_model() -> str:
    """The name of the processor."""
    text = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    model = re.search(r"^model name\s*: *(.*)$", text, re.M)
    return model[1].strip() if model else platform.processor() or platform.machine()


def physical_cores() -> int:
    """The number of physical cores; hyperthreads of a core count once."""
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def clock_mhz(cores: Sequence[int]) -> float | None:
    """The current mean clock frequency of `cores` in MHz; None if the kernel does not show it."""
    try:
        frequencies = psutil.cpu_freq(percpu=True)
    except (NotImplementedError, FileNotFoundError):
        return None
    mhz = [frequencies[core].current for core in cores if core < len(frequencies)]
    return sum(mhz) / len(mhz) if mhz and all(mhz) else None


def busy_s(cores: Sequence[int]) -> float | None:
    """Busy seconds of `cores` since the machine started, including time stolen by a hypervisor.

    None if the kernel does not show it.
    """
    times = psutil.cpu_times(percpu=True)
    if max(cores) >= len(times):
        return None
    busy = ("user", "nice", "system", "irq", "softirq", "steal")  # without idle and iowait
    return float(sum(getattr(times[core], field, 0.0) for core in cores for field in busy))


def oom_kills() -> int:
    """The number of processes killed for lack of memory since the machine started, if it is known.

    Else 0, as in a sandbox that hides /proc/vmstat.
    """
    with suppress(OSError):
        if match := re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.M):
            return int(match[1])
    return 0
