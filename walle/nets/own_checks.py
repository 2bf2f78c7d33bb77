"""Tries a net of the user's own on a few observations, before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TypeVar

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from walle.errors import ConfigError, what_went_wrong
from walle.nets.mlp import Params
from walle.nets.own import OwnNet
from walle.nets.own_making import OwnFactory

Found = TypeVar("Found")
_ROWS = 32  # so many that Dropout does not leave half of them as they were


def check_net(factory: OwnFactory, space: Box) -> None:
    """Checks that a net has all parts of an `OwnNet`, and that they fit together.

    Args:
        factory: makes the net.
        space: of observations [O]; the net is tried on samples within [-10, 10].

    Raises:
        ConfigError: a part is missing or raises, a shape is another one than the net promises, or
            rows depend on each other.
    """
    obs = _samples(space)
    check = _Check(factory.path)
    made = f"{factory.path.partition(':')[2]}(settings, {obs.shape[-1]})"
    net = check.tried(made, lambda: factory(obs.shape[-1]))
    check.has_parts(net)
    params = check.parameters(net)
    check.output(net, params, obs[:4])
    check.output(net, params, obs[:4].view(2, 2, -1))
    check.rows(net, params, obs)


def _samples(space: Box) -> Tensor:
    """Observations, [N, O]."""
    space = deepcopy(space)  # sampling would change it
    space.seed(0)
    drawn = np.stack([space.sample() for _ in range(_ROWS)])
    return torch.from_numpy(drawn.clip(-10, 10).astype(np.float32))


class _Check:
    """The checks of one net, whose messages begin with its name."""

    def __init__(self, path: str) -> None:
        self._said = f"net.name={path!r}"

    def refuse(self, text: str) -> ConfigError:
        return ConfigError(f"{self._said}: {text}")

    def tried(self, what: str, call: Callable[[], Found]) -> Found:
        try:
            return call()
        except Exception as error:  # the user's own code may raise anything
            raise self.refuse(f"{what} raises {what_went_wrong(error)}") from error

    def has_parts(self, net: OwnNet) -> None:
        missing = [name for name in ("features", "shapes") if getattr(net, name, None) is None]
        if missing:
            raise self.refuse(f"its objects lack {' and '.join(missing)}; set them in __init__")
        if not callable(net):
            raise self.refuse("its objects lack __call__(params, obs), which gives the features")
        if not isinstance(net.features, int) or net.features < 1:
            raise self.refuse(
                f"features={net.features!r} must be a positive integer, the width of its output"
            )

    def parameters(self, net: OwnNet) -> Params:
        generator = torch.Generator()
        params, again = (self._drawn(net, generator.manual_seed(0)) for _ in range(2))
        if set(params) != set(net.shapes):
            raise self.refuse(
                f"init gives {_names(params)}, but shapes names {_names(net.shapes)}; give the same"
            )
        for name, shape in net.shapes.items():
            found = params[name]
            if tuple(found.shape) != tuple(shape) or found.dtype != torch.float32:
                raise self.refuse(
                    f"init gives {name!r} of shape {tuple(found.shape)} and {found.dtype}, but it "
                    f"must have the shape {tuple(shape)} in shapes, and torch.float32"
                )
            if not torch.equal(found, again[name]):
                raise self.refuse(
                    f"init draws other numbers for {name!r} from the same generator; draw all of "
                    "them with generator=generator"
                )
        return params

    def _drawn(self, net: OwnNet, generator: torch.Generator) -> dict[str, Tensor]:
        return self.tried("init", lambda: dict(net.init(generator)))

    def output(self, net: OwnNet, params: Params, obs: Tensor) -> Tensor:
        learned = {name: value.clone().requires_grad_() for name, value in params.items()}
        shape = tuple(obs.shape)
        found = self.tried(f"for observations of shape {shape} it", lambda: net(learned, obs))
        promised = (*shape[:-1], net.features)
        is_tensor = isinstance(found, Tensor)
        if not is_tensor or tuple(found.shape) != promised or found.dtype != torch.float32:
            ours = f"{tuple(found.shape)} of {found.dtype}" if is_tensor else type(found).__name__
            raise self.refuse(
                f"for observations of shape {shape} it returns {ours}, but features={net.features} "
                f"promises {promised} of torch.float32"
            )
        return found.detach()

    def rows(self, net: OwnNet, params: Params, obs: Tensor) -> None:
        """A row must not depend on the others, nor on what was computed before."""
        half = _ROWS // 2
        alone, together = self.output(net, params, obs[:half]), self.output(net, params, obs)[:half]
        if not torch.allclose(alone, together, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise self.refuse(
                "the features of an observation change with the rest of its batch or from call to "
                "call, as BatchNorm and Dropout make them do; use LayerNorm or leave them out"
            )


def _names(params: Mapping[str, object]) -> str:
    return ", ".join(map(repr, params)) or "nothing"
