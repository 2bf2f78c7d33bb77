"""Networks as pure functions of one flat parameter vector.

A network never holds its parameters. It says how long its vector is, draws an initial one, and
computes from a given one, so the same function serves a sampler, an eager learner, a compiled
learner and `torch.func.grad`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from walle.errors import ConfigError, nearest
from walle.types import AnyArray

Params = Mapping[str, Tensor]
Activation = Callable[[Tensor], Tensor]
Forward = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "silu": functional.silu,
    "gelu": functional.gelu,
}
ACTING_ROWS = 16
_WIDTH = 16
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
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

    def init_uniform(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Weights and biases even within ±1 / sqrt(a layer's inputs), as torch's own layers."""
        params = {}
        for name in self.layers:
            bound = self.shapes[f"{name}.weight"][1] ** -0.5
            for part in (f"{name}.weight", f"{name}.bias"):
                even = torch.rand(self.shapes[part], generator=generator)
                params[part] = bound * (2 * even - 1)
        return params

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """[..., sizes[0]] -> [..., sizes[-1]]."""
        for name in self.layers:
            x = functional.linear(x, params[f"{name}.weight"], params[f"{name}.bias"])
            if name != self.layers[-1]:
                x = self.activation(x)
        return x

    def acting(self, params: Params, rows: int) -> Forward:
        """The same function for [rows, sizes[0]], its memory allocated once: for the hot loop.

        The result is overwritten by the next call. A row has the same bits wherever it lies, and
        whatever the number of rows, if that is a multiple of `ACTING_ROWS`: with fewer, Intel's
        processors add up in another order. Layers are made wider by zeros, to a multiple of 16, the
        last one if it needs it: AMD's need that, in narrow products over odd numbers of inputs, and
        so do odd activations.
        """
        layers = []
        inner = self.shapes[f"{self.layers[0]}.weight"][1]
        for name in self.layers:
            weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
            width = len(bias)
            if name != self.layers[-1] or inner % _WIDTH:
                width = -(-width // _WIDTH) * _WIDTH
            weight, bias = _grown(weight, width, inner), _grown(bias, width)
            out = torch.empty(rows, width)
            layers.append((weight.T, bias, out, _in_place(self.activation, out)))
            inner = width
        *hidden, (last_weight, last_bias, last_out, _) = layers
        result = last_out[:, : self.shapes[f"{self.layers[-1]}.bias"][0]]

        def forward(x: Tensor) -> Tensor:
            for weight, bias, out, activate in hidden:
                torch.addmm(bias, x, weight, out=out)
                activate()
                x = out
            torch.addmm(last_bias, x, last_weight, out=last_out)
            return result

        return forward


def _grown(x: Tensor, *shape: int) -> Tensor:
    """`x` with zeros after it, in every dimension up to `shape`; itself where it is that large."""
    if x.shape == shape:
        return x
    more = [(0, size - had) for size, had in zip(shape, x.shape, strict=True)]
    return functional.pad(x, [n for pair in reversed(more) for n in pair])


def _in_place(activate: Activation, x: Tensor) -> Callable[[], object]:
    """Applies the activation to `x` where it lies.

    NumPy's vectorised float32 tanh takes a seventh of the time of torch's, 0.7 against 4.8 us for
    32 x 64 numbers, and was within one unit in the last place of it.
    """
    if activate is torch.tanh:
        array = x.numpy()
        return partial(np.tanh, array, array)
    if activate is torch.relu:
        return partial(torch.relu_, x)
    return lambda: x.copy_(activate(x))


class ActingPolicy(Protocol):
    """A stochastic policy, as far as acting needs it. `dist` is one tensor, of width D.

    The `head`, of width H, is the part of `dist` that depends on the observation. Acting is split
    by how often a thing must be done: `prepare` and `complete` once a rollout, `acting` and `pick`
    once a step. An action is a deterministic function of the head and of noise drawn beforehand,
    so that a lane's actions depend on its own random stream alone.
    """

    layout: Layout
    head_size: int

    def init(self, generator: torch.Generator) -> Tensor:
        """An initial parameter vector, [layout.size]."""
        ...

    def acting(self, params: Params, rows: int) -> Forward:
        """[rows, O] -> head [rows, H], its memory allocated once."""
        ...

    def complete(self, params: Params, head: Tensor) -> Tensor:
        """The distribution [..., D] of a head [..., H]."""
        ...

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """What `steps` actions of one lane will need: [steps, *N]."""
        ...

    def prepare(self, params: Params, noise: Tensor) -> Tensor:
        """What `pick` needs of the noise [..., *N]."""
        ...

    def pick(self, head: Tensor, prepared: Tensor, out: Tensor) -> None:
        """Writes the actions [L, *A] of heads [L, H] into `out`."""
        ...

    def mode(self, dist: Tensor) -> Tensor:
        """The likeliest actions, [..., *A]."""
        ...

    def log_prob(self, dist: Tensor, action: Tensor) -> Tensor:
        """Log density or log probability of `action`: [...]."""
        ...


class Policy(ActingPolicy, Protocol):
    """A policy whose distributions can be compared: what on-policy learning needs."""

    def dist(self, params: Params, obs: Tensor) -> Tensor:
        """The distribution at observations [..., O]: [..., D]."""
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
        self.head_size = action_dim
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
        return self.complete(params, self._mlp(params, obs))

    def acting(self, params: Params, rows: int) -> Forward:
        """[rows, O] -> the means, [rows, A]."""
        return self._mlp.acting(params, rows)

    def complete(self, params: Params, head: Tensor) -> Tensor:
        """The means, then the log standard deviations."""
        return torch.cat((head, params["log_std"].expand_as(head)), -1)

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """Standard normal, [steps, A]."""
        return rng.standard_normal((steps, self.action_dim), dtype=np.float32)

    def prepare(self, params: Params, noise: Tensor) -> Tensor:
        """Std x noise."""
        return params["log_std"].exp() * noise

    def pick(self, head: Tensor, prepared: Tensor, out: Tensor) -> None:
        """Mean + std x noise."""
        torch.add(head, prepared, out=out)

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
    """Independent Gaussians whose means and scales both are an MLP's outputs.

    The head is `dist`: the A means, then the A logarithms of the standard deviations, within
    [-20, 2].
    """

    def __init__(
        self, obs_dim: int, action_dim: int, hidden: Sequence[int], act: Activation, log_std: float
    ) -> None:
        """`log_std` is where every action's log standard deviation starts, in every state."""
        super().__init__(obs_dim, action_dim, hidden, act, log_std)
        self.head_size = 2 * action_dim
        self._mlp = MLP("policy", (obs_dim, *hidden, 2 * action_dim), act)
        self.layout = Layout(self._mlp.shapes)

    def init(self, generator: torch.Generator) -> Tensor:
        """Orthogonal with gain sqrt(2), the last layer x0.01; its biases give the scale."""
        params = self._mlp.init(generator, gain=math.sqrt(2), last_gain=0.01)
        params[f"{self._mlp.layers[-1]}.bias"][self.action_dim :] = self._initial_log_std
        return self.layout.flatten(params)

    def complete(self, params: Params, head: Tensor) -> Tensor:  # noqa: ARG002
        """The head, its scales bounded."""
        mean, log_std = head.chunk(2, -1)
        return torch.cat((mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)), -1)

    def prepare(self, params: Params, noise: Tensor) -> Tensor:  # noqa: ARG002
        """The noise itself."""
        return noise

    def pick(self, head: Tensor, prepared: Tensor, out: Tensor) -> None:
        """Mean + std x noise."""
        mean, log_std = head.chunk(2, -1)
        std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).exp()
        torch.addcmul(mean, std, prepared, out=out)


