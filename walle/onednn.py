"""Large matrix products by oneDNN in compiled functions, on processors where MKL is slow at them.

On AMD's processors MKL leaves AVX-512 unused. oneDNN uses it: on one core of an EPYC it took half
of MKL's time for a product of 1,000 x 64 by 64 x 64, and for larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

FROM = 4_000_000  # multiplications; below that its longer call costs more than it saves
Table = dict[Any, Callable[..., Any]]


def is_quicker(cpuinfo: str) -> bool:
    """Whether this is such a processor, by what the kernel tells of it."""
    there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return bool(there) and "AMD" in cpuinfo and "avx512f" in cpuinfo


def decompositions() -> Table:
    """For tracing: `aten.addmm` and `aten.mm` by oneDNN where they are large enough."""
    return {torch.ops.aten.addmm.default: _addmm, torch.ops.aten.mm.default: _mm}


def _addmm(bias: Tensor, x: Tensor, w: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    if (beta, alpha) != (1, 1) or bias.dim() != 1 or not _is_large(x, w):
        return NotImplemented
    return torch.ops.mkldnn._linear_pointwise(x, w.t(), bias, "none", [], "")


def _mm(x: Tensor, w: Tensor) -> Any:
    if not _is_large(x, w):
        return NotImplemented
    return torch.ops.mkldnn._linear_pointwise(x, w.t(), None, "none", [], "")


def _is_large(x: Tensor, w: Tensor) -> bool:
    """[M, K] x [K, N]. Where K is larger than M, as in weights' gradients, copies cost too much."""
    (m, k), n = x.shape, w.shape[1]
    suits = x.device.type == "cpu" and x.dtype == torch.float32
    return suits and m * k * n >= FROM and m >= k and n >= 32


@contextmanager
def weights_may_change() -> Iterator[None]:
    """Has inductor compile them in the body: its own way takes the weights for constants."""
    from torch._inductor import lowering
    from torch._inductor.fx_passes import mkldnn_fusion

    mkldnn_fusion._mkldnn_fusion_init()  # registers its own ways, once: they must not come later
    op = torch.ops.mkldnn._linear_pointwise
    ours: Table = {op.default: _lower, op.binary: _lower_binary, op: _lower}
    before = {key: lowering.lowerings[key] for key in ours if key in lowering.lowerings}
    lowering.lowerings.update({key: ours[key] for key in before})
    try:
        yield
    finally:
        lowering.lowerings.update(before)


def _lower(x: Any, w: Any, bias: Any, attr: str, scalars: Any, algorithm: str) -> Any:
    from torch._inductor.ir import TensorBox
    from torch._inductor.mkldnn_ir import LinearUnary

    made = LinearUnary.create(  # type: ignore[no-untyped-call]
        x, w, bias, attr, scalars, algorithm
    )
    return TensorBox.create(made)


def _lower_binary(x: Any, y: Any, w: Any, bias: Any, attr: str) -> Any:
    from torch._inductor.ir import TensorBox
    from torch._inductor.mkldnn_ir import LinearBinary

    made = LinearBinary.create(x, y, w, bias, attr)  # type: ignore[no-untyped-call]
    return TensorBox.create(made)
