from __future__ import annotations

from types import SimpleNamespace

import pytest

from walle.system import machine


def test_the_kernel_may_hide_what_a_processor_is(monkeypatch, tmp_path):
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "_CPUINFO", file)
    monkeypatch.setattr(machine.psutil, "cpu_freq", lambda percpu: [])
    assert machine.cpu_model()
    assert machine.clock_mhz([0]) is None
    file.write_text("processor\t: 0\nmodel name\t: Some CPU\n\nmodel name\t: Other\n")
    assert machine.cpu_model() == "Some CPU"


def test_the_clock_is_the_mean_of_the_cores(monkeypatch):
    speeds = [SimpleNamespace(current=mhz) for mhz in (1000.0, 2500.5, 3000.0)]
    monkeypatch.setattr(machine.psutil, "cpu_freq", lambda percpu: speeds)
    assert machine.clock_mhz([1]) == 2500.5
    assert machine.clock_mhz([0, 1, 7]) == 1750.25


def test_the_seconds_that_cores_were_busy(monkeypatch):
    first = SimpleNamespace(
        user=1.0, nice=2.0, system=4.0, idle=1000.0, iowait=500.0, irq=8.0, softirq=16.0, steal=32.0
    )
    second = SimpleNamespace(user=100.0, nice=0.0, system=0.0, idle=5.0, iowait=5.0)
    monkeypatch.setattr(machine.psutil, "cpu_times", lambda percpu: [first, second])
    assert machine.busy_s([0]) == 63  # without idle and iowait
    assert machine.busy_s([0, 1]) == 163
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
