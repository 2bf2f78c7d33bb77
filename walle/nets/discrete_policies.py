"""Policies of several discrete actions at once, and the ε-greedy policy of action values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from walle.nets.mlp import Activation, Layout, OwnNet, Params
from walle.nets.policies import CategoricalPolicy, MLPPolicy, StochasticPolicy
from walle.types import AnyArray

if TYPE_CHECKING:
    from walle.nets.encoders import Encoder


class MultiCategoricalPolicy(CategoricalPolicy):
    """A independent choices, entry a with K_a actions: log π(a|s) = Σ_a log π_a(a_a|s).

    `dist` holds the log probabilities of the first entry's actions, then of the second's, and so
    on: Σ_a K_a numbers. Entropies and divergences are the sums of the entries'.
    """

    def __init__(
        self,
        obs_dim: int,
        actions: Sequence[int],
        hidden: Sequence[int],
        act: Activation,
        own: OwnNet | None = None,
    ) -> None:
        """`actions` are the numbers K_a."""
        self.counts = list(actions)
        super().__init__(obs_dim, sum(self.counts), hidden, act, own)

    def _entries(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.split(x, self.counts, -1)

    def _log_softmax(self, logits: Tensor) -> Tensor:
        return torch.cat([torch.log_softmax(x, -1) for x in self._entries(logits)], -1)

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """Uniform on [0, 1), [steps, A]."""
        return rng.random((steps, len(self.counts)), dtype=np.float32)

    def sample(self, dist_params: Tensor, scaled_noise: Tensor, out: Tensor) -> None:
        """Inverse transform of every entry, see `CategoricalPolicy.sample`."""
        for a, log_probs in enumerate(self._entries(dist_params)):
            below = log_probs.exp().cumsum(-1) <= scaled_noise[..., a : a + 1]
            out[..., a] = below.sum(-1).clamp_(max=self.counts[a] - 1)

    def mode(self, dist: Tensor) -> Tensor:
        """The likeliest action of every entry, [..., A]."""
        return torch.stack([x.argmax(-1) for x in self._entries(dist)], -1)

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """Σ_a log π_a of the entries of `action` [..., A]."""
        entries = zip(self._entries(dist), action.unbind(-1), strict=True)
        log_probs = [x.gather(-1, chosen.unsqueeze(-1)) for x, chosen in entries]
        return torch.cat(log_probs, -1).sum(-1)


class BernoulliPolicy(MLPPolicy, StochasticPolicy):
    """A independent switches, each 0 or 1. `dist` holds the A logits z, where p(1) = σ(z)."""

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """Uniform on [0, 1), [steps, A]."""
        return rng.random((steps, self.dist_params_size), dtype=np.float32)

    def sample(self, dist_params: Tensor, scaled_noise: Tensor, out: Tensor) -> None:
        """1 where the noise lies below σ(z)."""
        out.copy_(scaled_noise < torch.sigmoid(dist_params))

    def mode(self, dist: Tensor) -> Tensor:
        """1 where p(1) > 1/2, [..., A]."""
        return (dist > 0).long()

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """Σ_a log σ(z_a) where `action` is 1, log σ(-z_a) where it is 0."""
        return functional.logsigmoid(torch.where(action > 0, dist, -dist)).sum(-1)

    def entropy(self, dist: Tensor) -> Tensor:
        """Σ_a [softplus(z_a) - z_a σ(z_a)]."""
        return (functional.softplus(dist) - dist * torch.sigmoid(dist)).sum(-1)

    def kl(self, dist_p: Tensor, dist_q: Tensor) -> Tensor:
        """Σ_a [σ(z_p) (z_p - z_q) - softplus(z_p) + softplus(z_q)]."""
        gain = torch.sigmoid(dist_p) * (dist_p - dist_q)
        return (gain - functional.softplus(dist_p) + functional.softplus(dist_q)).sum(-1)


class EpsilonGreedyPolicy(MLPPolicy):
    """The action of the largest value Q(s, a); with probability ε any of the K, evenly drawn.

    ε is the last parameter, so that all samplers change it at the same version. `dist_params` are
    the K values, and `dist` has ε after them. The values are an MLP's, of what `encoder` sees if
    there are images.
    """

    def __init__(
        self,
        encoder: Encoder | None,
        obs_dim: int,
        actions: int,
        hidden: Sequence[int],
        act: Activation,
        own: OwnNet | None = None,
    ) -> None:
        """`obs_dim` is the width of the observation, or of the features of `encoder` or `own`."""
        super().__init__(obs_dim, actions, hidden, act, own)
        self.encoder = encoder
        seen = encoder.shapes if encoder else {}
        self.values_layout = Layout({**seen, **self._mlp.shapes})
        self.layout = Layout({**self.values_layout.shapes, "epsilon": (1,)})

    def init(self, generator: torch.Generator) -> Tensor:
        """The values' parameters, drawn as in `MLP.init_uniform`, then an ε of 1."""
        return torch.cat((self.init_values(generator), torch.ones(1)))

    def init_values(self, generator: torch.Generator) -> Tensor:
        """The parameters of the values alone."""
        seen = self.encoder.init(generator) if self.encoder else {}
        return self.values_layout.flatten({**seen, **self._mlp.init_uniform(generator)})

    def values(self, vector: Tensor, obs: Tensor) -> Tensor:
        """Q(s, a) of every action, [B, K], at [B, O], under the parameters of the values."""
        params = self.values_layout.unflatten(vector)
        return self._mlp(params, self.encoder(params, obs) if self.encoder else obs)

    def distribution(self, params: Params, dist_params: Tensor) -> Tensor:
        """The values, then ε."""
        return torch.cat((dist_params, params["epsilon"].expand(*dist_params.shape[:-1], 1)), -1)

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """Two uniform numbers on [0, 1), [steps, 2]: whether to explore, and which action."""
        return rng.random((steps, 2), dtype=np.float32)

    def scale_noise(self, params: Params, noise: Tensor) -> Tensor:
        """The number of an action where the first number lies below ε, else -1: [...]."""
        explores, which = noise.unbind(-1)
        action = (which * self.dist_params_size).floor().clamp_(max=self.dist_params_size - 1)
        return torch.where(explores < params["epsilon"], action, -1)

    def sample(self, dist_params: Tensor, scaled_noise: Tensor, out: Tensor) -> None:
        """The drawn action, or the one of the largest value."""
        greedy = dist_params.argmax(-1)
        out.copy_(torch.where(scaled_noise < 0, greedy, scaled_noise.long()))

    def mode(self, dist: Tensor) -> Tensor:
        """The action of the largest value: evaluation shows what was learned."""
        return dist[..., :-1].argmax(-1)

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """Log (ε / K + (1 - ε) [a = argmax Q])."""
        epsilon = dist[..., -1]
        greedy = (action == self.mode(dist)).to(dist.dtype)
        return torch.log(epsilon / self.dist_params_size + (1 - epsilon) * greedy)
