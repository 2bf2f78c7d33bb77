"""Batch-normalised networks as pure functions of one flat parameter vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from walle.nets.mlp import MLP, Layout

EPSILON = 1e-3  # added to variances
MOMENTUM = 0.99  # share of the running moments that a step keeps


class NormedMLPs:
    """K fully connected networks of the same shape with batch normalisation, in one vector.

    Each is N(x), then W h -> N -> activation in every hidden layer, then W h + b, where N
    normalises every unit over the rows of a batch, then scales and shifts it: N(h) = scale (h -
    mean) / sqrt(variance + ε) + shift (Ioffe & Szegedy 2015). With constant moments N is affine,
    and the network is an ordinary `MLP`.

    A network's parameters lie in this order: scale of the inputs; weights [out, in], scale and
    shift of each hidden layer; weights and biases of the last layer. Inputs have no shift, because
    the next N would remove it.
    `moments` are [K, 2, S]: the means of a network's S normalised units, inputs first, then their
    variances.
    """

    def __init__(self, mlps: Sequence[MLP]) -> None:
        """`mlps` are the K ordinary networks without normalisation."""
        self._mlps, self._layers = mlps, [mlp.layers for mlp in mlps]
        self._folded = Layout({name: x for mlp in mlps for name, x in mlp.shapes.items()})
        self.layout = Layout({name: x for mlp in mlps for name, x in _shapes(mlp)})
        self._widths = [mlps[0].shapes[f"{name}.weight"][1] for name in mlps[0].layers]

    def init(self, generator: torch.Generator) -> Tensor:
        """Orthogonal weights of unit rows (`project`), scales of 1; shifts and biases of 0."""
        params = {name: torch.zeros(shape) for name, shape in self.layout.shapes.items()}
        for mlp in self._mlps:
            drawn = mlp.init(generator, 1.0)
            params |= {name: x for name, x in drawn.items() if name in params}
            params |= {f"{name}.scale": params[f"{name}.scale"] + 1 for name in mlp.layers}
        return self.project(self.layout.flatten(params))

    def initial_moments(self) -> Tensor:
        """Means of 0 and variances of 1."""
        zero = torch.zeros(len(self._mlps), 1, sum(self._widths))
        return torch.cat((zero, zero + 1), 1)

    def project(self, vector: Tensor) -> Tensor:
        """The parameters with the incoming weights of every unit at an l2 norm of 1."""
        params = self.layout.unflatten(vector)
        for layer in (name for layers in self._layers for name in layers):
            params[f"{layer}.weight"] = functional.normalize(params[f"{layer}.weight"], dim=-1)
        return self.layout.flatten(params)

    def train(
        self, vector: Tensor, *inputs: Tensor, rows: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Outputs [K, B, n] for inputs [B, ...], normalised by the batch's moments [K, 2, S].

        Returns the outputs and the moments.

        Only the outputs of `rows` are computed. A gradient flows to these rows, also through the
        moments; the other rows and the returned moments are constants.
        """
        params = self.layout.unflatten(vector)
        own = torch.zeros(len(inputs[0]), 1, dtype=torch.bool, device=vector.device)
        own[rows] = True
        outputs, moments = [], []
        for mlp in self._mlps:
            x, seen = mlp.inputs(params, *inputs), []
            for layer in mlp.layers:
                x = torch.where(own, x, x.detach())
                x = x - (mean := x.mean(0))
                variance = x.square().mean(0)  # in a third of the time of torch.var_mean
                factor = params[f"{layer}.scale"] * (variance + EPSILON).rsqrt()
                if layer == mlp.layers[0]:
                    x = x * factor
                else:
                    x = mlp.activation(torch.addcmul(params[f"{layer}.shift"], x, factor))
                x = x[rows] if layer == mlp.layers[-1] else x
                x = functional.linear(x, params[f"{layer}.weight"], params.get(f"{layer}.bias"))
                seen.append(torch.stack((mean, variance)).detach())
            outputs.append(x)
            moments.append(torch.cat(seen, -1))
        return torch.stack(outputs), torch.stack(moments)

    def fold(self, vector: Tensor, moments: Tensor) -> Tensor:
        """The parameters of the ordinary networks with the same outputs, for constant moments."""
        params = self.layout.unflatten(vector)
        for layers, each in zip(self._layers, moments, strict=True):
            before, bias = "", vector.new_zeros(())
            for name, (mean, variance) in zip(layers, each.split(self._widths, -1), strict=True):
                factor = params[f"{name}.scale"] * (variance + EPSILON).rsqrt()
                shift = params.get(f"{name}.shift", 0.0) - mean * factor
                weight = f"{before or name}.weight"
                if before:  # N follows the weights of the layer before
                    params[weight] = params[weight] * factor.unsqueeze(-1)
                    params[f"{before}.bias"] = bias * factor + shift
                    bias = vector.new_zeros(())
                else:  # N of the inputs precedes the weights
                    bias = params[weight] @ shift
                    params[weight] = params[weight] * factor
                before = name
            params[f"{before}.bias"] = bias + params[f"{before}.bias"]
        return self._folded.flatten(params)


def _shapes(mlp: MLP) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The shapes of a normalised network's parameters, in their order."""
    norms = {f"{layer}.weight": layer for layer in mlp.layers}
    unbiased = {f"{layer}.bias" for layer in mlp.layers[:-1]}
    for name, shape in mlp.shapes.items():
        if name in norms:
            yield f"{norms[name]}.scale", shape[1:]
            if norms[name] != mlp.layers[0]:
                yield f"{norms[name]}.shift", shape[1:]
        if name not in unbiased:
            yield name, shape
