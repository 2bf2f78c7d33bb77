"""Ahead-of-time compilation of pure functions of tensors, kept on disk for the next process.

A function is traced to a graph of tensor operations, whose hash names a package in the cache
directory. Where there is none yet, inductor turns the graph into C++ and the compiler into a
library; a later process with the same graph loads it in milliseconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from walle.errors import ConfigError, Interrupted, WalleError
from walle.learning import onednn

Function = Callable[..., Sequence[Tensor]]

# Compiling from nothing takes about 15 s of a core and saves about 0.6 ms a gradient step; with a
# memory 50 s and 3.4 ms for sequences of 16 steps, of 32 steps 80 s.
REPAID_AFTER = 25_000
MODES = ("auto", "true", "false")


class Choice(NamedTuple):
    """Whether to compile, and why, in words that follow "compiled: " or "eager: "."""

    compile: bool
    why: str

    def __str__(self) -> str:
        return f"{'compiled' if self.compile else 'eager'}: {self.why}"


def choose(
    mode: str,
    minibatches: int,
    device: str,
    repaid_after: int = REPAID_AFTER,
    *,
    rows_vary: bool = False,
) -> Choice:
    """Whether `minibatches` gradient steps are worth compiling for: `repaid_after` or more.

    It depends on the configuration and on what is installed, never on timing or on what an earlier
    run left in the cache: compiled and eager numbers differ in their last bits. What is compiled
    has one shape, so steps over rows whose number varies stay eager.

    Raises:
        ConfigError: `mode` is "true" and there is no compiler, or no one shape.
    """
    if mode == "false":
        return Choice(False, "algo.compile=false")
    if rows_vary:
        why = "rounds differ in their number of steps, and a step takes a whole one"
        if mode == "true":
            raise ConfigError(f"algo.compile=true: {why}; use algo.compile=auto")
        return Choice(False, why)
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
    """Does what was chosen; under "auto" a compiler that fails leaves learning eager, and said so.

    Raises:
        Exception: whatever the compiler raised, when `mode` is not "auto".
    """
    if not choice.compile:
        return choice
    try:
        compile_all()
    except (Interrupted, WalleError):  # of this run, not of the compiler
        raise
    except Exception as error:
        if mode != "auto":
            raise
        reason = str(error).strip().splitlines() or [""]
        return Choice(False, f"compiling failed ({type(error).__name__}: {reason[0][:200]})")
    return choice


class Compilable(NamedTuple):
    """A part of learning that can be compiled.

    Attributes:
        name: what the user is told of it: "learning", "policy", "value function".
        calls: how often the run will call it.
        compile: compiles it.
        rows_vary: whether calls differ in their number of rows.
    """

    name: str
    calls: int
    compile: Callable[[], None]
    rows_vary: bool = False


class Compiling:
    """Which parts of an algorithm are compiled: chosen when it is made, done while it warms up."""

    def __init__(
        self,
        mode: str,
        device: str,
        parts: Sequence[Compilable],
        *,
        repaid_after: int = REPAID_AFTER,
        nothing: str = "",
    ) -> None:
        """Chooses, as `choose` does for each part; `nothing` is told where there is no part.

        Raises:
            ConfigError: `mode` is "true" and a part cannot be compiled.
        """
        self._mode, self._nothing = mode, nothing
        self._chosen = [
            (part, choose(mode, part.calls, device, repaid_after, rows_vary=part.rows_vary))
            for part in parts
        ]

    def run(self) -> str:
        """Compiles the chosen parts; says in one line what was chosen, and why."""
        self._chosen = [
            (part, attempt(choice, self._mode, part.compile)) for part, choice in self._chosen
        ]
        told = [f"{part.name} {choice}" for part, choice in self._chosen]
        return "; ".join(told) or self._nothing


def _missing_compiler(device: str) -> str | None:
    compiler = os.environ.get("CXX", "g++").split()
    if not compiler:
        return "CXX is set to nothing, so there is no C++ compiler; unset it or name one"
    if shutil.which(compiler[0]) is None:
        return f"no C++ compiler ({' '.join(compiler)}) found; install g++ or set CXX"
    if torch.device(device).type == "cuda" and find_spec("triton") is None:
        return "no triton found, which compiling for a GPU needs; install triton"
    return None


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent as a rational function of x, within 4e-7; cheaper on a CPU.

    x P(x²) / Q(x²) with P and Q of degree 4, our own least-maximum fit on [-9, 9], beyond which
    tanh is 1 in float32.
    """
    x = x.clamp(-9.0, 9.0)
    z = x * x
    p = (((1.33546275e-08 * z + 2.06090557e-05) * z + 3.49558643e-03) * z + 1.33810242e-01) * z
    q = (((7.77654375e-07 * z + 3.28563209e-04) * z + 2.58769757e-02) * z + 4.67143398e-01) * z
    return x * (p + 1.0) / (q + 1.0)


