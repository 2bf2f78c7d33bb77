"""Nets of the user's own under walle's algorithms."""

import pytest
import torch
from torch import nn

from tests.algos.on_policy.test_ppo import trained
from walle.learning.trees import leaves

NAMES = ("ddpg", "td3", "sac", "xqc", "dqn")
SMALL = (
    "net.policy_hidden=[16]",
    "net.critic_hidden=[16]",
    "net.activation=relu",
    "algo.minibatch_size=16",
    "algo.learning_starts=64",
    "algo.updates_per_step=0.05",
    "algo.compile=false",
    "batch_size=64",
    "sampler.lanes=8",
    "total_steps=512",
)


class Same:
    """Features: the observations themselves."""

    def __init__(self, settings, obs_dim):
        self.features, self.shapes = obs_dim, {}

    def init(self, generator):
        return {}

    def __call__(self, params, obs):
        return obs


class Wide(Same):
    """Features: 2 x and w x, where w starts at 0."""

    def __init__(self, settings, obs_dim):
        self.features, self.shapes = 2 * obs_dim, {"weight": (obs_dim,)}

    def init(self, generator):
        return {"weight": torch.zeros(self.shapes["weight"])}

    def __call__(self, params, obs):
        return torch.cat((2 * obs, params["weight"] * obs), -1)


class Module(nn.Module):
    """The same as `Wide`, written for torch; a constant factor stands in a buffer."""

    def __init__(self, settings, obs_dim):
        super().__init__()
        self.features = 2 * obs_dim
        self.weight = nn.Parameter(torch.zeros(obs_dim))
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, obs):
        return torch.cat((self.factor * obs, self.weight * obs), -1)


def learned(name, *net):
    env = "env=cartpole" if name == "dqn" else "env=pendulum"
    return trained(4, f"algo={name}", env, *SMALL, *net)[0]


def own(name):
    return ("net=own", f"net.name=tests.algos.test_own_nets:{name}")


@pytest.mark.parametrize("name", NAMES)
def test_a_net_that_changes_nothing_learns_the_same(name):
    ours, plain = learned(name, *own("Same")), learned(name, "net=mlp256")
    assert ours.blocks > 0
    pairs = zip(leaves(ours.state), leaves(plain.state), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize(("name", "net"), [*((each, "Wide") for each in NAMES), ("sac", "Module")])
def test_policy_and_critics_each_learn_an_encoder(name, net):
    algorithm = learned(name, *own(net))
    size = algorithm.policy.layout.shapes["policy.encoder.weight"][0]
    encoders = [algorithm.policy_vector[:size]]
    if name != "dqn":
        count = 1 if name == "ddpg" else 2
        encoders += [each[:size] for each in algorithm.state.critic.vector.chunk(count)]
    assert all((each != 0).all() for each in encoders)
    assert len({tuple(each.tolist()) for each in encoders}) == len(encoders)


@pytest.mark.slow
def test_a_compiled_update_computes_the_same():
    algorithm = learned("sac", *own("Module"))
    compiled = learned("sac", *own("Module"), "algo.compile=true")
    assert compiled.warm_up().startswith("learning compiled")
    compiled.load_state_dict(algorithm.state_dict())
    compiled.replay = algorithm.replay
    expected, found = algorithm.improve(3), compiled.improve(3)
    assert found == pytest.approx(expected, abs=1e-4)
    for pair in zip(leaves(compiled.state), leaves(algorithm.state), strict=True):
        torch.testing.assert_close(*pair, atol=1e-4, rtol=1e-4)
