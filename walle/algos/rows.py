"""How a round becomes the rows of minibatches: single steps, or sequences for a memory.

Networks are functions of features. For single steps the feature is the observation; with a memory
it is the memory's state.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from walle.algos.experience import Experience
from walle.algos.networks import NetSettings
from walle.nets.mlp import Params
from walle.nets.policies import Policy
from walle.nets.recurrent import GRU, memory_of


class Rows(Protocol):
    """The way a round is cut into rows."""

    minibatch_size: int

    def features(self, params: Params, inputs: Any) -> Tensor:
        """Features of a minibatch, [rows, ..., F]; the loss is differentiated through them."""
        ...

    def seen(self, params: Params, experience: Experience) -> Experience:
        """A round with features in the place of its observations."""
        ...

    def inputs(self, experience: Experience, seen: Experience) -> Any:
        """What `features` needs of a round, as rows; `seen` is that of the method above."""
        ...

    def as_rows(self, column: Tensor) -> Tensor:
        """A column of the round, [T, L, ...], as rows."""
        ...


class StepInputs(NamedTuple):
    """Observations, [N, O]."""

    obs: Tensor


class Steps:
    """Every step is a row, and its observation the feature."""

    def __init__(self, minibatch_size: int) -> None:
        """`minibatch_size` rows a gradient step."""
        self.minibatch_size = minibatch_size

    def features(self, params: Params, inputs: StepInputs) -> Tensor:  # noqa: ARG002
        """The observations, [N, O]."""
        return inputs.obs

    def seen(self, params: Params, experience: Experience) -> Experience:  # noqa: ARG002
        """The round itself."""
        return experience

    def inputs(self, experience: Experience, seen: Experience) -> StepInputs:  # noqa: ARG002
        """The observations, [T L, O]."""
        return StepInputs(self.as_rows(experience.obs))

    def as_rows(self, column: Tensor) -> Tensor:
        """[T, L, ...] -> [T L, ...]."""
        return column.flatten(0, 1)


class SequenceInputs(NamedTuple):
    """N sequences of K steps.

    Attributes:
        obs: [N, K, O].
        began: [N, K] an episode begins with this step.
        state: [N, H] the memory before the first step.
    """

    obs: Tensor
    began: Tensor
    state: Tensor


class Sequences:
    """A row is K steps of a lane in their order, and the memory's state before the first step.

    That state comes from unrolling the whole round with the parameters that also give the
    advantages, from the state in which the samplers began the round. Gradients reach back to the
    beginning of the sequence.
    """

    def __init__(self, memory: GRU, steps: int, minibatch_size: int) -> None:
        """K is `steps`; `minibatch_size` counts steps too."""
        self._memory, self._steps = memory, steps
        self.minibatch_size = minibatch_size // steps

    def features(self, params: Params, inputs: SequenceInputs) -> Tensor:
        """[N, K, O] -> [N, K, H]."""
        obs, began = inputs.obs.transpose(0, 1), inputs.began.transpose(0, 1)
        return self._memory.unroll(params, obs, began, inputs.state).transpose(0, 1)

    def seen(self, params: Params, experience: Experience) -> Experience:
        """States of the memory, [T L + M, H].

        A successor that the policy never saw is one more step from the state before it.
        """
        x = experience
        state = self._memory.unroll(params, x.obs, x.began, x.state)
        unseen = self._memory.step(params, x.states[x.ended.numel() :], state[x.needs_final_obs])
        return x._replace(states=torch.cat((state.flatten(0, 1), unseen)))

    def inputs(self, experience: Experience, seen: Experience) -> SequenceInputs:
        """Sequences of observations, and the memory's state before each."""
        x, K = experience, self._steps
        state = torch.cat((x.state.unsqueeze(0), seen.obs[K - 1 : -1 : K]))
        return SequenceInputs(self.as_rows(x.obs), self.as_rows(x.began), state.flatten(0, 1))

    def as_rows(self, column: Tensor) -> Tensor:
        """[T, L, ...] -> [T/K L, K, ...]."""
        sequences = column.view(-1, self._steps, *column.shape[1:])
        return sequences.transpose(1, 2).flatten(0, 1)


def make_rows(policy: Policy, net: NetSettings, minibatch_size: int) -> Rows:
    """Sequences where the policy has a memory, steps where it has none."""
    memory = memory_of(policy)
    if memory is None:
        return Steps(minibatch_size)
    assert net.memory is not None
    return Sequences(memory, net.memory.sequence, minibatch_size)
