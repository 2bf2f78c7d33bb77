"""State-value and action-value functions, and a policy and a critic in one vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from walle.nets.mlp import MLP, Activation, Layout, OwnNet, Params
from walle.nets.policies import StochasticPolicy


class Critic:
    """A state-value function, V(s)."""

    def __init__(
        self, obs_dim: int, hidden: Sequence[int], act: Activation, own: OwnNet | None = None
    ) -> None:
        """An MLP with one output; `obs_dim` is the width of the features of `own`, if given."""
        self._mlp = MLP("critic", (obs_dim, *hidden, 1), act, own)
        self.layout = Layout(self._mlp.shapes)

    def init(self, generator: torch.Generator) -> Tensor:
        """Orthogonal with gain sqrt(2), the last layer with gain 1."""
        return self.layout.flatten(self._mlp.init(generator, 1.0))

    def __call__(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [...]."""
        return self._mlp(params, obs).squeeze(-1)


class PolicyAndCritic:
    """A policy and a critic in one vector: the policy's parameters, then the critic's."""

    def __init__(self, policy: StochasticPolicy, critic: Critic) -> None:
        self._policy, self._critic = policy, critic

    def split(self, vector: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The policy's and the critic's parameters, views of `vector`."""
        sizes = [self._policy.layout.size, self._critic.layout.size]
        policy, critic = torch.split(vector, sizes)
        return self._policy.layout.unflatten(policy), self._critic.layout.unflatten(critic)

    def value_function(self, vector: Tensor) -> Callable[[Tensor], Tensor]:
        """V under the critic in `vector`: features [N, F] -> [N]."""
        return partial(self._critic, self.split(vector)[1])


class QFunctions:
    """K action-value functions of the same shape, Q_k(s, a), in one parameter vector.

    Each may have a user's net in front, whose features replace the observation.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        act: Activation,
        count: int,
        own: OwnNet | None = None,
        outputs: int = 1,
    ) -> None:
        """`count` is K: 2 for a clipped double Q, 1 for DDPG's. `own` is as in `Critic`.

        If `outputs`, N, is above 1, a function has N logits instead of a value.
        """
        sizes = (obs_dim + action_dim, *hidden, outputs)
        self.mlps = [MLP(f"q{k}", sizes, act, own) for k in range(count)]
        shapes = [shape for mlp in self.mlps for shape in mlp.shapes.items()]
        self.layout = Layout(dict(shapes))

    def init(self, generator: torch.Generator) -> Tensor:
        """Parameters drawn as in `MLP.init_uniform`, separately for each function."""
        drawn = [mlp.init_uniform(generator) for mlp in self.mlps]
        return self.layout.flatten({name: x for params in drawn for name, x in params.items()})

    def __call__(self, vector: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """Every Q_k of [B, O] and [B, A]: [K, B]."""
        return self.logits(vector, obs, action).squeeze(-1)

    def logits(self, vector: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """All outputs at [B, O] and [B, A]: [K, B, N]."""
        params = self.layout.unflatten(vector)
        return torch.stack([mlp(params, obs, action) for mlp in self.mlps])

    def first(self, vector: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """Q_1 alone: [B]."""
        return self.mlps[0](self.layout.unflatten(vector), obs, action).squeeze(-1)