class CategoricalPolicy:
    """One of K actions. `dist` holds the K log probabilities."""

    def __init__(self, obs_dim: int, actions: int, hidden: Sequence[int], act: Activation) -> None:
        """`actions` is K."""
        self.head_size = actions
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

    def acting(self, params: Params, rows: int) -> Forward:
        """[rows, O] -> the log probabilities, [rows, K]."""
        logits = self._mlp.acting(params, rows)
        return lambda x: torch.log_softmax(logits(x), -1)

    def complete(self, params: Params, head: Tensor) -> Tensor:  # noqa: ARG002
        """The head is the whole distribution."""
        return head

    def noise(self, rng: np.random.Generator, steps: int) -> AnyArray:
        """Uniform on [0, 1), [steps]."""
        return rng.random(steps, dtype=np.float32)

    def prepare(self, params: Params, noise: Tensor) -> Tensor:  # noqa: ARG002
        """The noise itself."""
        return noise

    def pick(self, head: Tensor, prepared: Tensor, out: Tensor) -> None:
        """Inverse transform: the number of cumulated probabilities that lie at or below noise."""
        below = head.exp().cumsum(-1) <= prepared.unsqueeze(-1)
        torch.sum(below, -1, out=out)
        out.clamp_(max=self.head_size - 1)  # rounding may leave the sum under 1

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
