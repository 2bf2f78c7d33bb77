"""The moments of observations and their normalisation in C++ (`normalize.cpp`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import c_float, c_long, c_void_p

import numpy as np
import torch
from torch import Tensor

from walle.learning.native.library import load
from walle.nets.normalize import Moments
from walle.types import FloatArray

_TYPES = {
    "moments": (None, (c_void_p, c_long, c_long, c_void_p, c_void_p)),
    "rows": (None, (c_void_p, c_long, c_long, c_void_p, c_void_p, c_float, c_void_p)),
}


class NativeNormalizer:
    """Computes the same as the normalisers of observations, several times faster."""

    def __init__(self) -> None:
        """Compiles and loads the library; raises CompilerError if compiling fails."""
        self._library = load("normalize", _TYPES)

    def moments(self, samples: FloatArray) -> Moments:
        """See `walle.nets.normalize.batch_moments`; samples are [N, K]."""
        samples = _rows(samples, samples.shape[-1])
        mean, squares = np.empty(samples.shape[1]), np.empty(samples.shape[1])
        arrays = samples.ctypes.data, *samples.shape, mean.ctypes.data, squares.ctypes.data
        self._library.normalize_moments(*arrays)
        return mean, squares

    def normalized(
        self, parts: Sequence[FloatArray], mean: FloatArray, inv_std: FloatArray, clip: float | None
    ) -> Tensor:
        """See `walle.algos.on_policy.experience.normalized`; parts are [Nᵢ, O]."""
        rows = torch.empty(sum(map(len, parts)), len(mean))
        bound, first = math.inf if clip is None else clip, rows.data_ptr()
        moments = [_rows(x[None], len(mean)) for x in (mean, inv_std)]
        for part in parts:
            x = _rows(part, len(mean))
            self._library.normalize_rows(
                *(x.ctypes.data, *x.shape, *(m.ctypes.data for m in moments), bound, first)
            )
            first += x.nbytes
        return rows


def _rows(x: FloatArray, width: int) -> FloatArray:
    """The array in the library's form: contiguous float32 [N, width]."""
    if x.ndim != 2 or x.shape[1] != width:
        raise ValueError(f"expected the shape [N, {width}], got {x.shape}")
    return np.ascontiguousarray(x, np.float32)
