"""What the libraries of this folder have in common, seen from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import Array, c_int
from typing import Any

import torch
from torch import Tensor

from walle.nets.mlp import Layout

ACTIVATIONS = {"tanh": 0, "relu": 1}


def widths(layout: Layout) -> list[int]:
    """The widths of a network's layers, from its inputs to its outputs."""
    weights = [shape for name, shape in layout.shapes.items() if name.endswith(".weight")]
    return [weights[0][1], *(shape[0] for shape in weights)]


def ints(values: Sequence[int]) -> Array[c_int]:
    """The numbers as an array of C."""
    return (c_int * len(values))(*values)


def address(x: Tensor) -> int:
    """Where the numbers of a contiguous tensor lie.

    Raises:
        TypeError: it does not hold float32 on the CPU.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu" or not x.is_contiguous():
        raise TypeError(f"expected contiguous float32 on the CPU, got {x.dtype} on {x.device}")
    return x.data_ptr()


def flags(x: Tensor) -> int:
    """Where the bytes of a contiguous tensor of truth values lie.

    Raises:
        TypeError: it holds something else, or not on the CPU.
    """
    if x.dtype != torch.bool or x.device.type != "cpu" or not x.is_contiguous():
        raise TypeError(f"expected contiguous bool on the CPU, got {x.dtype} on {x.device}")
    return x.data_ptr()


def declare(library: Any, functions: Mapping[str, tuple[Any, Sequence[Any]]]) -> Any:
    """Gives the functions of a library their types: name -> (result, arguments)."""
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
