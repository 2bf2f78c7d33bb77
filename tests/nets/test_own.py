"""An encoder of the user's own before the layers of policy and critic."""

from functools import partial

import pytest
import torch

from walle.nets.bounded_policies import DeterministicPolicy, SquashedGaussianPolicy
from walle.nets.critics import Critic, QFunctions
from walle.nets.discrete_policies import EpsilonGreedyPolicy
from walle.nets.own import OwnCritic, OwnPolicy, OwnQFunctions
from walle.nets.policies import CategoricalPolicy, GaussianPolicy


class Doubled:
    """Features: w x and x, where w starts at 2."""

    def __init__(self, obs_dim):
        self.features = 2 * obs_dim
        self.shapes = {"weight": (obs_dim,)}

    def init(self, generator):
        return {"weight": torch.full(self.shapes["weight"], 2.0)}

    def __call__(self, params, obs):
        return torch.cat((params["weight"] * obs, obs), -1)


READOUTS = [
    partial(GaussianPolicy, 6, 2, [8], torch.tanh, -0.5),
    partial(CategoricalPolicy, 6, 4, [8], torch.tanh),
]


@pytest.mark.parametrize("readout", READOUTS)
def test_the_policy_is_the_readout_of_the_features(readout):
    policy, plain = OwnPolicy(partial(Doubled, 3), readout), readout()
    vector = policy.init(torch.Generator().manual_seed(0))
    assert list(policy.layout.shapes) == ["encoder.weight", *plain.layout.shapes]
    assert len(vector) == policy.layout.size == 3 + plain.layout.size
    params, obs = policy.layout.unflatten(vector), torch.randn(16, 3)
    features = torch.cat((2 * obs, obs), -1)
    inner = plain.layout.unflatten(vector[3:])
    assert torch.equal(policy.dist(params, obs), plain.dist(inner, features))
    acted = policy.distribution(params, policy.acting(params, 16)(obs))
    torch.testing.assert_close(acted, policy.dist(params, obs))
    assert torch.equal(policy.mode(acted), plain.mode(acted))


def test_the_gradient_reaches_the_encoder():
    policy = OwnPolicy(partial(Doubled, 3), READOUTS[0])
    vector = policy.init(torch.Generator().manual_seed(0)).requires_grad_()
    policy.dist(policy.layout.unflatten(vector), torch.ones(4, 3)).sum().backward()
    assert (vector.grad[:3] != 0).all()


def test_the_critic_values_the_features():
    plain = Critic(6, [8], torch.tanh)
    critic = OwnCritic(Doubled(3), plain)
    vector = critic.init(torch.Generator().manual_seed(0))
    obs = torch.randn(5, 3)
    value = critic(critic.layout.unflatten(vector), obs)
    features = torch.cat((2 * obs, obs), -1)
    assert torch.equal(value, plain(plain.layout.unflatten(vector[3:]), features))
    found = critic.without_gradient(critic.layout.unflatten(vector), obs)
    torch.testing.assert_close(found, value)


LAYERS = ([8], torch.tanh)
OFF_POLICY = [
    partial(SquashedGaussianPolicy, 6, 2, *LAYERS),
    partial(DeterministicPolicy, 6, 2, *LAYERS, 0.1),
    partial(EpsilonGreedyPolicy, None, 6, 4, *LAYERS),
]


@pytest.mark.parametrize("make", OFF_POLICY)
def test_the_layers_of_an_off_policy_policy_get_the_features(make):
    own = {"own" if make.func is EpsilonGreedyPolicy else "encoder": partial(Doubled, 3)}
    policy, plain = make(**own), make()
    vector = policy.init(torch.Generator().manual_seed(0))
    assert list(policy.layout.shapes) == ["encoder.weight", *plain.layout.shapes]
    params, obs = policy.layout.unflatten(vector), torch.randn(16, 3)
    inner, features = plain.layout.unflatten(vector[3:]), torch.cat((2 * obs, obs), -1)
    assert torch.equal(policy.dist(params, obs), plain.dist(inner, features))
    acted = policy.distribution(params, policy.acting(params, 16)(obs))
    torch.testing.assert_close(acted, policy.dist(params, obs))


def test_learning_sees_the_features_too():
    squashed, deterministic, greedy = OFF_POLICY
    obs, noise = torch.randn(5, 3), torch.randn(5, 2)
    features = torch.cat((2 * obs, obs), -1)
    policy = squashed(encoder=partial(Doubled, 3))
    vector = policy.init(torch.Generator().manual_seed(0))
    drawn, expected = policy.draw(vector, obs, noise), squashed().draw(vector[3:], features, noise)
    assert all(torch.equal(*pair) for pair in zip(drawn, expected, strict=True))
    policy = deterministic(encoder=partial(Doubled, 3))
    vector = policy.init(torch.Generator().manual_seed(0))
    assert torch.equal(policy.act(vector, obs), deterministic().act(vector[3:], features))
    policy = greedy(own=partial(Doubled, 3))
    vector = policy.init_values(torch.Generator().manual_seed(0))
    assert torch.equal(policy.values(vector, obs), greedy().values(vector[3:], features))


def test_every_q_function_has_an_encoder_of_its_own():
    plain = QFunctions(6, 2, *LAYERS, 1)
    critic = OwnQFunctions(Doubled(3), plain, 2)
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
    critic = OwnQFunctions(Doubled(3), QFunctions(6, 2, *LAYERS, 1), 2)
    vector = critic.init(torch.Generator().manual_seed(0)).requires_grad_()
    action = torch.zeros(4, 2, requires_grad=True)
    critic(vector, torch.ones(4, 3), action).sum().backward()
    first, second = vector.grad.chunk(2)
    assert (first[:3] != 0).all()
    assert (second[:3] != 0).all()
    assert (action.grad != 0).all()
