"""Features of observations: of images by convolutions, of a history by a gated recurrent unit.

Features replace the observation: policy and critic are feed-forward functions of the same
features.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from walle.nets.mlp import MLP, Forward, Params, orthogonal
from walle.types import LEAST_PIXELS, SMALLEST, Image, ObsLayout

# Channels, kernel and stride of each convolution, for images whose shorter side has at least the
# key's number of pixels.
_LAYERS = {
    LEAST_PIXELS: ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    16: ((32, 3, 2), (64, 3, 2), (64, 3, 1)),
    SMALLEST: ((32, 3, 1), (64, 3, 1), (64, 3, 1)),
}
_AT_ONCE = 8  # images of one call while acting: a row has the same bits at each of these places
_CHUNK = 256  # rows of one call without a gradient, which bounds its memory


class Convolutions:
    """The convolutions of Mnih et al. 2015 over one image; smaller ones for a small image."""

    def __init__(self, prefix: str, image: Image) -> None:
        """Parameter names start with `prefix`; the image has `SMALLEST` pixels a side at least."""
        self._image = image
        inputs, *sides = image.chw
        self._layers = next(layers for least, layers in _LAYERS.items() if min(sides) >= least)
        self._names = [f"{prefix}.{i}" for i in range(len(self._layers))]
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, (outputs, kernel, stride) in zip(self._names, self._layers, strict=True):
            self.shapes[f"{name}.weight"] = (outputs, inputs, kernel, kernel)
            self.shapes[f"{name}.bias"] = (outputs,)
            sides = [(side - kernel) // stride + 1 for side in sides]
            inputs = outputs
        self.outputs = inputs * math.prod(sides)

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Parameters drawn as in `mlp.orthogonal`, as in Stable-Baselines3."""
        return orthogonal(self.shapes, self._names, generator)

    def __call__(self, params: Params, images: Tensor) -> Tensor:
        """Pixels [N, *shape], as the environment returns them, to [N, outputs]."""
        if images.dim() == 3:
            images = images.unsqueeze(1)
        elif not self._image.channels_first:
            images = images.permute(0, 3, 1, 2)
        x = images.to(torch.float32) / self._image.scale
        for name, (_, _, stride) in zip(self._names, self._layers, strict=True):
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
        networks: list[Convolutions | MLP] = [*self._parts, *self._last]
        self.shapes = {name: shape for net in networks for name, shape in net.shapes.items()}

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Orthogonal weights with gain sqrt(2); biases are zero."""
        params: dict[str, Tensor] = {}
        for part in self._parts:
            params |= part.init(generator)
        for last in self._last:
            params |= last.init(generator, math.sqrt(2))
        return params

    def split(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The vectors [N, V] and the images [N, *shape] in rows of bytes [N, W]."""
        vectors = rows[:, : 4 * self.obs_layout.vector].view(torch.float32)
        begin, images = 4 * self.obs_layout.vector, []
        for image in self.obs_layout.images:
            pixels = rows[:, begin : begin + image.size]
            if image.dtype == "float32":
                pixels = pixels.clone(memory_format=torch.contiguous_format).view(torch.float32)
            images.append(pixels.view(len(rows), *image.shape))
            begin += image.size
        return vectors, images

    def of_parts(self, params: Params, vectors: Tensor, images: list[Tensor]) -> Tensor:
        """Features [N, I F + V] of normalised vectors [N, V] and of I images [N, *shape]."""
        features = [
            torch.relu(last(params, part(params, image)))
            for part, last, image in zip(self._parts, self._last, images, strict=True)
        ]
        return torch.cat((*features, vectors), -1)

    def __call__(self, params: Params, rows: Tensor) -> Tensor:
        """[N, W] bytes, their vectors normalised, to features [N, I F + V]; differentiable."""
        return self.of_parts(params, *self.split(rows))

    @torch.no_grad()
    def in_chunks(self, params: Params, rows: Tensor) -> Tensor:
        """The features of many rows, a chunk at a time, without a gradient."""
        return torch.cat([self(params, chunk) for chunk in torch.split(rows, _CHUNK)])

    def acting(self, params: Params, lanes: int, rows: int) -> Forward:
        """A faster form of `__call__`, to [rows, I F + V]; only the first `lanes` rows count.

        Every call has a fixed number of rows, eight for convolutions and `rows` for the last
        layers, so that a row has the same bits whatever else is in its batch.
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


class GRU:
    """A gated recurrent unit (Cho et al. 2014), in the form and with the layout of torch's GRUCell.

    r = σ(W_r x + b_r + U_r h + c_r)
    z = σ(W_z x + b_z + U_z h + c_z)
    n = tanh(W_n x + b_n + r (U_n h + c_n))
    h' = n + z (h - n)

    An episode starts with h = 0.
    """

    def __init__(self, prefix: str, inputs: int, units: int) -> None:
        """Has a state of H = `units`; reads the first I = `inputs` numbers of an observation."""
        self.inputs, self.units = inputs, units
        self._names = [f"{prefix}.{name}" for name in ("weight_x", "weight_h", "bias_x", "bias_h")]
        shapes = [(3 * units, inputs), (3 * units, units), (3 * units,), (3 * units,)]
        self.shapes: dict[str, tuple[int, ...]] = dict(zip(self._names, shapes, strict=True))

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Orthogonal weights, drawn separately for each gate; biases are zero."""
        params = {name: torch.zeros(shape) for name, shape in self.shapes.items()}
        for name in self._names[:2]:
            for gate in params[name].chunk(3):
                torch.nn.init.orthogonal_(gate, generator=generator)
        return params

    def step(self, params: Params, x: Tensor, state: Tensor) -> Tensor:
        """One step: [N, I] and the state [N, H] to the next state, [N, H]."""
        own = (params[name] for name in self._names)
        return torch.gru_cell(x[..., : self.inputs], state, *own)

    def unroll(self, params: Params, x: Tensor, began: Tensor, state: Tensor) -> Tensor:
        """The states [T, N, H] after every step of `x` [T, N, I], from `state` [N, H] before them.

        `began` [T, N] is true where an episode starts, which clears the state.
        """
        states = []
        for x_t, kept_t in zip(x, (~began).to(x.dtype).unsqueeze(-1), strict=True):
            state = self.step(params, x_t, state * kept_t)
            states.append(state)
        return torch.stack(states)

    def with_rest(self, states: Tensor, x: Tensor) -> Tensor:
        """The states [..., H], then the R numbers of `x` [..., I + R] that are not input."""
        rest = x[..., self.inputs :]
        return torch.cat((states, rest), -1) if rest.shape[-1] else states

    def acting(self, params: Params, state: Tensor) -> Forward:
        """`step` in the hot loop: [rows, I] -> `state` ([rows, H]), which it changes in place.

        NumPy does all elementwise work: it returns the same bits wherever in memory a number
        lies, so that a lane's results do not depend on its sampler.
        """
        weight_x, weight_h, bias_x, bias_h = (params[name] for name in self._names)
        given, recalled = torch.empty(2, len(state), 3 * self.units)
        x_parts, h_parts, gates = given.numpy(), recalled.numpy(), 2 * self.units
        gates_x, new_x = x_parts[:, :gates], x_parts[:, gates:]
        gates_h, new_h = h_parts[:, :gates], h_parts[:, gates:]
        reset, update = gates_x[:, : self.units], gates_x[:, self.units :]
        h = state.numpy()

        def forward(x: Tensor) -> Tensor:
            torch.addmm(bias_x, x, weight_x.T, out=given)
            torch.addmm(bias_h, state, weight_h.T, out=recalled)
            np.add(gates_x, gates_h, out=gates_x)
            np.multiply(gates_x, 0.5, out=gates_x)  # σ(x) = (1 + tanh(x / 2)) / 2
            np.tanh(gates_x, out=gates_x)
            np.multiply(gates_x, 0.5, out=gates_x)
            np.add(gates_x, 0.5, out=gates_x)
            np.multiply(new_h, reset, out=new_h)
            np.add(new_x, new_h, out=new_x)
            np.tanh(new_x, out=new_x)
            np.subtract(h, new_x, out=h)
            np.multiply(h, update, out=h)
            np.add(h, new_x, out=h)
            return state

        return forward
