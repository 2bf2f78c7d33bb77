"""Networks of the user's own: an encoder before the policy and before every critic.

An encoder turns observations into features, and takes the place that the memory has with `net=gru`:
policy and critics are feed-forward functions of the features, Q(s, a) of the features and the
action. Each has an encoder of its own, with parameters of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from walle.nets.critics import Critic, QFunctions
from walle.nets.mlp import MLP, Forward, Layout, Params
from walle.nets.policies import Policy
from walle.types import ActionSpace

_PREFIX = "encoder."


class OwnNet(Protocol):
    """The interface of a class named by `net.name=module:Class`: a pure function of parameters.

    It is made from its settings and the width of an observation, `Class(settings, obs_dim)`. The
    class attribute `settings` is the dataclass of its settings, derived from
    `walle.config.schemas.NetConfig`; without one it is `NetConfig` itself.

    Attributes:
        features: F, the width of the features.
        shapes: the shape of every parameter, by name.
    """

    features: int
    shapes: Mapping[str, tuple[int, ...]]

    def init(self, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Initial parameters, drawn from `generator` alone."""

    def __call__(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [..., F]; each row must depend on its own observation alone."""


class OwnNetworks(Protocol):
    """The interface of a class that makes whole networks instead of an encoder.

    `net.name=module:Class` may name such a class for on-policy algorithms. It is never
    instantiated; both are static methods of `settings` (see `OwnNet`), the width of an observation
    and the space of actions. Samplers receive `policy` by pickle.
    """

    @staticmethod
    def policy(settings: Any, obs_dim: int, action_space: ActionSpace) -> Policy:
        """Makes the policy."""

    @staticmethod
    def critic(settings: Any, obs_dim: int, action_space: ActionSpace) -> Critic:
        """Makes the state-value function."""


MakeNet = Callable[[], OwnNet]


class _Named:
    """An encoder and the names of its parameters in a layout with others."""

    def __init__(self, encoder: OwnNet, prefix: str = _PREFIX) -> None:
        self._encoder, self._prefix = encoder, prefix
        self.shapes = {f"{prefix}{name}": shape for name, shape in encoder.shapes.items()}

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = self._encoder.init(generator)
        return {f"{self._prefix}{name}": value for name, value in drawn.items()}

    def vector(self, generator: torch.Generator) -> Tensor:
        drawn = self.init(generator)  # of an encoder without parameters nothing
        return torch.cat([torch.empty(0), *(drawn[name].reshape(-1) for name in self.shapes)])

    def __call__(self, params: Params, obs: Tensor) -> Tensor:
        own = {name: params[f"{self._prefix}{name}"] for name in self._encoder.shapes}
        return self._encoder(own, obs)


class OwnPolicy:
    """A `Policy` of an encoder's features, which the policy `readout` turns into distributions."""

    def __init__(self, make_encoder: MakeNet, make_readout: Callable[[], Policy]):
        """Both functions are picklable; `make_readout` makes a policy of F inputs."""
        self._encoder = _Named(make_encoder())
        self._readout = readout = make_readout()
        self.dist_params_size = readout.dist_params_size
        self.layout = Layout({**self._encoder.shapes, **readout.layout.shapes})
        self.distribution, self.noise = readout.distribution, readout.noise
        self.scale_noise, self.sample = readout.scale_noise, readout.sample
        self.mode, self.log_prob = readout.mode, readout.log_prob
        self.entropy, self.kl = readout.entropy, readout.kl

    def init(self, generator: torch.Generator) -> Tensor:
        """The encoder's parameters, then the readout's."""
        return torch.cat((self._encoder.vector(generator), self._readout.init(generator)))

    def dist(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [..., D]."""
        return self._readout.dist(params, self._encoder(params, obs))

    def acting(self, params: Params, rows: int) -> Forward:
        """[rows, O] -> [rows, H]."""
        forward = self._readout.acting(params, rows)
        return lambda x: forward(self._encoder(params, x))


class OwnCritic(Critic):
    """A critic of the features of an encoder of its own."""

    def __init__(self, encoder: OwnNet, critic: Critic) -> None:
        """`critic` has F inputs."""
        self._encoder, self._critic = _Named(encoder), critic
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


class Layers(Protocol):
    """What off-policy policies ask of their layers; an `MLP` and an `EncodedMLP` have it."""

    shapes: dict[str, tuple[int, ...]]

    def init_uniform(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Initial parameters."""

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """[..., O] -> outputs."""

    def acting(self, params: Params, rows: int) -> Forward:
        """The same function for the hot loop."""


class EncodedMLP:
    """An MLP of the features of an encoder of its own; it is used as the MLP alone would be."""

    def __init__(self, encoder: OwnNet, mlp: MLP) -> None:
        """`mlp` has F inputs."""
        self._encoder, self._mlp = _Named(encoder), mlp
        self.shapes = {**self._encoder.shapes, **mlp.shapes}

    def init_uniform(self, generator: torch.Generator) -> dict[str, Tensor]:
        """The encoder's parameters, then the MLP's (`MLP.init_uniform`)."""
        return {**self._encoder.init(generator), **self._mlp.init_uniform(generator)}

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """[..., O] -> the MLP's outputs."""
        return self._mlp(params, self._encoder(params, x))

    def acting(self, params: Params, rows: int) -> Forward:
        """[rows, O] -> the MLP's outputs, in memory that the next call overwrites."""
        forward = self._mlp.acting(params, rows)
        return lambda x: forward(self._encoder(params, x))


def behind(make_encoder: MakeNet | None, mlp: MLP) -> Layers:
    """`mlp` of an encoder's features; without an encoder the MLP itself."""
    return mlp if make_encoder is None else EncodedMLP(make_encoder(), mlp)


class OwnQFunctions(QFunctions):
    """Action-value functions of features and actions, each with an encoder of its own.

    The vector holds the first function's encoder and layers, then those of the second, and so on.
    """

    def __init__(self, encoder: OwnNet, q: QFunctions, count: int) -> None:
        """K = `count` functions; `q` is one of F inputs besides the actions."""
        self._encoder, self._q, self._count = _Named(encoder), q, count
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
