from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from walle.system import machine
from walle.system.machine import parse_cpu_list, read_siblings, spread

KERNEL_LIST = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")


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


def kernel_files(root, files):
    """Files as the kernel shows them, below `root`."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


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
    kernel_files(tmp_path, {"proc/self/cgroup": groups, **limits})
    assert machine.memory_limits(tmp_path) == expected


def test_without_control_groups_the_machine_is_the_limit(tmp_path, monkeypatch):
    assert machine.memory_limits(tmp_path) == []
    monkeypatch.setattr(machine, "memory_limits", list)
    assert machine.memory_bytes() > 2**20
    monkeypatch.setattr(machine, "memory_limits", lambda: [4096, 8192])
    assert machine.memory_bytes() == 4096


GROUP = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("groups", "limits", "quota"),
    [
        ("0::/", {f"{GROUP}/cpu.max": "200000 100000"}, 2),
        ("0::/", {f"{GROUP}/cpu.max": "max 100000"}, None),
        ("0::/", {f"{GROUP}/cpu.max": "350000 100000"}, 3),  # half a core is none
        ("0::/", {f"{GROUP}/cpu.max": "25000 50000"}, 1),  # but one is the least
        (  # a parent's quota counts too
            "0::/slice/job",
            {
                f"{GROUP}/slice/job/cpu.max": "max 100000",
                f"{GROUP}/slice/cpu.max": "300000 100000",
                f"{GROUP}/cpu.max": "400000 100000",
            },
            3,
        ),
        (  # version 1, seen from inside of the container
            "4:cpu,cpuacct:/docker/a\n3:memory:/docker/a",
            {f"{GROUP}/cpu/cpu.cfs_quota_us": "150000", f"{GROUP}/cpu/cpu.cfs_period_us": "50000"},
            3,
        ),
        (
            "4:cpu,cpuacct:/a/b",
            {
                f"{GROUP}/cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1",
                f"{GROUP}/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000",
                f"{GROUP}/cpu,cpuacct/a/cpu.cfs_quota_us": "400000",
                f"{GROUP}/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        ("5:cpuset:/", {f"{GROUP}/cpu/cpu.cfs_quota_us": "100000"}, None),
    ],
)
def test_a_quota_counts_as_cores(tmp_path, monkeypatch, groups, limits, quota):
    kernel_files(tmp_path, {"proc/self/cgroup": groups, **limits})
    assert machine.core_quota(tmp_path) == quota
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    cores = machine.usable_cores(tmp_path)
    assert len(set(cores)) == len(cores) == machine.usable_physical_cores(tmp_path) == (quota or 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert machine.usable_cores(tmp_path) == [5]  # a quota adds no cores


def threads(root, *cores):
    """The kernel's lists of hardware threads that share a core."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    for text in cores:
        kernel_files(root, {topology.format(core): text for core in parse_cpu_list(text)})


@pytest.mark.parametrize("pairs", [("0,4", "1,5", "2,6", "3,7"), ("0-1", "2-3", "4-5", "6-7")])
def test_physical_cores_come_first_and_are_counted(tmp_path, monkeypatch, pairs):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert machine.usable_physical_cores(tmp_path) == 8  # the kernel lists no threads
    threads(tmp_path, *pairs)
    assert machine.usable_physical_cores(tmp_path) == 4
    firsts = [parse_cpu_list(text)[0] for text in pairs]
    assert machine.usable_cores(tmp_path)[:4] == firsts
    assert sorted(machine.usable_cores(tmp_path)) == list(range(8))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*parse_cpu_list(pairs[1]), 7})
    assert machine.usable_physical_cores(tmp_path) == 2
    assert machine.usable_cores(tmp_path) == [firsts[1], 7, parse_cpu_list(pairs[1])[1]]


def test_containers_with_quotas_start_at_cores_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    threads(tmp_path, *(f"{core},{core + 32}" for core in range(32)))
    limit = {f"{GROUP}/cpu.max": "400000 100000"}
    kernel_files(tmp_path, {"proc/self/cgroup": "0::/", **limit})
    found = set()
    for name in map("container-{}".format, range(50)):
        monkeypatch.setattr(machine.platform, "node", lambda name=name: name)
        cores = machine.usable_cores(tmp_path)
        assert cores == machine.usable_cores(tmp_path)  # the same in every process
        assert len(cores) == machine.usable_physical_cores(tmp_path) == 4
        found.add(cores[0])
    assert len(found) > 10


@pytest.mark.parametrize(
    ("allowed", "cores", "quota"),
    [
        (range(24), [*(f"{core},{core + 16}" for core in range(8)), *map(str, range(8, 16))], 10),
        (range(5), ("0,4", "1,5", "2,6", "3,7"), 2),  # a cpuset with one second thread
    ],
)
def test_a_quota_counts_no_second_thread_of_unequal_cores(
    tmp_path, monkeypatch, allowed, cores, quota
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(allowed))
    threads(tmp_path, *cores)
    limit = {f"{GROUP}/cpu.max": f"{quota}00000 100000"}
    kernel_files(tmp_path, {"proc/self/cgroup": "0::/", **limit})
    for name in map("container-{}".format, range(200)):
        monkeypatch.setattr(machine.platform, "node", lambda name=name: name)
        assert len(machine.usable_cores(tmp_path)) == quota
        assert machine.usable_physical_cores(tmp_path) == quota


def test_every_physical_core_before_any_second_thread():
    siblings = {0: [0, 4], 4: [0, 4], 1: [1, 5], 5: [1, 5]}
    assert spread([0, 1, 4, 5], siblings) == [0, 1, 4, 5]
    siblings = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    assert spread([0, 1, 2, 3], siblings) == [0, 2, 1, 3]
    assert spread([3, 1, 2, 0], siblings) == [3, 1, 2, 0]  # else in the given order
    assert spread([1, 2], siblings) == [1, 2]  # a sibling the sweep may not use does not count


def test_the_kernels_lists():
    assert parse_cpu_list("0-2,8\n") == [0, 1, 2, 8]
    assert parse_cpu_list("3") == [3]


def test_a_core_without_known_siblings_is_a_physical_core():
    assert spread([1, 0], {0: [0]}) == [1, 0]
    assert spread([3, 1, 2], {}) == [3, 1, 2]


def test_siblings_are_read_where_the_kernel_lists_them(tmp_path):
    threads(tmp_path, "0,4", "2-3")
    topology = tmp_path / machine.TOPOLOGY
    assert read_siblings([0, 1, 2], topology) == {0: [0, 4], 2: [2, 3]}


@pytest.mark.skipif(not KERNEL_LIST.exists(), reason="this kernel lists no siblings")
def test_a_core_is_among_its_own_siblings():
    assert 0 in read_siblings([0])[0]
