"""Large matrix products of compiled functions on a CPU, computed by oneDNN.

Torch multiplies float32 matrices on a CPU with MKL, which uses no AVX-512 on AMD processors. On an
EPYC, products of 256 x 256 matrices took 1.6 to 2 times as long with MKL as with oneDNN, which is
part of torch too. Small products stay with MKL, because oneDNN's set-up costs more than it saves;
and so do sums over many rows, as in gradients of weights, where MKL took up to a tenth less time.
Products of a column and a row become multiplications, which inductor fuses with later operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

SECOND_SIDE = 128  # the least length of the second longest of the three sides
MULTIPLICATIONS = 2**20  # the fewest multiplications of a large product
TALL = 4_000_000  # the fewest multiplications if only the number of rows is large
LONG_SUM = 2  # the least length of a long sum, over the longer side of the result


def is_quicker(cpuinfo: str) -> bool:
    """Whether oneDNN is quicker than MKL on the processor that `cpuinfo` describes."""
    return bool(torch._C._has_mkldnn) and "AMD" in cpuinfo and "avx512f" in cpuinfo


def decompositions(cpuinfo: str) -> dict[Any, Callable[..., Any]]:
    """The decompositions for `make_fx` that turn large products into oneDNN's linear layers."""
    if not is_quicker(cpuinfo):
        return {}
    return {torch.ops.aten.mm.default: _mm, torch.ops.aten.addmm.default: _addmm}


def _mm(a: Tensor, b: Tensor) -> Any:
    return a * b if a.shape[1] == 1 else _linear(a, b, None)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    if bias.dim() != 1 or beta != 1 or alpha != 1:
        return NotImplemented
    return _linear(a, b, bias)


def _linear(a: Tensor, b: Tensor, bias: Tensor | None) -> Any:
    """A B + bias as a linear layer with weights B'; NotImplemented leaves the product to torch."""
    sides = sorted((*a.shape, b.shape[1]))
    size = math.prod(sides)
    tall = size >= TALL and sides[0] >= 32 and a.shape[0] == sides[2]
    long_sum = a.shape[1] >= LONG_SUM * max(a.shape[0], b.shape[1])
    large = sides[1] >= SECOND_SIDE and size >= MULTIPLICATIONS and not long_sum
    if not (large or tall) or a.device.type != "cpu" or a.dtype != torch.float32:
        return NotImplemented
    return _operator()(a, b.t(), bias)


@cache
def _operator() -> Any:
    """A custom operator: inductor would fuse torch's own, and treat its weights as constants."""
    schema = "(Tensor x, Tensor weight, Tensor? bias) -> Tensor"

    @torch.library.custom_op("walle::linear", mutates_args=(), schema=schema)
    def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)

    @linear.register_fake
    def like(x: Tensor, weight: Tensor, _: Tensor | None) -> Tensor:
        return x.new_empty(x.shape[0], weight.shape[0])

    return torch.ops.walle.linear.default


@contextmanager
def lowered() -> Iterator[None]:
    """Makes inductor turn the operator into a call of oneDNN while the body runs."""
    if not torch._C._has_mkldnn:
        yield
        return
    from torch._inductor import lowering, mkldnn_ir
    from torch._inductor.ir import TensorBox

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        layer: Any = mkldnn_ir.LinearUnary  # its methods have no types
        return TensorBox.create(layer.create(x, weight, bias, "none", [], ""))

    with patch.dict(lowering.lowerings, {_operator(): linear}):
        yield
