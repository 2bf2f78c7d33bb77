"""State-value and action-value functions, and a policy and a critic in one vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from walle.nets.mlp import MLP, Activation, Layout, Params
from walle.nets.own import NamedNet, OwnNet
from walle.nets.policies import StochasticPolicy


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


class OwnCritic(Critic):
    """A critic of the features of an encoder of its own."""

    def __init__(self, net: OwnNet, critic: Critic) -> None:
        """`critic` has F inputs."""
        self._encoder, self._critic = NamedNet(net), critic
        self.layout = Layout({**self._encoder.shapes, **critic.layout.shapes})

    def init(self, generator: torch.Generator) -> Tensor:
        """The encoder's parameters, then the critic's."""
        return torch.cat((self._encoder.vector(generator), self._critic.init(generator)))

    def __call__(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [...]."""
        return self._critic(params, self._encoder(params, obs))

    def without_gradient(self, params: Params, obs: Tensor) -> Tensor:
        """[N, O] -> [N]."""
        return self._critic.without_gradient(params, self._encoder(params, obs))


class PolicyAndCritic:
    """One vector holds the policy's parameters, then the critic's."""

    def __init__(self, policy: StochasticPolicy, critic: Critic) -> None:
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
        return torch.cat([x.reshape(-1) for drawn in params for x in drawn.values()])

    def __call__(self, vector: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """Every Q_k of [B, O] and [B, A]: [K, B]."""
        params, x = self.layout.unflatten(vector), torch.cat((obs, action), -1)
        return torch.cat([mlp(params, x) for mlp in self._mlps], -1).T

    def first(self, vector: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """Q_1 alone: [B]."""
        params, x = self.layout.unflatten(vector), torch.cat((obs, action), -1)
        return self._mlps[0](params, x).squeeze(-1)


class OwnQFunctions(QFunctions):
    """Action-value functions of features and actions, each with an encoder of its own.

    The vector holds the first function's encoder and layers, then those of the second, and so on.
    """

    def __init__(self, net: OwnNet, q: QFunctions, count: int) -> None:
        """K = `count` functions; `q` is one of F inputs besides the actions."""
        self._encoder, self._q, self._count = NamedNet(net), q, count
        self._single = Layout({**self._encoder.shapes, **q.layout.shapes})
        names = [(f"{k}.{name}", name) for k in range(count) for name in self._single.shapes]
        self.layout = Layout({full: self._single.shapes[name] for full, name in names})

    def init(self, generator: torch.Generator) -> Tensor:
        """The parameters of every function, drawn for each function apart."""
        draws = (self._encoder.vector, self._q.init)
        return torch.cat([draw(generator) for _ in range(self._count) for draw in draws])

    def __call__(self, vector: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """Every Q_k of [B, O] and [B, A]: [K, B]."""
        parts = vector.chunk(self._count)
        return torch.stack([self._value(part, obs, action) for part in parts])

    def first(self, vector: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """Q_1 alone: [B]."""
        return self._value(vector.chunk(self._count)[0], obs, action)

    def _value(self, vector: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        features = self._encoder(self._single.unflatten(vector), obs)
        return self._q.first(vector[-self._q.layout.size :], features, action)
