"""State-value and action-value functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from walle.nets.mlp import MLP, Activation, Layout, Params


class Critic:
    """A state-value function, V(s)."""

    def __init__(self, obs_dim: int, hidden: Sequence[int], act: Activation) -> None:
        """An MLP with one output."""
        self._mlp = MLP("critic", (obs_dim, *hidden, 1), act)
        self.layout = Layout(self._mlp.shapes)

    def init(self, generator: torch.Generator) -> Tensor:
        """Orthogonal with gain sqrt(2), the last layer with gain 1."""
        return self.layout.flatten(self._mlp.init(generator, gain=math.sqrt(2), last_gain=1.0))

    def __call__(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [...]."""
        return self._mlp(params, obs).squeeze(-1)

    def without_gradient(self, params: Params, obs: Tensor) -> Tensor:
        """A quicker form of `__call__` where no gradient is needed: [N, O] -> [N]."""
        return self._mlp.without_gradient(params, obs).squeeze(-1)


class QFunctions:
    """K action-value functions of the same shape, Q_k(s, a), in one parameter vector."""

    def __init__(
        self, obs_dim: int, action_dim: int, hidden: Sequence[int], act: Activation, count: int
    ) -> None:
        """`count` is K: 2 for a clipped double Q, 1 for DDPG's."""
        sizes = (obs_dim + action_dim, *hidden, 1)
        self._mlps = [MLP(f"q{k}", sizes, act) for k in range(count)]
        self.layout = Layout({n: s for mlp in self._mlps for n, s in mlp.shapes.items()})

    def init(self, generator: torch.Generator) -> Tensor:
        """Parameters drawn as in `MLP.init_uniform`, for each function apart."""
        params = [mlp.init_uniform(generator) for mlp in self._mlps]
        return torch.cat([x.reshape(-1) for found in params for x in found.values()])

    def __call__(self, vector: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """Every Q_k of [B, O] and [B, A]: [K, B]."""
        params, x = self.layout.unflatten(vector), torch.cat((obs, action), -1)
        return torch.cat([mlp(params, x) for mlp in self._mlps], -1).T

    def first(self, vector: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """Q_1 alone: [B]."""
        params, x = self.layout.unflatten(vector), torch.cat((obs, action), -1)
        return self._mlps[0](params, x).squeeze(-1)
