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


def test_this_machine():
    assert machine.oom_kills() >= 0
    assert machine.physical_cores() > 0
    mhz = machine.clock_mhz([0])
    assert mhz is None or mhz > 0
