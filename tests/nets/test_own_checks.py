"""A net of the user's own that does not fit is refused in one line, before anything starts."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

from walle.errors import ConfigError
from walle.nets.own_checks import check_net
from walle.nets.own_making import OwnFactory

SPACE = Box(np.array([-np.inf, 0, 0], np.float32), np.array([np.inf, 1, 3e38], np.float32))


class Linear:
    """Features: W x."""

    features = 4

    def __init__(self, settings, obs_dim):
        self.shapes = {"weight": (self.features, obs_dim)}

    def init(self, generator):
        return {"weight": torch.randn(self.shapes["weight"], generator=generator)}

    def __call__(self, params, obs):
        return obs @ params["weight"].T


def changed(**parts):
    return type("Changed", (Linear,), parts)


def without(name):
    def init(self, settings, obs_dim):
        Linear.__init__(self, settings, obs_dim)
        setattr(self, name, None)

    return changed(__init__=init)


class Torch(nn.Module):
    def __init__(self, settings, obs_dim):
        super().__init__()
        self.features = 4
        self.layers = self.made(obs_dim)

    def made(self, obs_dim):
        return nn.Linear(obs_dim, 4)

    def forward(self, obs):
        flat = self.layers(obs.flatten(0, -2))
        return flat.view(*obs.shape[:-1], flat.shape[-1])


def module(*layers):
    return type("Net", (Torch,), {"made": lambda self, n: nn.Sequential(nn.Linear(n, 4), *layers)})


def check(cls):
    check_net(OwnFactory("m:Net", cls, None), SPACE)


@pytest.mark.parametrize("cls", [Linear, Torch, module(nn.LayerNorm(4), nn.ReLU())])
def test_a_net_that_fits(cls):
    before = torch.get_rng_state()
    check(cls)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (without("features"), r"its objects lack features; set them in __init__"),
        (without("shapes"), r"its objects lack shapes; set them"),
        (changed(features=2.5, shapes={}), r"features=2.5 must be a positive integer"),
        (changed(__call__=None), r"it raises TypeError: 'NoneType' object is not callable"),
        (changed(__init__=lambda self: None), r"Net\(settings, 3\) raises TypeError: .* 1 pos"),
        (changed(init=lambda self, g: {}), r"init gives nothing, but shapes names 'weight'"),
        (
            changed(init=lambda self, g: {"weight": torch.zeros(3, 4)}),
            r"init gives 'weight' of shape \(3, 4\) .* must have the shape \(4, 3\) in shapes",
        ),
        (
            changed(init=lambda self, g: {"weight": torch.zeros(4, 3).double()}),
            r"and torch.float64, but it must have .* and torch.float32",
        ),
        (changed(init=lambda self, g: {"weight": torch.randn(4, 3)}), r"draws other numbers"),
        (
            changed(__call__=lambda self, p, x: x),
            r"for observations of shape \(4, 3\) it returns \(4, 3\) of torch.float32, but "
            r"features=4 promises \(4, 4\)",
        ),
        (changed(__call__=lambda self, p, x: x.tolist()), r"it returns list, but"),
        (
            changed(__call__=lambda self, p, x: (x @ p["weight"].T).flatten(0, -2)),
            r"for observations of shape \(2, 2, 3\) it returns \(4, 4\)",
        ),
        (changed(__call__=lambda self, p, x: x @ p["weight"]), r"it raises RuntimeError: mat1"),
        (changed(__call__=lambda self, p, x: torch.from_numpy(p["weight"].numpy())), "requires"),
        (
            changed(__call__=lambda self, p, x: x @ p["weight"].T - x.mean()),
            r"features of an observation change with the rest of its batch",
        ),
        (module(nn.BatchNorm1d(4)), r"change with the rest of its batch .* use LayerNorm"),
        (module(nn.Dropout(0.5)), r"or from call to call"),
        (module(nn.Linear(4, 7)), r"it returns \(4, 7\) of torch.float32, but features=4"),
    ],
)
def test_a_net_that_does_not_fit(cls, said):
    with pytest.raises(ConfigError, match=said) as refused:
        check(cls)
    assert str(refused.value).startswith("net.name='m:Net': ")
    assert "\n" not in str(refused.value)
