"""A policy and a critic whose parameters lie in one vector."""

from __future__ import annotations

import torch
from torch import Tensor

from walle.nets.critics import Critic
from walle.nets.policies import Policy


class ActorCritic:
    """One vector holds the policy's parameters, then the critic's."""

    def __init__(self, policy: Policy, critic: Critic) -> None:
        """Joins two networks of the same features."""
        self._policy, self._critic = policy, critic

    def init(self, generator: torch.Generator) -> Tensor:
        """Initial parameters, the policy's drawn first."""
        return torch.cat((self._policy.init(generator), self._critic.init(generator)))

    def split(self, vector: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The policy's and the critic's parameters, views of `vector`."""
        sizes = [self._policy.layout.size, self._critic.layout.size]
        policy, critic = torch.split(vector, sizes)
        return self._policy.layout.unflatten(policy), self._critic.layout.unflatten(critic)

    def policy_vector(self, vector: Tensor) -> Tensor:
        """The policy's part of `vector`, [P]."""
        return vector[: self._policy.layout.size]

    def value(self, vector: Tensor, features: Tensor) -> Tensor:
        """V of features [N, F] under the critic in `vector`: [N]."""
        return self._critic(self.split(vector)[1], features)
