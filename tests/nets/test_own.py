"""Nets of the user's own: made, checked, and in front of the layers of policy and critic."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.func import grad

from walle.errors import ConfigError
from walle.nets.critics import Critic, QFunctions
from walle.nets.own import OwnFactory, check_net, own_class
from walle.nets.policies import CategoricalPolicy, GaussianPolicy
from walle.nets.replay_policies import (
    DeterministicPolicy,
    EpsilonGreedyPolicy,
    SquashedGaussianPolicy,
)


class Doubled:
    """Features: w x and x, where w starts at 2."""

    def __init__(self, obs_dim):
        self.features = 2 * obs_dim
        self.shapes = {"weight": (obs_dim,)}

    def init(self, generator):
        return {"weight": torch.full(self.shapes["weight"], 2.0)}

    def __call__(self, params, obs):
        return torch.cat((params["weight"] * obs, obs), -1)


LAYERS = ([8], torch.tanh)
POLICIES = [
    partial(GaussianPolicy, 6, 2, *LAYERS, -0.5),
    partial(CategoricalPolicy, 6, 4, *LAYERS),
    partial(SquashedGaussianPolicy, 6, 2, *LAYERS),
    partial(DeterministicPolicy, 6, 2, *LAYERS, 0.1),
    partial(EpsilonGreedyPolicy, None, 6, 4, *LAYERS),
]


@pytest.mark.parametrize("make", POLICIES)
def test_the_layers_of_a_policy_get_the_features(make):
    policy, plain = make(own=Doubled(3)), make()
    vector = policy.init(torch.Generator().manual_seed(0))
    assert list(policy.layout.shapes) == ["policy.encoder.weight", *plain.layout.shapes]
    assert len(vector) == policy.layout.size == 3 + plain.layout.size
    params, obs = policy.layout.unflatten(vector), torch.randn(16, 3)
    inner, features = plain.layout.unflatten(vector[3:]), torch.cat((2 * obs, obs), -1)
    assert torch.equal(policy.dist(params, obs), plain.dist(inner, features))
    acted = policy.distribution(params, policy.acting(params, 16)(obs))
    torch.testing.assert_close(acted, policy.dist(params, obs))


def test_the_gradient_reaches_the_encoder():
    policy = POLICIES[0](own=Doubled(3))
    vector = policy.init(torch.Generator().manual_seed(0)).requires_grad_()
    policy.dist(policy.layout.unflatten(vector), torch.ones(4, 3)).sum().backward()
    assert (vector.grad[:3] != 0).all()


def test_the_critic_values_the_features():
    critic, plain = Critic(6, *LAYERS, Doubled(3)), Critic(6, *LAYERS)
    vector = critic.init(torch.Generator().manual_seed(0))
    obs = torch.randn(5, 3)
    value = critic(critic.layout.unflatten(vector), obs)
    features = torch.cat((2 * obs, obs), -1)
    assert torch.equal(value, plain(plain.layout.unflatten(vector[3:]), features))


def test_learning_sees_the_features_too():
    squashed, deterministic, greedy = POLICIES[2:]
    obs, noise, own = torch.randn(5, 3), torch.randn(5, 2), Doubled(3)
    features = torch.cat((2 * obs, obs), -1)
    policy = squashed(own=own)
    vector = policy.init(torch.Generator().manual_seed(0))
    drawn, expected = policy.draw(vector, obs, noise), squashed().draw(vector[3:], features, noise)
    assert all(torch.equal(*pair) for pair in zip(drawn, expected, strict=True))
    policy = deterministic(own=own)
    vector = policy.init(torch.Generator().manual_seed(0))
    assert torch.equal(policy.act(vector, obs), deterministic().act(vector[3:], features))
    policy = greedy(own=own)
    vector = policy.init_values(torch.Generator().manual_seed(0))
    assert torch.equal(policy.values(vector, obs), greedy().values(vector[3:], features))


def test_every_q_function_has_an_encoder_of_its_own():
    critic, plain = QFunctions(6, 2, *LAYERS, 2, Doubled(3)), QFunctions(6, 2, *LAYERS, 1)
    vector = critic.init(torch.Generator().manual_seed(0))
    size = 3 + plain.layout.size
    assert len(vector) == critic.layout.size == 2 * size
    assert not torch.equal(vector[3:size], vector[size + 3 :])
    vector[size : size + 3] = 5.0
    obs, action = torch.randn(7, 3), torch.randn(7, 2)
    q = critic(vector, obs, action)
    for k, weight in enumerate((2, 5)):
        inner = vector[k * size + 3 : (k + 1) * size]
        assert torch.equal(q[k], plain(inner, torch.cat((weight * obs, obs), -1), action)[0])
    assert torch.equal(critic.first(vector, obs, action), q[0])


def test_the_gradient_of_q_reaches_the_encoders_and_the_action():
    critic = QFunctions(6, 2, *LAYERS, 2, Doubled(3))
    vector = critic.init(torch.Generator().manual_seed(0)).requires_grad_()
    action = torch.zeros(4, 2, requires_grad=True)
    critic(vector, torch.ones(4, 3), action).sum().backward()
    first, second = vector.grad.chunk(2)
    assert (first[:3] != 0).all()
    assert (second[:3] != 0).all()
    assert (action.grad != 0).all()


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
    assert own_class("tests.nets.test_own:Hidden") is Hidden
    with pytest.raises(ConfigError, match=r"OwnFactory lacks init; derive it from torch.nn.Module"):
        own_class("tests.nets.test_own:OwnFactory")


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
        (changed(init=lambda self, g: {}), r"init returns nothing, but shapes names 'weight'"),
        (
            changed(init=lambda self, g: {"weight": torch.zeros(3, 4)}),
            r"init returns 'weight' of shape \(3, 4\) .* must have the shape \(4, 3\) in shapes",
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
        (
            changed(__call__=lambda self, p, x: x.clamp_(-1, 1) @ p["weight"].T),
            r"it changes its observations in place; write to a new tensor",
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
