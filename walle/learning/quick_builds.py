"""What inductor does besides compiling a function, and what is left out here to save seconds.

Of 52 CPU seconds in which shared cores compiled PPO's two libraries, 11 went into programs that
only try vector instructions, 14 into headers compiled in advance, which later saved 5, and 6 into
`std::regex`, with which torch's header reads the word "cpu". The wrapper, which computes nothing
itself, is compiled without vector instructions and with fewer optimisations. Kernels and their
flags stay as they are, and so does every bit of the results.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from walle.system.files import environment

# Only settings that the installed torch has are set.
_SETTINGS: dict[str, Any] = {
    "compile_threads": 1,  # one library needs no pool of compiling processes
    "cpp_cache_precompile_headers": False,
    "aot_inductor.precompile_headers": False,
    "size_asserts": False,  # they are compiled, but only run if an environment variable asks
}

_HEADER = "include/torch/csrc/inductor/aoti_runtime/model_base.h"  # below torch's directory
_KNOWN = ("#include <regex>", 'std::regex re("(cpu|cuda', "bool matched = std::regex_match(")

# Instead of the standard library's header: torch matches one pattern, with the text "cpu".
_REGEX = """
#pragma once
#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>
namespace std {
struct regex { explicit regex(const char*) {} };
struct smatch {
  struct part { string text; bool matched; string str() const { return text; } };
  string device;
  part operator[](size_t i) const { return i < 2 ? part{device, true} : part{"", false}; }
};
inline bool regex_match(const string& text, smatch& found, const regex&) {
  found.device = text;
  return text == "cpu";
}
}
"""


@contextmanager
def quick_builds(directory: Path, *, on_cpu: bool) -> Iterator[dict[str, Any]]:
    """Makes builds quicker in the body, which passes the settings yielded here to inductor.

    `directory` gets a header, and compilers run there; it must exist as long as the body. `on_cpu`
    tells whether the library computes on the CPU.
    """
    from torch._inductor import config, cpu_vec_isa

    known = config.get_config_copy()
    with ExitStack() as stack:
        stack.enter_context(patch.object(cpu_vec_isa.VecISA, "check_build", _taken_by_compiler))
        stack.enter_context(_side_by_side(directory))
        if on_cpu and _reads_cpu_only(Path(torch.__file__).parent / _HEADER):
            stack.enter_context(_include_first(directory, "regex", _REGEX))
        yield {name: value for name, value in _SETTINGS.items() if name in known}


@contextmanager
def _side_by_side(directory: Path) -> Iterator[None]:
    """Lets the compiler work on the wrapper and the kernels of a library at the same time.

    The wrapper has flags of its own, see `_for_wrapper`.
    Its programs run in `directory`; an exception in the body, such as Ctrl-C, ends them.
    """
    from torch._inductor.cpp_builder import CppBuilder
    from torch._inductor.exc import CppCompileError

    build = CppBuilder.build
    running: list[tuple[list[str], subprocess.Popen[str]]] = []

    def build_soon(builder: Any) -> None:
        command = shlex.split(builder.get_command_line())
        sources = [word for word in command if word.endswith((".wrapper.cpp", ".kernel.cpp"))]
        if "-c" in command and sources:
            if sources[0].endswith(".wrapper.cpp"):
                command = _for_wrapper(command)
            out, error = subprocess.PIPE, subprocess.STDOUT
            program = subprocess.Popen(command, cwd=directory, text=True, stdout=out, stderr=error)
            running.append((command, program))
            return
        for asked, program in running:  # this build links what they make
            said, _ = program.communicate()
            if program.returncode:
                raise CppCompileError(asked, said)
        running.clear()
        build(builder)

    try:
        with patch.object(CppBuilder, "build", build_soon):
            yield
    finally:
        for _, program in running:
            with program:  # waits for its end
                program.kill()


def _for_wrapper(command: Sequence[str]) -> list[str]:
    """A compiler's command without vector instructions and what debuggers read, and with -Og.

    The wrapper of a library only calls kernels. With the flags of vectors its headers hold all the
    functions for vectors that the compiler has, and it compiles for a second longer; with -O1 for
    half a second longer, and no gradient step is quicker. -O0 would save another quarter, but
    takes a sixth longer for a step of 64 rows.
    """
    kept: list[str] = []
    for word in command:
        if word.startswith("CPU_CAPABILITY_") and kept and kept[-1] == "-D":
            kept.pop()
        elif not word.startswith(("-m", "-g", "-O")):  # such as -march=native, -mavx2 and -g1
            kept.append(word)
    return [*kept, "-Og"]


def _taken_by_compiler(isa: Any, code: str) -> bool:  # noqa: ARG001
    """Whether the compiler knows the flags of a set of vector instructions.

    Torch compiles a program and loads it in a new process. But it asks the processor before that,
    and its own libraries have been built for the same sets.
    """
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    asked = [*compiler, *isa.build_arch_flags().split(), "-E", "-x", "c++", os.devnull]
    try:
        found = subprocess.run(asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError:  # no such program
        return False
    return found.returncode == 0


def _reads_cpu_only(header: Path) -> bool:
    """Whether torch's header uses `std::regex` as is known here, and in no other way."""
    if not header.exists():
        return False
    lines = [line.strip() for line in header.read_text().splitlines() if "regex" in line]
    return len(lines) == len(_KNOWN) and all(map(str.startswith, lines, _KNOWN))


@contextmanager
def _include_first(directory: Path, name: str, content: str) -> Iterator[None]:
    """Makes the compiler find `content` under `name` before the standard library's header."""
    (directory / name).write_text(content)
    before = os.environ.get("CPLUS_INCLUDE_PATH")
    path = os.pathsep.join([str(directory), *([before] if before else [])])
    with environment({"CPLUS_INCLUDE_PATH": path}):
        yield
