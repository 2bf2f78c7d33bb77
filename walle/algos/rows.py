"""How a round becomes the rows that minibatches are made of: steps, or sequences for a memory."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from walle.algos.base import Experience, NetSettings
from walle.learning.sgd import Batch
from walle.nets.mlp import Params
from walle.nets.policies import Policy
from walle.nets.recurrent import GRU, memory_of


class Rows(Protocol):
    """Networks are functions of features; this says what the features are, and of which rows."""

    minibatch_size: int

    def features(self, params: Params, batch: Batch) -> Tensor:
        """Those of a minibatch, [rows, ..., F]; the loss is differentiated through it."""
        ...

    def seen(self, params: Params, experience: Experience) -> Experience:
        """A round with features in the place of its observations."""
        ...

    def cut(self, columns: Batch, experience: Experience, seen: Experience) -> Batch:
        """Columns of the round, [T, L, ...], as rows, with what `features` needs besides."""
        ...


class Steps:
    """Every step is a row, and its observation the feature."""

    def __init__(self, minibatch_size: int) -> None:
        """Rows a gradient step."""
        self.minibatch_size = minibatch_size

    def features(self, params: Params, batch: Batch) -> Tensor:  # noqa: ARG002
        """[B, O]."""
        return batch["obs"]

    def seen(self, params: Params, experience: Experience) -> Experience:  # noqa: ARG002
        """The round itself."""
        return experience

    def cut(
        self,
        columns: Batch,
        experience: Experience,  # noqa: ARG002
        seen: Experience,  # noqa: ARG002
    ) -> Batch:
        """[T L, ...]."""
        return {name: x.flatten(0, 1) for name, x in columns.items()}


class Sequences:
    """A row is K steps of a lane in their order, and the memory's state before the first of them.

    That state comes from unrolling the whole round, from the state in which the samplers began it,
    with the parameters that advantages come from. Gradients reach back to the sequence's beginning.
    """

    def __init__(self, memory: GRU, steps: int, minibatch_size: int) -> None:
        """K is `steps`; `minibatch_size` counts steps too."""
        self._memory, self._steps = memory, steps
        self.minibatch_size = minibatch_size // steps

    def features(self, params: Params, batch: Batch) -> Tensor:
        """[S, K, O] -> [S, K, H]."""
        obs, began = batch["obs"].transpose(0, 1), batch["began"].transpose(0, 1)
        return self._memory.unroll(params, obs, began, batch["state"]).transpose(0, 1)

    def seen(self, params: Params, experience: Experience) -> Experience:
        """States of the memory, [T L + M, H].

        A successor that the policy never saw is one more step from the state before it.
        """
        x = experience
        state = self._memory.unroll(params, x.obs, x.began, x.state)
        unseen = self._memory.step(params, x.states[x.ended.numel() :], state[x.needs_final_obs])
        return x._replace(states=torch.cat((state.flatten(0, 1), unseen)))

    def cut(self, columns: Batch, experience: Experience, seen: Experience) -> Batch:
        """[T/K L, K, ...] of each column, `began` [T/K L, K] and `state` [T/K L, H]."""
        x, K = experience, self._steps
        timed = {**columns, "began": x.began}
        state = torch.cat((x.state.unsqueeze(0), seen.obs[K - 1 : -1 : K]))
        return {name: self._pieces(column) for name, column in timed.items()} | {
            "state": state.flatten(0, 1)
        }

    def _pieces(self, column: Tensor) -> Tensor:
        """[T, L, ...] -> [T/K L, K, ...]."""
        pieces = column.view(-1, self._steps, *column.shape[1:])
        return pieces.transpose(1, 2).flatten(0, 1)


def make_rows(policy: Policy, net: NetSettings, minibatch_size: int) -> Rows:
    """Sequences where the policy has a memory, steps where it has none."""
    memory = memory_of(policy)
    if memory is None:
        return Steps(minibatch_size)
    assert net.memory is not None
    return Sequences(memory, net.memory.sequence, minibatch_size)
