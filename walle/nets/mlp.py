"""Networks as pure functions of one flat parameter vector.

A network never holds its parameters. It knows the length of its vector, draws an initial vector,
and computes outputs from a given vector. The same function serves samplers, learners and
`torch.func.grad`.
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
from walle.system.machine import memory_bytes

Params = Mapping[str, Tensor]
Activation = Callable[[Tensor], Tensor]
Forward = Callable[[Tensor], Tensor]


def norm_relu(x: Tensor) -> Tensor:
    """max(0, (x - mean) / sqrt(variance + 1e-5)) over a row's units: [..., N] -> [..., N].

    This is layer normalisation (Ba et al. 2016) without scale and shift, then ReLU.
    """
    return torch.relu(functional.layer_norm(x, x.shape[-1:]))


ACTIVATIONS: dict[str, Activation] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "elu": functional.elu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "norm_relu": norm_relu,
    "critic_norm_relu": torch.relu,  # and norm_relu in value functions
}
ACTING_ROWS = 16
_MANY = 1 << 24  # parameters, from which on memory is looked at
_WIDTH = 16
_GAIN = math.sqrt(2)  # of orthogonal weights


def activation(name: str, *, critic: bool = False) -> Activation:
    """The activation of that name in a policy or a critic; `ConfigError` if it is unknown."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"net.activation={name!r} is unknown; {nearest(name, ACTIVATIONS)}")
    return norm_relu if critic and name == "critic_norm_relu" else ACTIVATIONS[name]


class Layout:
    """Names and shapes of the parameters that lie one after the other in a flat vector."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """`shapes` has the parameters in the order in which they lie in the vector.

        Raises ConfigError if memory cannot hold them with a gradient and both of Adam's moments.
        """
        self.shapes = dict(shapes)
        self._lengths = [math.prod(shape) for shape in self.shapes.values()]
        self.size = sum(self._lengths)
        if self.size > _MANY and 16 * self.size > (available := memory_bytes()):
            raise ConfigError(
                f"a network of {self.size:,} parameters needs {16 * self.size / 1e9:,.0f} GB to"
                f" learn, and this machine has {available / 1e9:,.0f}; use narrower layers:"
                " net.policy_hidden=[64,64], net.critic_hidden=[64,64]"
            )

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of `vector` ([size]) under their names."""
        named = zip(self.shapes.items(), torch.split(vector, self._lengths), strict=True)
        return {name: part.view(shape) for (name, shape), part in named}

    def flatten(self, params: Params) -> Tensor:
        """The vector ([size]) of the named parameters, the inverse of `unflatten`."""
        return torch.cat([params[name].reshape(-1) for name in self.shapes])


