"""Networks as pure functions of one flat parameter vector.

A network never holds its parameters. It says how long its vector is, draws an initial one, and
computes from a given one, so the same function serves a sampler, an eager learner, a compiled
learner and `torch.func.grad`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from walle.errors import ConfigError, nearest
from walle.types import AnyArray

Params = Mapping[str, Tensor]
Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "silu": functional.silu,
    "gelu": functional.gelu,
}
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def activation(name: str) -> Activation:
    """The activation of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in ACTIVATIONS:
        raise ConfigError(f"net.activation={name!r} is unknown; {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


class Layout:
    """Names and shapes of the parameters that lie one after the other in a flat vector."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """`shapes` in the order they lie in the vector."""
        self.shapes = dict(shapes)
        self._lengths = [math.prod(shape) for shape in self.shapes.values()]
        self.size = sum(self._lengths)

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of `vector` ([size]) under their names."""
        parts = torch.split(vector, self._lengths)
        named = zip(self.shapes.items(), parts, strict=True)
        return {name: part.view(shape) for (name, shape), part in named}

    def flatten(self, params: Params) -> Tensor:
        """The vector ([size]) that `unflatten` takes apart."""
        return torch.cat([params[name].reshape(-1) for name in self.shapes])


class MLP:
    """Fully connected layers: activation between them, none after the last."""

    def __init__(self, prefix: str, sizes: Sequence[int], activation: Activation) -> None:
        """`sizes` from the input's width to the output's; parameter names begin with `prefix`."""
        self.activation = activation
        self.layers = [f"{prefix}.{i}" for i in range(len(sizes) - 1)]
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, n_in, n_out in zip(self.layers, sizes, sizes[1:], strict=False):
            self.shapes[f"{name}.weight"] = (n_out, n_in)
            self.shapes[f"{name}.bias"] = (n_out,)

    def init(
        self, generator: torch.Generator, *, gain: float, last_gain: float
    ) -> dict[str, Tensor]:
        """Orthogonal weights (Saxe et al. 2014) scaled by `gain`, the last layer's by `last_gain`.

        Biases are zero.
        """
        params = {}
        for name in self.layers:
            scale = last_gain if name == self.layers[-1] else gain
            weight = torch.empty(self.shapes[f"{name}.weight"])
            torch.nn.init.orthogonal_(weight, gain=scale, generator=generator)
            params[f"{name}.weight"] = weight
            params[f"{name}.bias"] = torch.zeros(self.shapes[f"{name}.bias"])
        return params

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """[..., sizes[0]] -> [..., sizes[-1]]."""
        for name in self.layers:
            x = functional.linear(x, params[f"{name}.weight"], params[f"{name}.bias"])
            if name != self.layers[-1]:
                x = self.activation(x)
        return x


class Policy(Protocol):
    """A stochastic policy. Its distribution travels as one tensor, `dist`, of width D.

    Sampling is a deterministic function of `dist` and of noise drawn beforehand, so that every
    lane's actions depend on its own random stream alone.
    """

    layout: Layout
    dist_size: int

    def init(self, generator: torch.Generator) -> Tensor:
        """An initial parameter vector, [layout.size]."""
        ...

    def dist(self, params: Params, obs: Tensor) -> Tensor:
        """The distribution at observations [..., O]: [..., D]."""
        ...

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """What `steps` actions of one lane will need: [steps, *N]."""
        ...

    def sample(self, dist: Tensor, noise: Tensor) -> Tensor:
        """Actions [..., *A] from [..., D] and noise [..., *N]."""
        ...

    def mode(self, dist: Tensor) -> Tensor:
        """The likeliest actions, [..., *A]."""
        ...

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """Log density or log probability of `action`: [...]."""
        ...

    def entropy(self, dist: Tensor) -> Tensor:
        """Entropy in nats: [...]."""
        ...

    def kl(self, dist_p: Tensor, dist_q: Tensor) -> Tensor:
        """KL(p || q) in nats: [...]."""
        ...


class GaussianPolicy:
    """Independent Gaussians around an MLP's output, with a state-independent scale.

    `dist` holds the A means, then the A logarithms of the standard deviations.
    """

    def __init__(
        self, obs_dim: int, action_dim: int, hidden: Sequence[int], act: Activation, log_std: float
    ) -> None:
        """`log_std` is where every action's log standard deviation starts."""
        self.action_dim = action_dim
        self.dist_size = 2 * action_dim
        self._mlp = MLP("policy", (obs_dim, *hidden, action_dim), act)
        self._initial_log_std = log_std
        self.layout = Layout({**self._mlp.shapes, "log_std": (action_dim,)})

    def init(self, generator: torch.Generator) -> Tensor:
        """Orthogonal with gain sqrt(2), the last layer x0.01: near zero actions at first."""
        params = self._mlp.init(generator, gain=math.sqrt(2), last_gain=0.01)
        params["log_std"] = torch.full((self.action_dim,), self._initial_log_std)
        return self.layout.flatten(params)

    def dist(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [..., 2 A]."""
        mean = self._mlp(params, obs)
        return torch.cat((mean, params["log_std"].expand_as(mean)), -1)

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """Standard normal, [steps, A]."""
        return rng.standard_normal((steps, self.action_dim), dtype=np.float32)

    def sample(self, dist: Tensor, noise: Tensor) -> Tensor:
        """Mean + std x noise."""
        mean, log_std = dist.chunk(2, -1)
        return mean + log_std.exp() * noise

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


class CategoricalPolicy:
    """One of K actions. `dist` holds the K log probabilities."""

    def __init__(self, obs_dim: int, actions: int, hidden: Sequence[int], act: Activation) -> None:
        """`actions` is K."""
        self.dist_size = actions
        self._mlp = MLP("policy", (obs_dim, *hidden, actions), act)
        self.layout = Layout(self._mlp.shapes)

    def init(self, generator: torch.Generator) -> Tensor:
        """Orthogonal with gain sqrt(2), the last layer x0.01: near uniform at first."""
        return self.layout.flatten(
            self._mlp.init(generator, gain=math.sqrt(2), last_gain=0.01),
        )

    def dist(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [..., K]."""
        return torch.log_softmax(self._mlp(params, obs), -1)

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """Uniform on [0, 1), [steps]."""
        return rng.random(steps, dtype=np.float32)

    def sample(self, dist: Tensor, noise: Tensor) -> Tensor:
        """Inverse transform: the number of cumulated probabilities that lie at or below noise."""
        below = dist.exp().cumsum(-1) <= noise.unsqueeze(-1)
        return below.sum(-1).clamp(max=self.dist_size - 1)  # rounding may leave the sum under 1

    def mode(self, dist: Tensor) -> Tensor:
        """The action of the largest probability."""
        return dist.argmax(-1)

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """The entry of `action`."""
        return dist.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, dist: Tensor) -> Tensor:
        """-sum_k p log p."""
        return -(dist.exp() * dist).sum(-1)

    def kl(self, dist_p: Tensor, dist_q: Tensor) -> Tensor:
        """sum_k p (log p - log q)."""
        return (dist_p.exp() * (dist_p - dist_q)).sum(-1)


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
