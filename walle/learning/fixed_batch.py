"""Calls of a compiled function, which has one shape, with any number of rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from walle.learning.compiled import compile_function
from walle.learning.sharing.team import ALONE, Team


class FixedBatch:
    """A compiled function of parameters and any number of rows, computed in batches of one size."""

    def __init__(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        vector: Tensor,
        columns: int,
        rows: int = 0,
        description: str | None = None,
        team: Team = ALONE,
    ) -> None:
        """Compiles `function(vector [P], x [N, columns]) -> [N]`, whose rows are independent.

        `rows` is the expected N; 0 if it is not known. It chooses the size of the batches: many
        rows cost less in large batches, but few rows would leave most of a large batch empty.
        `description` describes the function, see `compile_function`. The batches are dealt to the
        learners of `team`.
        """
        self._team = team
        self._size = 1024 if rows >= 16 * 1024 else 256
        example = (vector, torch.zeros(self._size, columns, device=vector.device))
        described = None if description is None else f"batch of {description}"
        self._program = compile_function(lambda v, x: (function(v, x),), example, described)

    def __call__(self, vector: Tensor, x: Tensor) -> Tensor:
        """Maps [N, columns] to [N]; the last batch is padded with zeros."""
        rows = len(x)
        *full, last = torch.split(x.contiguous(), self._size)  # padding x would copy it
        batches = [*full, functional.pad(last, (0, 0, 0, -rows % self._size))]
        values = self._team.gather(
            len(batches), self._size, lambda i: self._program(vector, batches[i])[0]
        )
        return values.flatten()[:rows].clone()  # the memory is used again
