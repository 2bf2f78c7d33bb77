"""A policy and a critic whose parameters lie in one vector."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from walle.nets.critics import Critic
from walle.nets.policies import Policy


class ActorCritic:
    """One vector holds the policy's parameters, then the critic's."""

    def __init__(self, policy: Policy, critic: Critic) -> None:
        """Joins two networks of the same features."""
        self._policy, self._critic = policy, critic

    def split(self, vector: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The policy's and the critic's parameters, views of `vector`."""
        sizes = [self._policy.layout.size, self._critic.layout.size]
        policy, critic = torch.split(vector, sizes)
        return self._policy.layout.unflatten(policy), self._critic.layout.unflatten(critic)

    def value_function(self, vector: Tensor) -> Callable[[Tensor], Tensor]:
        """V under the critic in `vector`, without a gradient: features [N, F] -> [N]."""
        return partial(self._critic.without_gradient, self.split(vector)[1])
