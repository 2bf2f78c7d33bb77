"""Compiles a library of this folder on first use, and loads it.

The C++ compiler is the one that `CXX` names, g++ by default. The library is kept in the cache
directory, under a hash of its sources, the compiler and the processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from walle.learning.cached_files import cpu, intact, seal
from walle.system.files import TemporaryDirectory, cache_directory
from walle.system.locks import locked_file

# Contracted products and sums are the processor's own; nothing here tests for errors or traps. No
# -ffast-math: it would let the compiler add in another order, and forget what is not finite. Only
# what Python calls is visible: otherwise the loader would unite constants of two libraries in a
# process, although vectors of other widths give them other sizes.
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-fvisibility=hidden"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)


class CompilerError(Exception):
    """The C++ compiler does not work, or refuses a library; the text is what it said."""


@cache
def load(name: str) -> Any:
    """The library `NAME.cpp`, a `ctypes.CDLL`: its functions run without Python's lock.

    Raises:
        CompilerError: there is no compiler that compiles it.
    """
    path = cache_directory() / f"{name}-{_fingerprint(name)}.so"
    with locked_file(path.with_suffix(".lock")):  # one process compiles, the others wait
        if not intact(path):
            _build(_folder() / f"{name}.cpp", path)
            seal(path)
    return ctypes.CDLL(str(path))


def _folder() -> Path:
    return Path(__file__).parent


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "g++"))


def _fingerprint(name: str) -> str:
    compiler = _output([*_compiler(), "--version"])
    digest = hashlib.sha256(repr((name, _compiler(), compiler, FLAGS, cpu())).encode())
    for path in sorted((*_folder().glob("*.hpp"), _folder() / f"{name}.cpp")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _build(source: Path, path: Path) -> None:
    building = TemporaryDirectory(path.parent, ".building")
    made = building.path / path.name
    try:
        with building.used():
            _output([*_compiler(), *FLAGS, str(source), "-o", str(made)])
        os.replace(made, path)
    except OSError as error:
        raise CompilerError(str(error)) from error
    finally:
        building.remove()


def _output(command: Sequence[str]) -> str:
    """Runs a program and returns its standard output.

    Raises:
        CompilerError: there is no such program, or it fails.
    """
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompilerError(str(error)) from error
    if found.returncode:
        raise CompilerError(found.stderr or found.stdout)
    return found.stdout
