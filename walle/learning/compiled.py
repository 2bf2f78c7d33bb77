"""Ahead-of-time compilation of pure functions of tensors, with a cache on disk.

A function is traced to a graph of tensor operations. The graph's hash names a package in the cache
directory. If the package does not exist, inductor turns the graph into C++, and the compiler turns
the C++ into a library. A later process with the same graph loads the library in milliseconds.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from walle.errors import ConfigError, Interrupted, WalleError
from walle.learning import onednn
from walle.processes.private_files import TemporaryDirectory, cache_directory, environment, locked

Function = Callable[..., Sequence[Tensor]]

# Compiling without a cache takes about 15 s of a core and saves about 0.6 ms a gradient step. With
# a memory it takes 50 s and saves 3.4 ms for sequences of 16 steps; for 32 steps it takes 80 s.
REPAID_AFTER = 25_000
MODES = ("auto", "true", "false")


class Choice(NamedTuple):
    """A decision whether to compile, with its reason."""

    compile: bool
    reason: str

    def __str__(self) -> str:
        return f"{'compiled' if self.compile else 'eager'}: {self.reason}"


def choose(
    mode: str,
    minibatches: int,
    device: str,
    repaid_after: int = REPAID_AFTER,
    *,
    rows_vary: bool = False,
) -> Choice:
    """Decides whether to compile for `minibatches` gradient steps: `repaid_after` or more repay it.

    The decision depends on the configuration and on the installed programs, never on timing or on
    the cache, because compiled and eager numbers differ in their last bits. A compiled function has
    one shape, so steps with a varying number of rows stay eager.

    Raises:
        ConfigError: `mode` is "true" and there is no compiler, or the rows vary.
    """
    if mode == "false":
        return Choice(False, "algo.compile=false")
    if rows_vary:
        reason = "rounds differ in their number of steps, and a gradient step uses a whole round"
        if mode == "true":
            raise ConfigError(f"algo.compile=true: {reason}; use algo.compile=auto")
        return Choice(False, reason)
    missing = _missing_compiler(device)
    if mode == "true":
        if missing:
            raise ConfigError(f"algo.compile=true: {missing}, or use algo.compile=auto")
        return Choice(True, "algo.compile=true")
    if missing:
        return Choice(False, missing)
    if minibatches < repaid_after:
        return Choice(False, f"{minibatches:,} minibatches would not repay it ({repaid_after:,})")
    return Choice(True, f"{minibatches:,} minibatches repay it")


def attempt(choice: Choice, mode: str, compile_all: Callable[[], None]) -> Choice:
    """Compiles if `choice` says so; returns the choice, or "eager" if the compiler failed.

    Raises:
        Exception: the compiler's own error, if `mode` is not "auto".
    """
    if not choice.compile:
        return choice
    try:
        compile_all()
    except (Interrupted, WalleError):  # these errors concern the run, not the compiler
        raise
    except Exception as error:
        if mode != "auto":
            raise
        lines = str(error).strip().splitlines() or [""]
        return Choice(False, f"compiling failed ({type(error).__name__}: {lines[0][:200]})")
    return choice


class Compilable(NamedTuple):
    """A part of learning that can be compiled.

    Attributes:
        name: the name for messages: "learning", "policy" or "value function".
        calls: number of calls in the run.
        compile: compiles the part.
        rows_vary: whether calls differ in their number of rows.
    """

    name: str
    calls: int
    compile: Callable[[], None]
    rows_vary: bool = False


class Compiling:
    """The decisions which parts of an algorithm to compile, and their execution in `run`."""

    def __init__(
        self,
        mode: str,
        device: str,
        parts: Sequence[Compilable],
        *,
        repaid_after: int = REPAID_AFTER,
        without_parts: str = "",
    ) -> None:
        """Calls `choose` for each part; `without_parts` is the message if `parts` is empty.

        Raises:
            ConfigError: `mode` is "true" and a part cannot be compiled.
        """
        self._mode, self._without_parts = mode, without_parts
        self._chosen = [
            (part, choose(mode, part.calls, device, repaid_after, rows_vary=part.rows_vary))
            for part in parts
        ]

    def run(self) -> str:
        """Compiles the chosen parts; returns one line: the choices and their reasons."""
        self._chosen = [
            (part, attempt(choice, self._mode, part.compile)) for part, choice in self._chosen
        ]
        return "; ".join(f"{p.name} {choice}" for p, choice in self._chosen) or self._without_parts


def _missing_compiler(device: str) -> str | None:
    compiler = os.environ.get("CXX", "g++").split()
    if not compiler:
        return "CXX is empty, so there is no C++ compiler; unset CXX or name a compiler in it"
    if shutil.which(compiler[0]) is None:
        return f"no C++ compiler ({' '.join(compiler)}) found; install g++ or set CXX"
    if torch.device(device).type == "cuda" and find_spec("triton") is None:
        return "compiling for a GPU needs triton, which is not installed; install triton"
    return None


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent as a rational function, exact to 4e-7 and faster on a CPU.

    x P(x²) / Q(x²) with P and Q of degree 4, fitted on [-9, 9] for the least maximum error. Beyond
    9, tanh is 1 in float32.
    """
    x = x.clamp(-9.0, 9.0)
    z = x * x
    p = (((1.33546275e-08 * z + 2.06090557e-05) * z + 3.49558643e-03) * z + 1.33810242e-01) * z
    q = (((7.77654375e-07 * z + 3.28563209e-04) * z + 2.58769757e-02) * z + 4.67143398e-01) * z
    return x * (p + 1.0) / (q + 1.0)


