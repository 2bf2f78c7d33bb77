"""The interfaces of policies, and the policies of on-policy learning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from walle.nets.mlp import MLP, Activation, Forward, Layout, OwnNet, Params
from walle.types import AnyArray

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class ActingPolicy(Protocol):
    """The part of a stochastic policy that acting needs. `dist` is one tensor, of width D.

    The distribution's parameters, `dist_params` of width H, are the part of `dist` that depends on
    the observation. `scale_noise` and `distribution` are called once a rollout, `acting` and
    `sample` once a step. An action is a deterministic function of `dist_params` and of noise drawn
    beforehand, so a lane's actions depend on its own random stream alone.
    """

    layout: Layout
    dist_params_size: int

    def init(self, generator: torch.Generator) -> Tensor:
        """An initial parameter vector, [layout.size]."""

    def dist(self, params: Params, obs: Tensor) -> Tensor:
        """The distribution at observations [..., O]: [..., D]."""

    def acting(self, params: Params, rows: int) -> Forward:
        """[rows, O] -> parameters [rows, H]; allocates its buffer once."""

    def distribution(self, params: Params, dist_params: Tensor) -> Tensor:  # noqa: ARG002
        """The distribution [..., D] of parameters [..., H]; by default they are the same."""
        return dist_params

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """The random numbers for `steps` actions of one lane: [steps, *N]."""

    def scale_noise(self, params: Params, noise: Tensor) -> Tensor:  # noqa: ARG002
        """The noise [..., *N] in the form that `sample` takes; by default unchanged."""
        return noise

    def sample(self, dist_params: Tensor, scaled_noise: Tensor, out: Tensor) -> None:
        """Writes the actions [L, *A] of dist_params [L, H] into `out`."""

    def mode(self, dist: Tensor) -> Tensor:
        """The likeliest actions, [..., *A]."""

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """Log density or log probability of `action`: [...]."""


class StochasticPolicy(ActingPolicy, Protocol):
    """A policy whose distributions can be compared, as on-policy learning needs."""

    def entropy(self, dist: Tensor) -> Tensor:
        """Entropy in nats: [...]."""

    def kl(self, dist_p: Tensor, dist_q: Tensor) -> Tensor:
        """KL(p || q) in nats: [...]."""


class FeaturePolicy:
    """A `StochasticPolicy` of features [..., F] that a memory or an encoder computes.

    The policy `readout` turns features into a distribution and draws actions from it. The
    parameters of the memory or the encoder precede the readout's.
    """

    def __init__(
        self, readout: StochasticPolicy, *, encoder: Any = None, memory: Any = None
    ) -> None:
        """Takes a `features.Encoder` or a `features.GRU`."""
        self.encoder, self.memory, self.readout = encoder, memory, readout
        self._before: Any = encoder or memory
        self.layout = Layout({**self._before.shapes, **readout.layout.shapes})
        self.dist_params_size = readout.dist_params_size
        self.dist, self.acting = readout.dist, readout.acting
        self.distribution, self.noise = readout.distribution, readout.noise
        self.scale_noise, self.sample = readout.scale_noise, readout.sample
        self.mode, self.log_prob = readout.mode, readout.log_prob
        self.entropy, self.kl = readout.entropy, readout.kl

    def init(self, generator: torch.Generator) -> Tensor:
        """An initial vector; a memory's parameters are drawn after the readout's."""
        before = Layout(self._before.shapes)
        if self.memory:
            readout = self.readout.init(generator)
            return torch.cat((before.flatten(self.memory.init(generator)), readout))
        encoder = before.flatten(self.encoder.init(generator))
        return torch.cat((encoder, self.readout.init(generator)))


def memory_of(policy: object) -> Any:
    """The policy's memory (`features.GRU`); None without one."""
    return getattr(policy, "memory", None)


def encoder_of(policy: object) -> Any:
    """The policy's convolutions (`features.Encoder`); None without images."""
    return getattr(policy, "encoder", None)


