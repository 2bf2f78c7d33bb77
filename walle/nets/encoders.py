"""Convolutions over images, and the policies that act on their features.

The outputs of the convolutions are called features, as with a memory, and take the observation's
place: policy and critic are functions of the same features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from walle.nets.mlp import MLP, Forward, Layout, Params
from walle.nets.policies import FeaturePolicy, StochasticPolicy
from walle.types import Image, ObsLayout

_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel and stride
_AT_ONCE = 8  # images of one call while acting; rows of one call have the same bits at every place
_CHUNK = 256  # rows of one call without a gradient, which bounds its memory


class Convolutions:
    """The convolutions of Mnih et al. 2015 (methods, "Model architecture") over one image."""

    def __init__(self, prefix: str, image: Image) -> None:
        """Parameter names begin with `prefix`; no side of the image is under 36 pixels."""
        self._image = image
        inputs, *sides = image.chw
        self.shapes: dict[str, tuple[int, ...]] = {}
        for i, (outputs, kernel, stride) in enumerate(_LAYERS):
            self.shapes[f"{prefix}.{i}.weight"] = (outputs, inputs, kernel, kernel)
            self.shapes[f"{prefix}.{i}.bias"] = (outputs,)
            sides = [(side - kernel) // stride + 1 for side in sides]
            inputs = outputs
        self._names = [f"{prefix}.{i}" for i in range(len(_LAYERS))]
        self.outputs = inputs * math.prod(sides)

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Orthogonal weights with gain sqrt(2), as Stable-Baselines3 has them; biases are zero."""
        params = {}
        for name in self._names:
            weight = torch.empty(self.shapes[f"{name}.weight"])
            torch.nn.init.orthogonal_(weight, gain=math.sqrt(2), generator=generator)
            params[f"{name}.weight"] = weight
            params[f"{name}.bias"] = torch.zeros(self.shapes[f"{name}.bias"])
        return params

    def __call__(self, params: Params, images: Tensor) -> Tensor:
        """Bytes [N, *shape], as the environment returns them, to [N, outputs]."""
        if images.dim() == 3:
            images = images.unsqueeze(1)
        elif not self._image.channels_first:
            images = images.permute(0, 3, 1, 2)
        x = images.to(torch.float32) / 255
        for name, (_, _, stride) in zip(self._names, _LAYERS, strict=True):
            weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
            x = torch.relu(functional.conv2d(x, weight, bias, stride))
        return x.flatten(1)


class Encoder:
    """Features of observations with images: for each image F numbers, then the vector.

    The F numbers are the outputs of a fully connected layer over the image's convolutions. The
    vector must be normalised already.
    """

    def __init__(self, layout: ObsLayout, width: int) -> None:
        """`width` is F, the features of each image."""
        self.obs_layout = layout
        self.width = width * len(layout.images) + layout.vector
        self._parts = [Convolutions(f"image{i}", x) for i, x in enumerate(layout.images)]
        self._last = [
            MLP(f"image{i}.features", (part.outputs, width), torch.relu)
            for i, part in enumerate(self._parts)
        ]
        shapes = [part.shapes for part in self._parts] + [last.shapes for last in self._last]
        self.shapes = {name: shape for each in shapes for name, shape in each.items()}

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Orthogonal weights with gain sqrt(2); biases are zero."""
        params: dict[str, Tensor] = {}
        for part in self._parts:
            params |= part.init(generator)
        for last in self._last:
            params |= last.init(generator, gain=math.sqrt(2), last_gain=math.sqrt(2))
        return params

    def split(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The vectors [N, V] and the images [N, *shape] in rows of bytes [N, W]."""
        vectors = rows[:, : 4 * self.obs_layout.vector].view(torch.float32)
        begin, images = 4 * self.obs_layout.vector, []
        for image in self.obs_layout.images:
            images.append(rows[:, begin : begin + image.size].view(len(rows), *image.shape))
            begin += image.size
        return vectors, images

    def of_parts(self, params: Params, vectors: Tensor, images: list[Tensor]) -> Tensor:
        """Features [N, F + V] of normalised vectors [N, V] and of images [N, *shape]."""
        features = [
            torch.relu(last(params, part(params, image)))
            for part, last, image in zip(self._parts, self._last, images, strict=True)
        ]
        return torch.cat((*features, vectors), -1)

    def __call__(self, params: Params, rows: Tensor) -> Tensor:
        """[N, W] bytes, their vectors normalised, to features [N, F + V]; differentiable."""
        return self.of_parts(params, *self.split(rows))

    @torch.no_grad()
    def in_chunks(self, params: Params, rows: Tensor) -> Tensor:
        """The features of many rows, a chunk at a time, without a gradient."""
        return torch.cat([self(params, chunk) for chunk in torch.split(rows, _CHUNK)])

    def acting(self, params: Params, lanes: int, rows: int) -> Forward:
        """A quicker form of `__call__`: rows of which the first `lanes` count, to [rows, F + V].

        Convolutions take eight rows a call and the last layers all rows, so that a row has the same
        bits whatever else is in its batch.
        """
        features = torch.zeros(rows, self.width)
        flat = [torch.zeros(rows, part.outputs) for part in self._parts]
        lasts = [last.acting(params, rows) for last in self._last]

        def forward(x: Tensor) -> Tensor:
            for begin in range(0, lanes, _AT_ONCE):
                _, images = self.split(x[begin : begin + _AT_ONCE])
                for part, out, image in zip(self._parts, flat, images, strict=True):
                    out[begin : begin + _AT_ONCE] = part(params, image)
            at = 0
            for last, out in zip(lasts, flat, strict=True):
                part_features = last(out).relu_()
                features[:, at : at + part_features.shape[1]] = part_features
                at += part_features.shape[1]
            features[:, at:] = self.split(x)[0]
            return features

        return forward


class EncodedPolicy(FeaturePolicy):
    """A policy of the features of images: its observations are features, [..., F]."""

    def __init__(self, encoder: Encoder, readout: StochasticPolicy) -> None:
        """`readout` is a policy of `encoder.width` inputs."""
        self.encoder = encoder
        super().__init__(encoder.shapes, readout)

    def init(self, generator: torch.Generator) -> Tensor:
        """The encoder's parameters, then the readout's."""
        encoder = Layout(self.encoder.shapes).flatten(self.encoder.init(generator))
        return torch.cat((encoder, self.readout.init(generator)))
