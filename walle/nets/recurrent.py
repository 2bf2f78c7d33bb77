"""A gated recurrent unit, and the policies that act on its state.

The memory's state after an observation is called a feature and takes the observation's place:
policy and critic are feed-forward functions of the same feature.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from walle.nets.mlp import Forward, Layout, Params
from walle.nets.policies import FeaturePolicy, StochasticPolicy
from walle.types import FloatArray


class GRU:
    """A gated recurrent unit (Cho et al. 2014), in the form and with the layout of torch's GRUCell.

    r = σ(W_r x + b_r + U_r h + c_r)
    z = σ(W_z x + b_z + U_z h + c_z)
    n = tanh(W_n x + b_n + r (U_n h + c_n))
    h' = n + z (h - n)

    An episode starts with h = 0.
    """

    def __init__(self, prefix: str, inputs: int, units: int) -> None:
        """`units` is H, the width of the state; parameter names begin with `prefix`."""
        self.units = units
        self._names = [f"{prefix}.{name}" for name in ("weight_x", "weight_h", "bias_x", "bias_h")]
        shapes = [(3 * units, inputs), (3 * units, units), (3 * units,), (3 * units,)]
        self.shapes: dict[str, tuple[int, ...]] = dict(zip(self._names, shapes, strict=True))

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Orthogonal weights, drawn for each gate apart; biases are zero."""
        params = {name: torch.zeros(shape) for name, shape in self.shapes.items()}
        for name in self._names[:2]:
            for gate in params[name].chunk(3):
                torch.nn.init.orthogonal_(gate, generator=generator)
        return params

    def step(self, params: Params, x: Tensor, state: Tensor) -> Tensor:
        """One step: [N, I] and the state [N, H] to the next state, [N, H]."""
        weight_x, weight_h, bias_x, bias_h = (params[name] for name in self._names)
        given = functional.linear(x, weight_x, bias_x)
        return _next(given, functional.linear(state, weight_h, bias_h), state)

    def unroll(self, params: Params, x: Tensor, began: Tensor, state: Tensor) -> Tensor:
        """The states after every step.

        Args:
            params: the parameters, named as in `shapes`.
            x: [T, N, I].
            began: [T, N] true where an episode starts, which clears the state.
            state: [N, H] before the first step.

        Returns:
            [T, N, H].
        """
        weight_x, weight_h, bias_x, bias_h = (params[name] for name in self._names)
        given = functional.linear(x, weight_x, bias_x)
        kept = (~began).to(x.dtype).unsqueeze(-1)
        states = []
        for given_t, kept_t in zip(given.unbind(0), kept.unbind(0), strict=True):
            state = state * kept_t
            state = _next(given_t, functional.linear(state, weight_h, bias_h), state)
            states.append(state)
        return torch.stack(states)

    def acting(self, params: Params, state: Tensor) -> Forward:
        """`step` in the hot loop: [rows, I] -> `state` ([rows, H]), which it changes in place.

        NumPy does all elementwise work: it returns the same bits wherever in memory a number
        lies, so that a lane's results do not depend on its sampler.
        """
        weight_x, weight_h, bias_x, bias_h = (params[name] for name in self._names)
        given, recalled = torch.empty(2, len(state), 3 * self.units)
        gates_x, new_x = _split(given, self.units)
        gates_h, new_h = _split(recalled, self.units)
        reset, update = gates_x[:, : self.units], gates_x[:, self.units :]
        h: FloatArray = state.numpy()

        def forward(x: Tensor) -> Tensor:
            torch.addmm(bias_x, x, weight_x.T, out=given)
            torch.addmm(bias_h, state, weight_h.T, out=recalled)
            np.add(gates_x, gates_h, out=gates_x)
            _sigmoid_in_place(gates_x)
            np.multiply(new_h, reset, out=new_h)
            np.add(new_x, new_h, out=new_x)
            np.tanh(new_x, out=new_x)
            np.subtract(h, new_x, out=h)
            np.multiply(h, update, out=h)
            np.add(h, new_x, out=h)
            return state

        return forward


def _next(given: Tensor, recalled: Tensor, state: Tensor) -> Tensor:
    """The next state from W x + b and U h + c, [N, 3 H] each, and h [N, H]."""
    units = state.shape[-1]
    gates = torch.sigmoid(given[..., : 2 * units] + recalled[..., : 2 * units])
    reset, update = gates.chunk(2, -1)
    new = torch.tanh(given[..., 2 * units :] + reset * recalled[..., 2 * units :])
    return new + update * (state - new)


def _split(x: Tensor, units: int) -> tuple[FloatArray, FloatArray]:
    """[N, 3 H] as the two gates [N, 2 H] and the rest [N, H]."""
    array: FloatArray = x.numpy()
    return array[:, : 2 * units], array[:, 2 * units :]


def _sigmoid_in_place(x: FloatArray) -> None:
    """σ(x) = (1 + tanh(x / 2)) / 2."""
    np.multiply(x, 0.5, out=x)
    np.tanh(x, out=x)
    np.multiply(x, 0.5, out=x)
    np.add(x, 0.5, out=x)


class GRUPolicy(FeaturePolicy):
    """A policy of the memory's state: its observations are features, [..., H]."""

    def __init__(self, obs_dim: int, units: int, readout: StochasticPolicy) -> None:
        """`readout` is a policy of `units` inputs."""
        self.memory = GRU("memory", obs_dim, units)
        super().__init__(self.memory.shapes, readout)

    def init(self, generator: torch.Generator) -> Tensor:
        """The memory's parameters, then the readout's."""
        readout = self.readout.init(generator)  # drawn before the memory, but placed after it
        memory = Layout(self.memory.shapes).flatten(self.memory.init(generator))
        return torch.cat((memory, readout))