class OwnNet(Protocol):
    """The interface of a class named by `net.name=module:Class`: a pure function of parameters.

    It is made from its settings and the width of an observation, `Class(settings, obs_dim)`. The
    class attribute `settings` is the dataclass of its settings, derived from
    `walle.config.schemas.NetConfig`; a class without it gets a `NetConfig` itself.
    """

    features: int  # F, the width of the features
    shapes: Mapping[str, tuple[int, ...]]  # the shape of every parameter, by name

    def init(self, generator: torch.Generator) -> Mapping[str, Tensor]:
        """Initial parameters, drawn from `generator` alone."""

    def __call__(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [..., F]; each row must depend on its own observation alone."""


class Columns:
    """The part of an observation that a network, or a user's `net`, sees; itself an `OwnNet`."""

    def __init__(self, begin: int, end: int, net: OwnNet | None = None) -> None:
        self._seen, self._net = slice(begin, end), net
        self.features = net.features if net else end - begin
        self.shapes: Mapping[str, tuple[int, ...]] = net.shapes if net else {}

    def init(self, generator: torch.Generator) -> Mapping[str, Tensor]:
        """The parameters of the user's net."""
        return self._net.init(generator) if self._net else {}

    def __call__(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [..., F]."""
        seen = obs[..., self._seen].contiguous()  # with the bits of an observation without the rest
        return self._net(params, seen) if self._net else seen


def orthogonal(
    shapes: Mapping[str, tuple[int, ...]],
    layers: Sequence[str],
    generator: torch.Generator,
    last_gain: float = _GAIN,
) -> dict[str, Tensor]:
    """Weights and biases of layers, whose shapes are `shapes`.

    Weights are orthogonal (Saxe et al. 2014) times sqrt(2), or times `last_gain` in the last layer;
    biases are 0.
    """
    params = {}
    for name in layers:
        gain = last_gain if name == layers[-1] else _GAIN
        weight = torch.empty(shapes[f"{name}.weight"])
        params[f"{name}.weight"] = torch.nn.init.orthogonal_(weight, gain, generator)
        params[f"{name}.bias"] = torch.zeros(shapes[f"{name}.bias"])
    return params


class MLP:
    """Fully connected layers: activation between them, none after the last.

    With a user's net in front, the layers take its features.
    """

    def __init__(
        self, prefix: str, sizes: Sequence[int], activation: Activation, own: OwnNet | None = None
    ) -> None:
        """Layers without parameters; `prefix` is the beginning of the parameters' names.

        `sizes` are the widths from the input, or from the features of `own`, to the output.
        """
        self.activation, self._own = activation, own
        own_shapes = {} if own is None else own.shapes
        self._own_names = {name: f"{prefix}.encoder.{name}" for name in own_shapes}
        self.layers = [f"{prefix}.{i}" for i in range(len(sizes) - 1)]
        self.shapes = {self._own_names[name]: tuple(shape) for name, shape in own_shapes.items()}
        for name, n_in, n_out in zip(self.layers, sizes, sizes[1:], strict=False):
            self.shapes[f"{name}.weight"] = (n_out, n_in)
            self.shapes[f"{name}.bias"] = (n_out,)

    def init(self, generator: torch.Generator, last_gain: float) -> dict[str, Tensor]:
        """Parameters drawn as in `orthogonal`."""
        params = self._init_own(generator)
        return params | orthogonal(self.shapes, self.layers, generator, last_gain)

    def init_uniform(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Weights and biases uniform within ±1 / sqrt(a layer's inputs), as torch draws them."""
        params = self._init_own(generator)
        for name in self.layers:
            bound = self.shapes[f"{name}.weight"][1] ** -0.5
            for part in (f"{name}.weight", f"{name}.bias"):
                even = torch.rand(self.shapes[part], generator=generator)
                params[part] = bound * (2 * even - 1)
        return params

    def __call__(self, params: Params, x: Tensor, more: Tensor | None = None) -> Tensor:
        """[..., sizes[0]] -> [..., sizes[-1]]; `more` is appended to the first layer's input."""
        x = self.inputs(params, x, more)
        for name in self.layers:
            x = functional.linear(x, params[f"{name}.weight"], params[f"{name}.bias"])
            if name != self.layers[-1]:
                x = self.activation(x)
        return x

    def inputs(self, params: Params, x: Tensor, more: Tensor | None = None) -> Tensor:
        """The first layer's inputs: [..., sizes[0]]."""
        x = self._features(params, x)
        return x if more is None else torch.cat((x, more), -1)

    def acting(self, params: Params, rows: int) -> Forward:
        """A faster form of `__call__` for the hot loop: [rows, sizes[0]] -> [rows, sizes[-1]].

        Its memory is allocated once, so each call overwrites the last result. A row has the same
        bits at every place, and for every number of rows that is a multiple of `ACTING_ROWS`: for
        other numbers Intel's processors sum in a different order. Hidden layers are padded with
        zeros to a multiple of 16, and so is the last layer if its number of inputs is not such
        a multiple: AMD's processors need this for equal bits in narrow products, and so do the
        activations.
        """
        layers = []
        inner = self.shapes[f"{self.layers[0]}.weight"][1]
        for name in self.layers:
            weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
            units = width = len(bias)
            if name != self.layers[-1] or inner % _WIDTH:
                width = -(-width // _WIDTH) * _WIDTH
            weight, bias = _grown(weight, width, inner), _grown(bias, width)
            out = torch.empty(rows, width)
            active = out[:, :units] if self.activation is norm_relu else out  # without padding
            layers.append((weight.T, bias, out, _in_place(self.activation, active)))
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

        return forward if self._own is None else lambda x: forward(self._features(params, x))

    def _init_own(self, generator: torch.Generator) -> dict[str, Tensor]:
        drawn = {} if self._own is None else self._own.init(generator)
        return {full: drawn[name] for name, full in self._own_names.items()}

    def _features(self, params: Params, x: Tensor) -> Tensor:
        if self._own is None:
            return x
        return self._own({name: params[full] for name, full in self._own_names.items()}, x)


def _grown(x: Tensor, *shape: int) -> Tensor:
    """`x` padded with zeros at the end of every dimension, up to `shape`."""
    if x.shape == shape:
        return x
    more = [(0, size - had) for size, had in zip(shape, x.shape, strict=True)]
    return functional.pad(x, [n for pair in reversed(more) for n in pair])


def _in_place(activate: Activation, x: Tensor) -> Callable[[], object]:
    """A function that applies the activation to `x` in place.

    NumPy's vectorised float32 tanh takes 0.7 us for 32 x 64 numbers, torch's takes 4.8 us; the two
    differ by at most one unit in the last place.
    """
    if activate is torch.tanh and not x.is_cuda:
        array = x.numpy()
        return partial(np.tanh, array, array)
    if activate is torch.relu:
        return partial(torch.relu_, x)
    return lambda: x.copy_(activate(x))
