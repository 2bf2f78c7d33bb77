import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from torch._inductor import cpp_builder
from torch._inductor.cpu_vec_isa import VecAVX2, VecAVX512VNNI
from torch._inductor.exc import CppCompileError

from walle.learning import quick_builds
from walle.learning.quick_builds import (
    _include_first,
    _reads_cpu_only,
    _side_by_side,
    _taken_by_compiler,
)

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
KNOWN = """
#include <regex>
void parse() {
  std::regex re("(cpu|cuda|xpu|mps)(:([0-9]+))?");
  bool matched = std::regex_match(device_str, sm, re);
}
"""
USES = """
#include <regex>
#include <cstdio>
int main() {
  std::regex re("(cpu|cuda)(:([0-9]+))?");
  std::smatch sm;
  if (!std::regex_match(std::string("cpu"), sm, re)) return 1;
  if (sm[1].str() != "cpu" || sm[3].matched) return 2;
  return std::regex_match(std::string("cuda:0"), sm, re) ? 3 : 0;
}
"""


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_is_asked_whether_it_knows_the_flags(tmp_path, monkeypatch):
    old = program(tmp_path / "old", 'case "$*" in *vnni*) exit 1;; esac')
    monkeypatch.setenv("CXX", f"{old} -m64")
    assert _taken_by_compiler(VecAVX2(), "")
    assert not _taken_by_compiler(VecAVX512VNNI(), "")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not _taken_by_compiler(VecAVX2(), "")


def test_a_header_that_uses_regex_in_another_way_keeps_the_real_one(tmp_path):
    header = tmp_path / "model.h"
    assert not _reads_cpu_only(header)
    header.write_text(KNOWN)
    assert _reads_cpu_only(header)
    header.write_text(KNOWN + "std::regex another;\n")
    assert not _reads_cpu_only(header)
    header.write_text(KNOWN.replace("(cpu", "(gpu"))
    assert not _reads_cpu_only(header)


@needs_compiler
def test_the_header_finds_the_cpu_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", "/elsewhere")
    source, binary = tmp_path / "uses.cpp", tmp_path / "uses"
    source.write_text(USES)
    with _include_first(tmp_path, "regex", quick_builds._REGEX):
        assert os.environ["CPLUS_INCLUDE_PATH"] == f"{tmp_path}{os.pathsep}/elsewhere"
        subprocess.run(["g++", str(source), "-o", str(binary)], check=True)
    assert os.environ["CPLUS_INCLUDE_PATH"] == "/elsewhere"
    assert subprocess.run([str(binary)]).returncode == 0


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_library_for_a_gpu_keeps_the_real_header(tmp_path, monkeypatch, on_cpu):
    monkeypatch.setattr(quick_builds, "_reads_cpu_only", lambda _: True)
    with quick_builds.quick_builds(tmp_path, on_cpu=on_cpu) as settings:
        assert (tmp_path / "regex").exists() == on_cpu
    assert not settings.get("aot_inductor.precompile_headers")


class Builder:
    """Stands for torch's builder of one file, which is a program of a shell here."""

    def __init__(self, program, name, *flags):
        self.command = ["sh", "-c", program, "-c", name, *flags]

    def get_command_line(self):
        return shlex.join(self.command)

    def build(self):
        subprocess.run(self.command, check=True)


@pytest.fixture
def builder(monkeypatch):
    monkeypatch.setattr(cpp_builder, "CppBuilder", Builder)
    return Builder


def waiting(own, other):
    """A program that makes a file and ends when another one is there too."""
    return f"touch {own}; while [ ! -e {other} ]; do sleep 0.01; done"


def test_wrapper_and_kernels_are_compiled_at_the_same_time(builder, tmp_path):
    with _side_by_side(tmp_path):
        builder(waiting("wrapper", "kernel"), "a.wrapper.cpp").build()
        builder(waiting("kernel", "wrapper"), "a.kernel.cpp").build()
        builder(f"cd {tmp_path} && cat wrapper kernel >library", "a.o").build()
    assert (tmp_path / "library").exists()


def test_only_the_wrapper_has_flags_of_its_own(builder, tmp_path):
    """Its headers then leave out the compiler's thousands of functions for vectors."""
    vectors = ["-D", "CPU_CAPABILITY_AVX2", "-g1", "-march=native", "-mavx2", "-mfma"]
    flags = ["-D", "OTHER", *vectors, "-O1", "-fopenmp"]
    with _side_by_side(tmp_path):
        builder('echo "$@" >wrapper', "a.wrapper.cpp", *flags).build()
        builder('echo "$@" >kernel', "a.kernel.cpp", *flags).build()
        builder("true", "a.o").build()
    _, *left = (tmp_path / "wrapper").read_text().split()
    assert left == ["-D", "OTHER", "-fopenmp", "-Og"]
    _, *left = (tmp_path / "kernel").read_text().split()
    assert left == flags


def test_a_failure_to_compile_ends_the_build(builder, tmp_path):
    with _side_by_side(tmp_path):
        builder("echo no such type; exit 1", "a.wrapper.cpp").build()
        with pytest.raises(CppCompileError, match="no such type"):
            builder("touch library", "a.o").build()


def test_an_interruption_ends_the_compiler(builder, tmp_path):
    with suppress(KeyboardInterrupt), _side_by_side(tmp_path):
        builder("echo $$ >pid.new; mv pid.new pid; exec sleep 600", "a.wrapper.cpp").build()
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


BUILD = """
import torch
from walle.learning.compiled import compile_function

(result,) = compile_function(lambda x: (x + 123,), (torch.zeros(7),))(torch.ones(7))
assert result.tolist() == [124] * 7
"""


@needs_compiler
@pytest.mark.slow
def test_a_build_compiles_the_function_and_nothing_else(tmp_path):
    log = tmp_path / "log"
    compiler = program(tmp_path / "c++", f'echo "$@" >>{log}\nexec g++ "$@"')
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CXX": compiler}
    subprocess.run([sys.executable, "-c", BUILD], env=environment, check=True)
    runs = [line.split() for line in log.read_text().splitlines()]
    sources = [line[0].partition(".")[2] for line in runs if "-c" in line]
    assert sorted(sources) == ["kernel.cpp", "weights.S", "wrapper.cpp"]
    assert len([line for line in runs if "-shared" in line]) == 1
    assert not [line for line in runs if "c++-header" in line]
    assert not list((tmp_path / "walle").glob("inductor/**/*.gch"))
