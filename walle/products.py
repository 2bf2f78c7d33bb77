"""Large matrix products of compiled functions, on a CPU, through oneDNN.

Torch multiplies float32 matrices on a CPU by MKL, which holds back on processors that are not
Intel's: products of 256 x 256 took 1.6 to 2 times as long as by oneDNN, which torch brings too, on
an AMD EPYC with AVX-512. Small products stay where they are: there oneDNN's set-up costs more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

SMALLEST_SIDE = 128


def decompositions() -> dict[Any, Callable[..., Any]]:
    """For `make_fx`: products as oneDNN's linear layers, where they are large and torch has it."""
    if not torch._C._has_mkldnn:
        return {}
    return {torch.ops.aten.mm.default: _mm, torch.ops.aten.addmm.default: _addmm}


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return _linear(a, b, None)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if bias.dim() != 1 or beta != 1 or alpha != 1:
        return NotImplemented
    return _linear(a, b, bias)


def _linear(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """A B + bias as the layer of inputs A and weights B'; NotImplemented leaves it as it was."""
    large = min(*a.shape, *b.shape) >= SMALLEST_SIDE
    if not large or a.device.type != "cpu" or a.dtype != torch.float32:
        return NotImplemented
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b.t(), bias, "none", [], "")
    return product


@contextmanager
def lowered() -> Iterator[None]:
    """Has inductor take layers whose weights are arguments: its own rule is for constants alone."""
    from torch._inductor import lowering, mkldnn_ir
    from torch._inductor.ir import TensorBox

    def linear(x: Any, weight: Any, bias: Any, *attributes: Any) -> Any:
        return TensorBox.create(mkldnn_ir.LinearUnary.create(x, weight, bias, *attributes))

    rule = {torch.ops.mkldnn._linear_pointwise.default: linear} if torch._C._has_mkldnn else {}
    with patch.dict(lowering.lowerings, rule):
        yield
