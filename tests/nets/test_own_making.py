"""A torch.nn.Module of the user's own as a pure function of its parameters."""

import pickle

import pytest
import torch
from torch import nn
from torch.func import grad

from walle.errors import ConfigError
from walle.nets.own_making import OwnFactory, own_class


class Hidden(nn.Module):
    """Two layers with an embedding that is frozen and a factor that is no parameter."""

    def __init__(self, settings, obs_dim):
        super().__init__()
        self.features = settings
        self.layers = nn.Sequential(nn.Linear(obs_dim, 5), nn.LayerNorm(5), nn.Tanh())
        self.last = nn.Linear(5, settings)
        self.frozen = nn.Parameter(torch.randn(settings), requires_grad=False)
        self.register_buffer("factor", torch.randn(()))

    def forward(self, obs):
        return self.factor * self.last(self.layers(obs)) + self.frozen


FACTORY = OwnFactory("m:Hidden", Hidden, 4)


def drawn(net, seed):
    return net.init(torch.Generator().manual_seed(seed))


def test_its_learned_parameters_are_drawn_from_the_generator_alone():
    net = FACTORY(3)
    assert net.features == 4
    learned = {n: tuple(p.shape) for n, p in Hidden(4, 3).named_parameters() if n != "frozen"}
    assert dict(net.shapes) == learned
    torch.manual_seed(7)
    first, again, other = drawn(net, 0), drawn(net, 0), drawn(net, 1)
    following = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(following, torch.rand(3))  # torch's own stream is as before
    assert all(torch.equal(first[name], again[name]) for name in learned)
    assert not torch.equal(first["last.weight"], other["last.weight"])
    assert first["last.weight"].abs().max() <= 5**-0.5  # as torch draws them


def test_it_computes_what_the_module_computes():
    net, module = FACTORY(3), Hidden(4, 3)
    params = drawn(net, 0)
    constants = {"factor": net._constants["factor"], "frozen": net._constants["frozen"]}
    module.load_state_dict({**params, **constants})
    obs = torch.randn(2, 6, 3)
    assert torch.equal(net(params, obs), module(obs))
    slope = grad(lambda given: net(given, obs).sum())(params)
    assert set(slope) == set(params)
    assert slope["last.weight"].abs().sum() > 0


def test_every_process_makes_the_same_one():
    here, there = FACTORY(3), pickle.loads(pickle.dumps(FACTORY))(3)
    params, obs = drawn(here, 0), torch.randn(6, 3)
    torch.manual_seed(1)
    assert torch.equal(here(params, obs), there(params, obs))


def test_a_class_that_is_neither_is_refused():
    assert own_class("tests.nets.test_own_making:Hidden") is Hidden
    with pytest.raises(ConfigError, match=r"OwnFactory lacks init; derive it from torch.nn.Module"):
        own_class("tests.nets.test_own_making:OwnFactory")
