"""Policies of actions in [-1, 1] for learning from a replay buffer, and ε-greedy policies.

Each is a `policies.ActingPolicy`. For learning, those of actions in [-1, 1] also have a
differentiable function from observations to actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from walle.nets.mlp import Activation, Layout, OwnNet, Params
from walle.nets.policies import LOG_SQRT_2PI, LOG_STD_MAX, LOG_STD_MIN, ActingPolicy, MLPPolicy
from walle.types import AnyArray

if TYPE_CHECKING:
    from walle.nets.features import Encoder

_LARGEST = 1 - 2**-24  # the float32 below 1, whose inverse hyperbolic tangent is still finite


class SquashedGaussianPolicy(MLPPolicy):
    """a = tanh(μ + σ ε), where an MLP computes μ and log σ (Haarnoja et al. 2018b, appendix C).

    `dist_params` and `dist` hold the A means μ, then the A logarithms of σ. log σ is kept within
    [-20, 2].
    """

    per_entry, is_uniform = 2, True

    def draw(self, vector: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, A] and their log densities [B] at [B, O], for standard normal noise [B, A].

        log π(a|s) = Σ_a [log N(u; μ, σ) - log(1 - tanh² u)]. The last term is computed as
        2 (log 2 - u - softplus(-2 u)), which stays exact where tanh saturates.
        """
        return self.squash(self.mlp(self.layout.unflatten(vector), obs), noise)

    def squash(self, dist_params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """As `draw`, for the MLP's outputs [B, 2 A]."""
        mean, log_std = dist_params.chunk(2, -1)
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        raw = mean + log_std.exp() * noise
        return torch.tanh(raw), _squashed_log_prob(raw, noise, log_std)

    def sample(self, dist_params: Tensor, scaled_noise: Tensor, out: Tensor) -> None:
        """tanh(μ + σ ε)."""
        mean, log_std = dist_params.chunk(2, -1)
        std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp()
        torch.tanh(torch.addcmul(mean, std, scaled_noise), out=out)

    def mode(self, dist: Tensor) -> Tensor:
        """The median of every entry, tanh μ."""
        return torch.tanh(dist[..., : self.action_dim])

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """Log density of `action`; ±1, caused by rounding, counts as the next float inside."""
        mean, log_std = dist.chunk(2, -1)
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        raw = torch.atanh(action.clamp(-_LARGEST, _LARGEST))
        return _squashed_log_prob(raw, (raw - mean) * torch.exp(-log_std), log_std)


def _squashed_log_prob(raw: Tensor, z: Tensor, log_std: Tensor) -> Tensor:
    """Log density [...] of tanh(raw), where raw = μ + σ z; all arguments are [..., A]."""
    gaussian = -(0.5 * z * z + log_std + LOG_SQRT_2PI)
    log_slope = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
    return (gaussian - log_slope).sum(-1)


class DeterministicPolicy(MLPPolicy):
    """a = tanh μ(s); collecting adds Gaussian noise of a constant scale and clips the sum to ±1.

    `dist_params` and `dist` hold the A entries of tanh μ.
    """

    is_uniform = True

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        act: Activation,
        exploration: float,
        own: OwnNet | None = None,
    ) -> None:
        """`exploration` is the standard deviation of the noise while collecting, above 0."""
        super().__init__(obs_dim, action_dim, hidden, act, own)
        self._std = exploration

    def act(self, vector: Tensor, obs: Tensor) -> Tensor:
        """Actions [B, A] at [B, O], without noise."""
        return self.dist(self.layout.unflatten(vector), obs)

    def _output(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def scale_noise(self, params: Params, noise: Tensor) -> Tensor:  # noqa: ARG002
        """Standard deviation x noise."""
        return self._std * noise

    def sample(self, dist_params: Tensor, scaled_noise: Tensor, out: Tensor) -> None:
        """clip(tanh μ + noise, -1, 1)."""
        torch.add(dist_params, scaled_noise, out=out).clamp_(-1.0, 1.0)

    def mode(self, dist: Tensor) -> Tensor:
        """The action without noise."""
        return dist

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """Log density of the Gaussian at `action`, whether or not `action` was clipped."""
        z = (action - dist) / self._std
        return -(0.5 * z * z + math.log(self._std) + LOG_SQRT_2PI).sum(-1)


class RandomFirst:
    """A policy that draws uniformly from [-1, 1] while its last parameter, `random`, is 1.

    This switch travels with the parameters, so that all samplers turn it off at the same version.
    Both kinds of noise are drawn at every step, so that a lane's stream does not depend on that
    version.
    """

    def __init__(self, policy: ActingPolicy, action_dim: int) -> None:
        """`policy` acts once `random` is 0."""
        self.policy, self.action_dim, self.acting = policy, action_dim, policy.acting
        self.dist_params_size = policy.dist_params_size
        self.layout = Layout({**policy.layout.shapes, "random": (1,)})

    def init(self, generator: torch.Generator) -> Tensor:
        """The inner policy's parameters, then 1."""
        return torch.cat((self.policy.init(generator), torch.ones(1)))

    def dist(self, params: Params, obs: Tensor) -> Tensor:
        """The inner policy's distribution, then the switch."""
        return self.distribution(params, self.policy.dist(params, obs))

    def distribution(self, params: Params, dist_params: Tensor) -> Tensor:
        """The inner policy's distribution, then the switch."""
        dist = self.policy.distribution(params, dist_params)
        return torch.cat((dist, params["random"].expand(*dist.shape[:-1], 1)), -1)

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """The inner policy's noise, then A uniform numbers from [-1, 1): [steps, N + A]."""
        noise = self.policy.noise(rng, steps)
        uniform = rng.random((steps, self.action_dim), dtype=np.float32)
        return np.concatenate((noise, 2 * uniform - 1), -1, dtype=np.float32)

    def scale_noise(self, params: Params, noise: Tensor) -> Tensor:
        """Inner policy's noise; `random` x uniform numbers, [..., A]; 1 - `random`, [..., 1]."""
        width = noise.shape[-1] - self.action_dim
        inner, uniform = torch.split(noise, [width, self.action_dim], -1)
        random = params["random"]
        kept = (1 - random).expand(*noise.shape[:-1], 1)
        return torch.cat((self.policy.scale_noise(params, inner), random * uniform, kept), -1)

    def sample(self, dist_params: Tensor, scaled_noise: Tensor, out: Tensor) -> None:
        """The inner policy's action, or the uniform numbers."""
        width = scaled_noise.shape[-1] - self.action_dim - 1
        inner, uniform, kept = torch.split(scaled_noise, [width, self.action_dim, 1], -1)
        self.policy.sample(dist_params, inner, out)
        out.mul_(kept).add_(uniform)

    def mode(self, dist: Tensor) -> Tensor:
        """The inner policy's mode: evaluation shows what was learned."""
        return self.policy.mode(dist[..., :-1])

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """The inner policy's log density, or -A log 2 for uniform numbers."""
        random = dist[..., -1]
        learned = self.policy.log_prob(dist[..., :-1], action)
        return torch.where(random > 0, -self.action_dim * math.log(2), learned)


class EpsilonGreedyPolicy(MLPPolicy):
    """The action of the largest value Q(s, a); with probability ε any of the K, uniformly drawn.

    ε is the last parameter, so that all samplers change it at the same version. `dist_params` are
    the K values, and `dist` has ε after them. An MLP computes the values, from the features of
    `encoder` if there are images.
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
        self.values_layout = Layout({**seen, **self.mlp.shapes})
        self.layout = Layout({**self.values_layout.shapes, "epsilon": (1,)})

    def init(self, generator: torch.Generator) -> Tensor:
        """The values' parameters, drawn as in `MLP.init_uniform`, then an ε of 1."""
        return torch.cat((self.init_values(generator), torch.ones(1)))

    def init_values(self, generator: torch.Generator) -> Tensor:
        """The parameters of the values alone."""
        seen = self.encoder.init(generator) if self.encoder else {}
        return self.values_layout.flatten({**seen, **self.mlp.init_uniform(generator)})

    def values(self, vector: Tensor, obs: Tensor) -> Tensor:
        """Q(s, a) of every action, [B, K], at [B, O], under the parameters of the values."""
        params = self.values_layout.unflatten(vector)
        return self.mlp(params, self.encoder(params, obs) if self.encoder else obs)

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
        """The drawn action, or the action of the largest value."""
        greedy = dist_params.argmax(-1)
        out.copy_(torch.where(scaled_noise < 0, greedy, scaled_noise.long()))

    def mode(self, dist: Tensor) -> Tensor:
        """The action of the largest value: evaluation shows what was learned."""
        return dist[..., :-1].argmax(-1)

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """Log (ε / K + (1 - ε) [a = argmax Q]); NaN if a value is not finite."""
        values, epsilon = dist[..., :-1], dist[..., -1]
        greedy = (action == self.mode(dist)).to(dist.dtype)
        chance = epsilon / self.dist_params_size + (1 - epsilon) * greedy
        return torch.log(chance) + (0 * values).sum(-1)
