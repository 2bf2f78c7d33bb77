"""Compiles a library of this folder on first use, loads it, and passes arrays to it.

The C++ compiler is the one that `CXX` names, g++ by default. The library is kept in the cache
directory, under a hash of its sources, the compiler and the processor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from signal import SIGKILL
from typing import Any

import torch
from torch import Tensor

from walle.nets.mlp import MLP, Layout
from walle.system.files import TemporaryDirectory, cache_directory, write_atomically
from walle.system.locks import locked_file

# -O2 with the vectors and peeled loops of -O3 compiles in 80% of -O3's time, with the same bits
# in its results, and learns as fast; without peeled loops a minibatch of PPO takes 5% longer.
# Products and sums are contracted to fused multiply-adds; nothing here tests floating-point errors
# or traps. No -ffast-math: it would let the compiler add in another order, and ignore infinities
# and NaN. Only the functions that Python calls are visible: otherwise the loader would merge
# constants of two libraries in a process, although their sizes differ if the vectors' widths do.
FLAGS = (
    *("-std=c++17", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fpeel-loops"),
    *("-march=native", "-shared", "-fPIC", "-fvisibility=hidden"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
_FOLDER = Path(__file__).parent
ACTIVATIONS = {"tanh": 0, "relu": 1, "norm_relu": 2, "critic_norm_relu": 3}


class CompilerError(Exception):
    """The C++ compiler fails, or rejects a library; the text is its output."""


def load(name: str, functions: Mapping[str, tuple[Any, Sequence[Any]]]) -> Any:
    """The library `NAME.cpp`, a `ctypes.CDLL`: its functions run without Python's lock.

    `functions` maps names without the library's prefix to the result's and arguments' types.

    Raises CompilerError if no compiler can compile it.
    """
    library = compiled(name)
    for function, (result, arguments) in functions.items():
        declared = getattr(library, f"{name}_{function}")
        declared.restype, declared.argtypes = result, arguments
    return library


@cache
def compiled(name: str) -> Any:
    """The library without the types of its functions; see `load`."""
    path = cache_directory(for_code=True) / f"{name}-{_fingerprint(name)}.so"
    checksum = path.with_suffix(".sha256")
    with locked_file(path.with_suffix(".lock")):  # one process compiles, the others wait
        try:  # a damaged file would run, whatever it contains
            is_intact = checksum.read_text() == _checksum(path)
        except (OSError, ValueError):  # one of the files is missing, or the checksum is not text
            is_intact = False
        if not is_intact:
            building = TemporaryDirectory(path.parent, ".building")
            source, library = _FOLDER / f"{name}.cpp", building.path / path.name
            try:
                with building.used():
                    _output([*_compiler(), *FLAGS, str(source), "-o", str(library)])
                os.replace(library, path)
            except OSError as error:
                raise CompilerError(str(error)) from error
            finally:
                building.remove()
            write_atomically(checksum, _checksum(path))
    return ctypes.CDLL(str(path))


def structure(name: str, **fields: Any) -> Any:
    """A `ctypes.Structure` class for a C struct; `fields` has the fields' types in order."""
    return type(name, (ctypes.Structure,), {"_fields_": tuple(fields.items())})


def widths(layout: Layout | MLP) -> list[int]:
    """The widths of a network's layers, from its inputs to its outputs."""
    weights = [shape for name, shape in layout.shapes.items() if name.endswith(".weight")]
    return [weights[0][1], *(shape[0] for shape in weights)]


def ints(values: Sequence[int]) -> ctypes.Array[ctypes.c_int]:
    """The numbers as a C array."""
    return (ctypes.c_int * len(values))(*values)


def address(
    x: Tensor, shape: Sequence[int] | None = None, dtype: torch.dtype = torch.float32
) -> int:
    """The address of a contiguous tensor's first number.

    Raises:
        TypeError: the tensor is not contiguous, has the wrong dtype, or is not on the CPU.
        ValueError: its shape is not `shape`.
    """
    if x.dtype != dtype or x.device.type != "cpu" or not x.is_contiguous():
        raise TypeError(f"expected contiguous {dtype} on the CPU, got {x.dtype} on {x.device}")
    if shape is not None and tuple(x.shape) != tuple(shape):
        raise ValueError(f"expected the shape {tuple(shape)}, got {tuple(x.shape)}")
    return x.data_ptr()


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "g++"))


def _fingerprint(name: str) -> str:
    """A hash of all that a library depends on, also the processor's model and instruction sets."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    kinds = ("flags", "Features", "model name")
    processor = "\n".join(sorted({line for line in lines if line.startswith(kinds)}))
    compiler = _output([*_compiler(), "--version"])
    digest = hashlib.sha256(repr((name, _compiler(), compiler, FLAGS, processor)).encode())
    for source in sorted((*_FOLDER.glob("*.hpp"), _FOLDER / f"{name}.cpp")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _output(command: Sequence[str]) -> str:
    """The standard output of a program; CompilerError if it is missing or fails.

    An interrupt kills the program and the processes that it has started, which are in its group.
    """
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
        )
    except OSError as error:
        raise CompilerError(str(error)) from error
    with process:
        try:
            stdout, stderr = process.communicate()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, SIGKILL)
            process.communicate()  # until the last of them has closed its output
            raise
    if process.returncode:
        raise CompilerError(stderr or stdout)
    return stdout
