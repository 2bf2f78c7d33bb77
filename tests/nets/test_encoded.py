"""An encoder of the user's own before the layers of policy and critic."""

from functools import partial

import pytest
import torch

from walle.nets.critics import Critic
from walle.nets.encoded import FeatureCritic, FeaturePolicy
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
    policy, plain = FeaturePolicy(partial(Doubled, 3), readout), readout()
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
    policy = FeaturePolicy(partial(Doubled, 3), READOUTS[0])
    vector = policy.init(torch.Generator().manual_seed(0)).requires_grad_()
    policy.dist(policy.layout.unflatten(vector), torch.ones(4, 3)).sum().backward()
    assert (vector.grad[:3] != 0).all()


def test_the_critic_values_the_features():
    plain = Critic(6, [8], torch.tanh)
    critic = FeatureCritic(Doubled(3), plain)
    vector = critic.init(torch.Generator().manual_seed(0))
    obs = torch.randn(5, 3)
    value = critic(critic.layout.unflatten(vector), obs)
    features = torch.cat((2 * obs, obs), -1)
    assert torch.equal(value, plain(plain.layout.unflatten(vector[3:]), features))
