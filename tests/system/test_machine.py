from __future__ import annotations

import pytest

from walle.system import machine

CPUINFO = """processor\t: 0
model name\t: Some CPU
physical id\t: 0
core id\t\t: 3
cpu MHz\t\t: 2500.500
flags\t\t: a b

processor\t: 1
model name\t: Some CPU
physical id\t: 0
core id\t\t: 3
cpu MHz\t\t: 1000.000

"""


@pytest.fixture
def cpuinfo(monkeypatch, tmp_path):
    """A file in place of /proc/cpuinfo, on a machine that hides its frequencies elsewhere."""
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "_CPUINFO", file)
    monkeypatch.setattr(machine, "_scaling_mhz", lambda core: None)
    return file


def test_what_the_kernel_lists_of_each_processor(cpuinfo):
    cpuinfo.write_text(CPUINFO)
    assert machine.cpu_model() == "Some CPU"
    assert machine.physical_cores() == 1
    assert machine.clock_mhz([1]) == 1000.0
    assert machine.clock_mhz([0, 1, 7]) == 1750.25


def test_a_kernel_that_lists_no_frequencies(cpuinfo):
    assert machine.clock_mhz([0]) is None
    cpuinfo.write_text("processor\t: 0\nmodel name\t: hides it\n")
    assert machine.clock_mhz([0]) is None


def test_the_seconds_that_cores_were_busy(monkeypatch, tmp_path):
    file = tmp_path / "stat"
    monkeypatch.setattr(machine, "_STAT", file)
    assert machine.busy_s([0]) is None
    cores = ("cpu0 1 2 4 1000 500 8 16 32 7 7", "cpu1 100 0 0 5 5 0 0 0 0 0")
    file.write_text("\n".join(["cpu  9 9 9 9 9 9 9 9 0 0", *cores, "intr 5 5 5"]))
    tick_s = 1 / machine.os.sysconf("SC_CLK_TCK")
    assert machine.busy_s([0]) == pytest.approx(63 * tick_s)  # without idle, iowait and guests
    assert machine.busy_s([0, 1]) == pytest.approx(163 * tick_s)
    assert machine.busy_s([0, 2]) is None


def test_this_machine():
    assert machine.oom_kills() >= 0
    assert machine.physical_cores() > 0
    mhz = machine.clock_mhz([0])
    assert mhz is None or mhz > 0


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/", {"sys/fs/cgroup/memory.max": "4096"}, [4096]),
        (
            "0::/slurm/job_7",
            {
                "sys/fs/cgroup/slurm/job_7/memory.max": "max",
                "sys/fs/cgroup/slurm/memory.max": "8192",
            },
            [8192],
        ),
        (
            "12:cpu,cpuacct:/docker/a\n3:memory:/docker/a",  # a container that sees its own only
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "1024",
                "sys/fs/cgroup/cpu,cpuacct/memory.limit_in_bytes": "1",
            },
            [1024],
        ),
    ],
)
def test_a_container_may_allow_less_memory(tmp_path, groups, limits, expected):
    for name, text in {"proc/self/cgroup": groups, **limits}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert machine.memory_limits(tmp_path) == expected


def test_without_control_groups_the_machine_is_the_limit(tmp_path, monkeypatch):
    assert machine.memory_limits(tmp_path) == []
    monkeypatch.setattr(machine, "memory_limits", list)
    assert machine.memory_bytes() > 2**20
    monkeypatch.setattr(machine, "memory_limits", lambda: [4096, 8192])
    assert machine.memory_bytes() == 4096
