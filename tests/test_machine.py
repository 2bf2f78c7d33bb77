from __future__ import annotations

import pytest

from walle import machine

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