class Program:
    """A compiled function: tensors in, tensors out, of the shapes it was compiled for."""

    def __init__(self, package: Path) -> None:
        """Loads the package."""
        from torch._inductor import aoti_load_package

        self._run = aoti_load_package(str(package)).loader.boxed_run

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """What the function returns for `inputs`, which must be contiguous."""
        outputs: list[Tensor] = self._run(list(inputs))
        return outputs


@torch.no_grad()
def compile_function(function: Function, example: Sequence[Tensor]) -> Program:
    """`function` compiled for inputs like `example`, which it must not change."""
    example = [x.clone() for x in example]  # two inputs that are one tensor are traced as one
    graph = _trace(function, example)
    path = cache_directory() / f"{_fingerprint(graph, example)}.pt2"
    with _locked(path.with_suffix(".lock")):  # of several jobs, one compiles and the others wait
        if not path.exists():
            _build(graph, example, path)
        try:
            return Program(path)
        except RuntimeError:  # damaged, as by a full disk
            _build(graph, example, path)
            return Program(path)


def _trace(function: Function, example: Sequence[Tensor]) -> torch.fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    table = {torch.ops.aten.tanh.default: tanh, **onednn.decompositions(_cpu())}
    return make_fx(function, decomposition_table=table)(*example)


def _build(graph: torch.fx.GraphModule, example: Sequence[Tensor], path: Path) -> None:
    from torch._inductor import aoti_compile_and_package

    with onednn.lowered(), warnings.catch_warnings(), _scratch(path) as scratch:
        warnings.simplefilter("ignore")  # torch's of itself
        exported = torch.export.export(graph, tuple(example), strict=False)
        # No pool of compiling processes: there is one library to compile.
        package = aoti_compile_and_package(
            exported,
            package_path=str(scratch / path.name),
            inductor_configs={"compile_threads": 1},
        )
        os.replace(package, path)


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """A directory beside `path` to build it in; whoever holds the lock of `path` has it alone."""
    scratch = path.with_suffix(".building")
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _fingerprint(graph: torch.fx.GraphModule, example: Sequence[Tensor]) -> str:
    """Of everything the library depends on: the graph, its constants, the shapes, the machine."""
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
    """The instructions that the processor knows: the library is compiled for this very one."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    known = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return "\n".join(sorted(set(known)))


def cache_directory() -> Path:
    """`walle` in the user's cache directory; if that cannot be written, a temporary one.

    Raises:
        OSError: the temporary one is another user's, or cannot be written either.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base) / "walle"
    with suppress(OSError):  # then the temporary one
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(path, os.W_OK):
            return path
    path = Path(tempfile.gettempdir()) / f"walle-{os.getuid()}"  # for every process and run alike
    path.mkdir(exist_ok=True, mode=0o700)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} is another user's; set XDG_CACHE_HOME to keep libraries in")
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock that the kernel lets go of when this process ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
