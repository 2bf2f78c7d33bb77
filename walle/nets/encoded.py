"""Networks of the user's own: an encoder before the policy and before the critic.

An encoder turns observations into features, and takes the place that the memory has with `net=gru`:
policy and critic are feed-forward functions of the features. Each has an encoder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from walle.nets.critics import Critic
from walle.nets.mlp import Forward, Layout, Params
from walle.nets.policies import Policy

_PREFIX = "encoder."


class OwnEncoder(Protocol):
    """What a class named by `net.name=module:Class` is: a pure function of its parameters.

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


class _Encoded:
    """An encoder and the names of its parameters in a layout with others."""

    def __init__(self, encoder: OwnEncoder) -> None:
        self._encoder = encoder
        self.shapes = {f"{_PREFIX}{name}": shape for name, shape in encoder.shapes.items()}

    def init(self, generator: torch.Generator) -> Tensor:
        drawn = self._encoder.init(generator)
        named = {f"{_PREFIX}{name}": value for name, value in drawn.items()}
        return Layout(self.shapes).flatten(named)

    def __call__(self, params: Params, obs: Tensor) -> Tensor:
        own = {name: params[f"{_PREFIX}{name}"] for name in self._encoder.shapes}
        return self._encoder(own, obs)


class FeaturePolicy:
    """A `Policy` of an encoder's features, which the policy `readout` turns into distributions."""

    def __init__(self, make_encoder: Callable[[], OwnEncoder], make_readout: Callable[[], Policy]):
        """Both functions are picklable; `make_readout` makes a policy of F inputs."""
        self._encoder = _Encoded(make_encoder())
        self._readout = readout = make_readout()
        self.dist_params_size = readout.dist_params_size
        self.layout = Layout({**self._encoder.shapes, **readout.layout.shapes})
        self.distribution, self.noise = readout.distribution, readout.noise
        self.scale_noise, self.sample = readout.scale_noise, readout.sample
        self.mode, self.log_prob = readout.mode, readout.log_prob
        self.entropy, self.kl = readout.entropy, readout.kl

    def init(self, generator: torch.Generator) -> Tensor:
        """The encoder's parameters, then the readout's."""
        return torch.cat((self._encoder.init(generator), self._readout.init(generator)))

    def dist(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [..., D]."""
        return self._readout.dist(params, self._encoder(params, obs))

    def acting(self, params: Params, rows: int) -> Forward:
        """[rows, O] -> [rows, H]."""
        forward = self._readout.acting(params, rows)
        return lambda x: forward(self._encoder(params, x))


class FeatureCritic(Critic):
    """A critic of the features of an encoder of its own."""

    def __init__(self, encoder: OwnEncoder, critic: Critic) -> None:
        """`critic` has F inputs."""
        self._encoder, self._critic = _Encoded(encoder), critic
        self.layout = Layout({**self._encoder.shapes, **critic.layout.shapes})

    def init(self, generator: torch.Generator) -> Tensor:
        """The encoder's parameters, then the critic's."""
        return torch.cat((self._encoder.init(generator), self._critic.init(generator)))

    def __call__(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [...]."""
        return self._critic(params, self._encoder(params, obs))
