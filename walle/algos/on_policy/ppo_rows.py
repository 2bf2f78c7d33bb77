"""The rows from which PPO learns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from walle.algos.on_policy.rows import SequenceInputs, StepInputs


class PPOBatch(NamedTuple):
    """N rows, each a step or a sequence of K steps.

    Attributes:
        inputs: inputs of the networks.
        action: [N, *A]; in sequences [N, K, *A].
        log_prob: [N] or [N, K], like all below; of the action under the policy before the update.
        advantage: of the action.
        target: of the value function.
        value: the value function's estimate before the update.
    """

    inputs: StepInputs | SequenceInputs
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor


class PolicyRows(NamedTuple):
    """The fields of `PPOBatch` that the policy learns from; [N, O] and [N, ...]."""

    obs: Tensor
    action: Tensor
    log_prob: Tensor
    advantage: Tensor


class ValueRows(NamedTuple):
    """The fields of `PPOBatch` that the critic learns from; [N, O] and [N]."""

    obs: Tensor
    target: Tensor
    value: Tensor


def policy_rows(batch: PPOBatch) -> PolicyRows:
    """What the policy learns from."""
    return PolicyRows(batch.inputs.obs, batch.action, batch.log_prob, batch.advantage)


def value_rows(batch: PPOBatch) -> ValueRows:
    """What the critic learns from."""
    return ValueRows(batch.inputs.obs, batch.target, batch.value)
