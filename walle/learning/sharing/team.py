"""A team of learners that share memory: each computes its parts, and all get all parts.

All learners of a team run the same code on the same data. The work that they divide goes through
`Team.gather`: rows of numbers, each computed by one learner, for example the gradients of the
shards of a minibatch. Every learner gets all rows in order, so the results do not depend on the
number of learners.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 1024  # rows


class Team:
    """One learner's interface to all learners of a run; this class serves a single learner."""

    rank, size = 0, 1  # the learner's number (the agent's is 0), and how many learners there are

    def announce(self, data: tuple[Any, ...], env_steps: int) -> None:
        """Sends the other learners the arguments of the coming `Learnable.learn`."""

    def changed(self) -> None:
        """Announces that the agent's state changed outside `learn`, e.g. from a checkpoint."""

    def gather(self, count: int, width: int, compute: Callable[[int], Tensor]) -> Tensor:  # noqa: ARG002
        """Computes `count` rows together; every learner must call it, with equal sizes.

        Args:
            count: number of rows.
            width: numbers in a row, which are float32.
            compute: computes a row, [width], from its number; must return the same bits everywhere.

        Returns:
            [count, width], in a buffer that is reused: valid until the second following call.
        """
        return torch.stack([compute(row) for row in range(count)])

    def exchange(self, numbers: int) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Lets a library exchange up to `numbers` float32 with the other learners by itself.

        The context is a `shared_team.Exchange`, or None for a single learner. Within it, the
        library may exchange repeatedly; every learner must do so equally often.
        """
        return nullcontext()


ALONE = Team()


def map_rows(function: Callable[[Tensor], Tensor], x: Tensor, team: Team = ALONE) -> Tensor:
    """`function` of every row: [N, ...] -> [N]; the learners of `team` divide the rows.

    On a CPU, blocks of rows fit into the cache, and do not depend on the number of learners.
    """
    size = len(x) if x.is_cuda else BLOCK
    blocks = torch.split(x, size)

    def compute(row: int) -> Tensor:
        values = function(blocks[row])
        return values if len(values) == size else functional.pad(values, (0, size - len(values)))

    # Cloned, because the team reuses its buffer.
    return team.gather(len(blocks), size, compute).flatten()[: len(x)].clone()


def dealt(count: int, rank: int, size: int) -> range:
    """The rows that learner `rank` of `size` learners computes: a contiguous share."""
    return range(count * rank // size, count * (rank + 1) // size)