class MLPPolicy(ActingPolicy):
    """A policy whose distribution an MLP computes; its noise is standard normal."""

    per_entry = 1  # the MLP's outputs for each entry of an action
    is_uniform = False  # whether initial parameters are uniform

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        act: Activation,
        own: OwnNet | None = None,
    ) -> None:
        """A policy from `obs_dim` inputs, or from features of `own`, to A = `action_dim` entries.

        `hidden` are the widths of the hidden layers, and `act` is the function between layers.
        """
        self.action_dim = action_dim  # A; K for a choice between K actions
        self.dist_params_size = self.per_entry * action_dim
        self.mlp = MLP("policy", (obs_dim, *hidden, self.dist_params_size), act, own)
        self.layout = Layout(self.mlp.shapes)

    def init(self, generator: torch.Generator) -> Tensor:
        """Uniform (`MLP.init_uniform`) or orthogonal, with a small last layer."""
        mlp = self.mlp
        drawn = mlp.init_uniform(generator) if self.is_uniform else mlp.init(generator, 0.01)
        return Layout(mlp.shapes).flatten(drawn)

    def _output(self, x: Tensor) -> Tensor:
        """The distribution's parameters [..., H] from the MLP's outputs."""
        return x

    def dist(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [..., D]."""
        return self.distribution(params, self._output(self.mlp(params, obs)))

    def acting(self, params: Params, rows: int) -> Forward:
        """[rows, O] -> [rows, H]."""
        forward = self.mlp.acting(params, rows)
        return lambda x: self._output(forward(x))

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """Standard normal, [steps, A]."""
        return rng.standard_normal((steps, self.action_dim), dtype=np.float32)


class GaussianPolicy(MLPPolicy, StochasticPolicy):
    """Independent Gaussians around an MLP's output, with a state-independent scale.

    `dist` holds the A means, then the A logarithms of the standard deviations.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        act: Activation,
        log_std: float,
        own: OwnNet | None = None,
    ) -> None:
        """`log_std` is the initial log standard deviation of all A = `action_dim` entries."""
        super().__init__(obs_dim, action_dim, hidden, act, own)
        self._initial_log_std = torch.full((action_dim,), log_std)
        if self.per_entry == 1:
            self.layout = Layout({**self.mlp.shapes, "log_std": (action_dim,)})

    def init(self, generator: torch.Generator) -> Tensor:
        """The MLP's parameters as in `MLPPolicy`, then the log standard deviations."""
        return torch.cat((super().init(generator), self._initial_log_std))

    def distribution(self, params: Params, dist_params: Tensor) -> Tensor:
        """The means, then the log standard deviations."""
        return torch.cat((dist_params, self.log_std(params).expand_as(dist_params)), -1)

    def log_std(self, params: Params) -> Tensor:
        """The log standard deviations, [A]."""
        return params["log_std"]

    def scale_noise(self, params: Params, noise: Tensor) -> Tensor:
        """Standard deviation x noise."""
        return self.log_std(params).exp() * noise

    def sample(self, dist_params: Tensor, scaled_noise: Tensor, out: Tensor) -> None:
        """Mean + std x noise."""
        torch.add(dist_params, scaled_noise, out=out)

    def mode(self, dist: Tensor) -> Tensor:
        """The mean."""
        return dist[..., : self.action_dim]

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """-sum_a [(a - mean)^2 / (2 std^2) + log std + log sqrt(2 pi)]."""
        mean, log_std = dist.chunk(2, -1)
        z = (action - mean) * torch.exp(-log_std)
        return -(0.5 * z * z + log_std + LOG_SQRT_2PI).sum(-1)

    def entropy(self, dist: Tensor) -> Tensor:
        """sum_a [log std + 1/2 + log sqrt(2 pi)]."""
        return (dist[..., self.action_dim :] + (0.5 + LOG_SQRT_2PI)).sum(-1)

    def kl(self, dist_p: Tensor, dist_q: Tensor) -> Tensor:
        """sum_a [log (sq / sp) + (sp^2 + (mp - mq)^2) / (2 sq^2) - 1/2]."""
        mean_p, log_p = dist_p.chunk(2, -1)
        mean_q, log_q = dist_q.chunk(2, -1)
        ratio = torch.exp(2 * (log_p - log_q))
        distance = ((mean_p - mean_q) * torch.exp(-log_q)).square()
        return (log_q - log_p + 0.5 * (ratio + distance - 1)).sum(-1)


class StateScalePolicy(GaussianPolicy):
    """Independent Gaussians; one MLP computes both means and scales.

    `dist` holds the A means, then the A logarithms of the standard deviations, within [-20, 2];
    `dist_params` is `dist` before the logarithms are bounded.
    """

    per_entry = 2

    def init(self, generator: torch.Generator) -> Tensor:
        """Orthogonal with gain sqrt(2), the last layer with 0.01; its biases set the scale."""
        vector = MLPPolicy.init(self, generator)
        vector[-self.action_dim :] = self._initial_log_std
        return vector

    def distribution(self, params: Params, dist_params: Tensor) -> Tensor:  # noqa: ARG002
        """`dist_params`, its scales bounded."""
        mean, log_std = dist_params.chunk(2, -1)
        return torch.cat((mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)), -1)

    def scale_noise(self, params: Params, noise: Tensor) -> Tensor:  # noqa: ARG002
        """The noise itself."""
        return noise

    def sample(self, dist_params: Tensor, scaled_noise: Tensor, out: Tensor) -> None:
        """Mean + std x noise."""
        mean, log_std = dist_params.chunk(2, -1)
        std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp()
        torch.addcmul(mean, std, scaled_noise, out=out)


class CategoricalPolicy(MLPPolicy, StochasticPolicy):
    """Chooses one of K actions. `dist` holds the K log probabilities, from the MLP's outputs."""

    def _output(self, x: Tensor) -> Tensor:
        return torch.log_softmax(x, -1)

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """Uniform on [0, 1), [steps]."""
        return rng.random(steps, dtype=np.float32)

    def sample(self, dist_params: Tensor, scaled_noise: Tensor, out: Tensor) -> None:
        """Inverse transform: counts the cumulative probabilities at or below the noise."""
        below = dist_params.exp().cumsum(-1) <= scaled_noise.unsqueeze(-1)
        torch.sum(below, -1, out=out)
        out.clamp_(max=self.dist_params_size - 1)  # rounding may leave the sum under 1

    def mode(self, dist: Tensor) -> Tensor:
        """The action of the largest probability."""
        return dist.argmax(-1)

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """The log probability of `action`."""
        return dist.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, dist: Tensor) -> Tensor:
        """-sum_k p log p."""
        return -(dist.exp() * dist).sum(-1)

    def kl(self, dist_p: Tensor, dist_q: Tensor) -> Tensor:
        """sum_k p (log p - log q)."""
        return (dist_p.exp() * (dist_p - dist_q)).sum(-1)


class MultiCategoricalPolicy(CategoricalPolicy):
    """Several (A) independent choices, entry a with K_a actions: log π(a|s) = Σ_a log π_a(a_a|s).

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
        super().__init__(obs_dim, sum(actions), hidden, act, own)
        self.counts = list(actions)

    def _entries(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.split(x, self.counts, -1)

    def _output(self, x: Tensor) -> Tensor:
        return torch.cat([torch.log_softmax(entry, -1) for entry in self._entries(x)], -1)

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
    """Several (A) independent switches. `dist` holds the A logits z, where p(1) = σ(z)."""

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
