"""Ahead-of-time compilation of pure functions of tensors, with a cache on disk.

A function is traced to a graph of tensor operations. The graph's hash names a package in the cache
directory. If the package does not exist, inductor turns the graph into C++, and the compiler turns
the C++ into a library. A later process with the same graph loads the library in milliseconds.

Tracing imports the compiler, which takes seconds. So a function may come with a description: a text
that, together with this package's code, determines its graph. The hash of both names a small file
that holds the package's name, and a later process loads the package without tracing.
"""

from __future__ import annotations

import hashlib
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from walle.learning import onednn
from walle.learning.cached_files import cpu, intact, seal, write
from walle.learning.quick_builds import quick_builds
from walle.system.files import TemporaryDirectory, cache_directory, environment
from walle.system.forkserver import without_collector
from walle.system.locks import locked_file

Function = Callable[..., Sequence[Tensor]]


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
        """Loads the package.

        `torch._inductor.aoti_load_package` makes the same loader, but takes two seconds to import
        the compiler and to ask for the processor, which is part of the package's name here.
        """
        self._unpacked = TemporaryDirectory(package.parent, ".unpacked")
        with self._unpacked.used():
            loader = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1)
        self._run = loader.boxed_run

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The function's outputs for contiguous `inputs`."""
        outputs: list[Tensor] = self._run(list(inputs))
        return outputs


@torch.no_grad()
def compile_function(
    function: Function, example: Sequence[Tensor], description: str | None = None
) -> Program:
    """Compiles `function` for inputs shaped like `example`; it must not change its inputs.

    Args:
        function: a pure function.
        example: its inputs.
        description: everything besides the inputs on which the function depends, if all its code is
            in this package; None traces the function every time.
    """
    directory = cache_directory()
    known = None if description is None else directory / f"{_name(description, example)}.package"
    program = known and _known(known)
    if program:
        return program
    example = [x.clone() for x in example]  # the tracer would merge inputs that are the same tensor
    # The tracer imports the compiler, which makes directories, and many objects that stay.
    with _torch_files(directory), without_collector(freeze=False):
        graph = _trace(function, example)
        path = directory / f"{_fingerprint(graph, example)}.pt2"
        with locked_file(path.with_suffix(".lock")):  # one process compiles, the others wait
            program = _loaded(graph, example, path)
    if known:
        write(known, path.name)
    return program


def _known(known: Path) -> Program | None:
    """The package whose name `known` holds; None if there is none, or a damaged one."""
    try:
        name = known.read_text()
        package = known.with_name(name)
        return Program(package) if Path(name).name == name and intact(package) else None
    except (OSError, ValueError, RuntimeError):
        return None


def _loaded(graph: torch.fx.GraphModule, example: Sequence[Tensor], path: Path) -> Program:
    if not intact(path):
        _build(graph, example, path)
        seal(path)
    return Program(path)


def _trace(function: Function, example: Sequence[Tensor]) -> torch.fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    table = {torch.ops.aten.tanh.default: tanh, **onednn.decompositions(cpu())}
    # Fake tensors have shapes without values; a constant, such as an own net's, keeps its value.
    how: dict[str, Any] = {"tracing_mode": "fake", "_allow_non_fake_inputs": True}
    return make_fx(lambda *x: tuple(function(*x)), table, **how)(*example)


def _build(graph: torch.fx.GraphModule, example: Sequence[Tensor], path: Path) -> None:
    with ExitStack() as stack:
        from torch._inductor import aot_compile
        from torch._inductor.package.package import package_aoti

        building = TemporaryDirectory(path.parent, ".building")
        stack.callback(building.remove)
        stack.enter_context(building.used())
        on_cpu = all(x.device.type == "cpu" for x in example)
        headers = building.path / "include"
        headers.mkdir()
        stack.enter_context(onednn.lowered())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # torch warns about its own code
        settings = stack.enter_context(quick_builds(headers, on_cpu=on_cpu))
        # Not by torch.export.export and aoti_compile_and_package: they trace the graph once more.
        settings["aot_inductor.package"] = True
        files: Any = aot_compile(graph, tuple(example), options=settings)
        package = building.path / path.name
        package_aoti(str(package), files)
        os.replace(package, path)


def _fingerprint(graph: torch.fx.GraphModule, example: Sequence[Tensor]) -> str:
    """A hash of the inputs of the build: the graph, its constants, the shapes, the machine."""
    digest = hashlib.sha256(graph.code.encode())
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            constant = getattr(graph, node.target)
            digest.update(repr((constant.dtype, constant.tolist())).encode())
    digest.update(_shapes_and_machine(example))
    return digest.hexdigest()[:32]


def _name(description: str, example: Sequence[Tensor]) -> str:
    """A hash of everything that determines the graph and its library, for a described function."""
    digest = hashlib.sha256(_code() + description.encode())
    digest.update(repr(torch.get_default_dtype()).encode())
    digest.update(_shapes_and_machine(example))
    return digest.hexdigest()[:32]


@cache
def _code() -> bytes:
    """A hash of the names and the contents of this package's modules."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(content)} ".encode() + content)
    return digest.digest()


def _shapes_and_machine(example: Sequence[Tensor]) -> bytes:
    shapes = [(tuple(x.shape), x.dtype, x.device.type) for x in example]
    return repr((shapes, _machine())).encode()


def _machine() -> tuple[Any, ...]:
    compiler = os.environ.get("CXX", "g++")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return torch.__version__, torch.get_num_threads(), compiler, gpu, platform.machine(), cpu()


@contextmanager
def _torch_files(directory: Path) -> Iterator[None]:
    """Makes torch keep in `directory` what it compiles, for example to test the processor.

    By default it loads such libraries from a directory below the world-writable /tmp, whoever made
    that directory.
    """
    headers = directory / "inductor" / "precompiled_headers"
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TRITON_CACHE_DIR": str(directory / "triton"),
    }
    with ExitStack() as stack:
        stack.enter_context(environment(variables))
        from torch._inductor import codecache  # makes its directory when it is imported

        # Torch computes these two when it is imported, and never from TORCHINDUCTOR_CACHE_DIR.
        for name, path in (("_HEADER_DIR", headers), ("_HEADER_LOCK_DIR", headers / "locks")):
            stack.enter_context(patch.object(codecache, name, str(path), create=True))
        yield
