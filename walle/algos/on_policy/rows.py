"""The rows of minibatches: single steps, or sequences of steps for a policy with a memory.

Networks are functions of features [..., F]: the memory's state, the image encoder's output or,
without either, the observation itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from walle.algos.on_policy.experience import Experience
from walle.nets.factory import NetSettings
from walle.nets.features import GRU, Encoder
from walle.nets.mlp import Params
from walle.nets.policies import StochasticPolicy, encoder_of, memory_of


class StepRows:
    """Rows of one step each; the features are the observation."""

    def __init__(self, minibatch_size: int) -> None:
        """A minibatch has `minibatch_size` steps."""
        self.minibatch_size = minibatch_size

    def features(self, params: Params, inputs: Any) -> Tensor:  # noqa: ARG002
        """Features [N, ..., F] of a minibatch of N `inputs`; differentiable."""
        features: Tensor = inputs
        return features

    def with_features(self, params: Params, experience: Experience) -> Experience:  # noqa: ARG002
        """The round with features instead of its observations."""
        return experience

    def inputs(self, experience: Experience, featured: Experience) -> Any:  # noqa: ARG002
        """The rows that `features` takes; `featured` is the result of `with_features`."""
        return self.as_rows(experience.obs)

    def as_rows(self, column: Tensor) -> Tensor:
        """Cuts a field of the round, [T, L, ...], into rows: here [T L, ...]."""
        return column.flatten(0, 1)


class ImageRows(StepRows):
    """Rows of one step each; the features are the output of the policy's encoder."""

    def __init__(self, encoder: Encoder, minibatch_size: int) -> None:
        """A minibatch has `minibatch_size` steps."""
        super().__init__(minibatch_size)
        self._encoder = encoder

    def features(self, params: Params, inputs: Any) -> Tensor:
        """Features [N, F] of rows of bytes."""
        return self._encoder(params, inputs)

    def with_features(self, params: Params, experience: Experience) -> Experience:
        """The round with features [T L + M, F] instead of observations."""
        return experience._replace(states=self._encoder.in_chunks(params, experience.states))


class SequenceInputs(NamedTuple):
    """N sequences of K steps."""

    obs: Tensor  # [N, K, O]
    began: Tensor  # [N, K] an episode begins with this step
    state: Tensor  # [N, H] the memory before the first step


class SequenceRows(StepRows):
    """Rows of K consecutive steps of a lane, with the memory's state before the first step.

    The state is computed by unrolling the round from the samplers' first state, with the parameters
    that also give the advantages. Gradients reach back to the start of the sequence.
    """

    def __init__(self, memory: GRU, steps: int, minibatch_size: int) -> None:
        """A row has `steps` (K) steps; a minibatch has `minibatch_size` steps."""
        super().__init__(minibatch_size // steps)
        self._memory, self._steps = memory, steps

    def features(self, params: Params, inputs: Any) -> Tensor:
        """Unrolls the memory over N sequences: [N, K, O] -> [N, K, H]."""
        obs, began = inputs.obs.transpose(0, 1), inputs.began.transpose(0, 1)
        states = self._memory.unroll(params, obs, began, inputs.state)
        return self._memory.with_rest(states, obs).transpose(0, 1)

    @torch.no_grad()
    def with_features(self, params: Params, experience: Experience) -> Experience:
        """The round with the memory's states [T L + M, H] instead of observations.

        The state of a successor that the policy never saw is computed by one more step.
        """
        x = experience
        state = self._memory.unroll(params, x.obs, x.began, x.state)
        unseen = self._memory.step(params, x.states[x.ended.numel() :], state[x.needs_final_obs])
        states = torch.cat((state.flatten(0, 1), unseen))
        return x._replace(states=self._memory.with_rest(states, x.states))

    def inputs(self, experience: Experience, featured: Experience) -> SequenceInputs:
        """Sequences of observations, and the memory's state before each."""
        x, K = experience, self._steps
        before = featured.obs[K - 1 : -1 : K, :, : self._memory.units]
        state = torch.cat((x.state.unsqueeze(0), before))
        return SequenceInputs(self.as_rows(x.obs), self.as_rows(x.began), state.flatten(0, 1))

    def as_rows(self, column: Tensor) -> Tensor:
        """Reshapes [T, L, ...] to [T/K L, K, ...]."""
        sequences = column.view(-1, self._steps, *column.shape[1:])
        return sequences.transpose(1, 2).flatten(0, 1)


def make_rows(policy: StochasticPolicy, net: NetSettings, minibatch_size: int) -> StepRows:
    """Sequences for a policy with a memory, else single steps."""
    memory, encoder = memory_of(policy), encoder_of(policy)
    if encoder is not None:
        return ImageRows(encoder, minibatch_size)
    if memory is None:
        return StepRows(minibatch_size)
    assert net.memory is not None
    return SequenceRows(memory, net.memory.sequence, minibatch_size)
