"""A compiled function has one shape: calling it for any number of rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from walle.learning.compiled import compile_function


class FixedBatch:
    """A function of parameters and rows, compiled for one number of rows, for any number."""

    def __init__(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        vector: Tensor,
        columns: int,
        rows: int = 0,
    ) -> None:
        """Compiles `function(vector [P], x [N, columns]) -> [N]`, which treats each row alone.

        `rows` is the N to expect, if it is known: many rows cost less in large batches, few would
        leave most of one empty.
        """
        self._size = 1024 if rows >= 16 * 1024 else 256
        example = (vector, torch.zeros(self._size, columns, device=vector.device))
        self._program = compile_function(lambda v, x: (function(v, x),), example)

    def __call__(self, vector: Tensor, x: Tensor) -> Tensor:
        """[N, columns] -> [N]; the last batch is filled up with zeros."""
        rows = len(x)
        padded = functional.pad(x, (0, 0, 0, -rows % self._size))
        values = [self._program(vector, batch)[0] for batch in torch.split(padded, self._size)]
        return torch.cat(values)[:rows]