class Program:
    """A compiled function of tensors, for inputs of fixed shapes."""

    def __init__(self, package: Path) -> None:
        """Loads the package."""
        from torch._inductor import aoti_load_package

        self._unpacked = TemporaryDirectory(package.parent, ".unpacked")
        with self._unpacked.used():
            self._run = aoti_load_package(str(package)).loader.boxed_run

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The function's outputs for contiguous `inputs`."""
        outputs: list[Tensor] = self._run(list(inputs))
        return outputs


@torch.no_grad()
def compile_function(function: Function, example: Sequence[Tensor]) -> Program:
    """Compiles `function` for inputs shaped like `example`; it must not change its inputs."""
    example = [x.clone() for x in example]  # the tracer would merge inputs that are the same tensor
    cache = cache_directory()
    with _torch_files(cache):
        graph = _trace(function, example)
        path = cache / f"{_fingerprint(graph, example)}.pt2"
        with locked(path.with_suffix(".lock")):  # one process compiles, the others wait
            return _loaded(graph, example, path)


def _loaded(graph: torch.fx.GraphModule, example: Sequence[Tensor], path: Path) -> Program:
    if not path.exists():
        _build(graph, example, path)
    try:
        return Program(path)
    except RuntimeError:  # the package is damaged, for example by a full disk
        _build(graph, example, path)
        return Program(path)


def _trace(function: Function, example: Sequence[Tensor]) -> torch.fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    table = {torch.ops.aten.tanh.default: tanh, **onednn.decompositions(_cpu())}
    return make_fx(function, decomposition_table=table)(*example)


def _build(graph: torch.fx.GraphModule, example: Sequence[Tensor], path: Path) -> None:
    from torch._inductor import aoti_compile_and_package

    with ExitStack() as stack:
        building = TemporaryDirectory(path.parent, ".building")
        stack.callback(building.remove)
        stack.enter_context(building.used())
        stack.enter_context(onednn.lowered())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # torch warns about its own code
        exported = torch.export.export(graph, tuple(example), strict=False)
        # One library needs no pool of compiling processes.
        package = aoti_compile_and_package(
            exported,
            package_path=str(building.path / path.name),
            inductor_configs={"compile_threads": 1},
        )
        os.replace(package, path)


def _fingerprint(graph: torch.fx.GraphModule, example: Sequence[Tensor]) -> str:
    """A hash of the inputs of the build: the graph, its constants, the shapes, the machine."""
    digest = hashlib.sha256(graph.code.encode())
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            constant = getattr(graph, node.target)
            digest.update(repr((constant.dtype, constant.tolist())).encode())
    shapes = [(tuple(x.shape), x.dtype, x.device.type) for x in example]
    digest.update(repr((shapes, _machine())).encode())
    return digest.hexdigest()[:32]


def _machine() -> tuple[Any, ...]:
    compiler = os.environ.get("CXX", "g++")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return torch.__version__, torch.get_num_threads(), compiler, gpu, platform.machine(), _cpu()


def _cpu() -> str:
    """The processor's model and instruction sets; a library works on this processor only."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    known = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return "\n".join(sorted(set(known)))


@contextmanager
def _torch_files(cache: Path) -> Iterator[None]:
    """Makes torch keep in `cache` what it compiles, for example to test the processor.

    By default it loads such libraries from a directory below the world-writable /tmp, whoever made
    that directory.
    """
    headers = cache / "inductor" / "precompiled_headers"
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    with ExitStack() as stack:
        stack.enter_context(environment(variables))
        from torch._inductor import codecache  # makes its directory when it is imported

        # Torch computes these two when it is imported, and never from TORCHINDUCTOR_CACHE_DIR.
        for name, path in (("_HEADER_DIR", headers), ("_HEADER_LOCK_DIR", headers / "locks")):
            stack.enter_context(patch.object(codecache, name, str(path), create=True))
        yield
