"""Several learners end with the bits of one, for every algorithm with a replay buffer."""

from functools import cache, partial

import pytest
import torch

from tests.learning.sharing.test_team import in_threads, nothing
from walle import algos
from walle.algos.off_policy.base import Draw
from walle.config import compose
from walle.learning.sharing.shared_team import SharedTeam, TeamMemory, get, put
from walle.learning.trees import leaves
from walle.nets.factory import NetSettings
from walle.training import make_problem

SMALL = (
    "net.policy_hidden=[16,16]",
    "net.critic_hidden=[16,16]",
    "algo.minibatch_size=24",
    "algo.learning_rate=1e-2",
    "algo.compile=false",
    "sampler=serial",
)
CASES = {  # more overrides, and numbers of learners
    "sac": (("env=hopper",), (1, 2, 3, 4)),
    "xqc": (("env=hopper",), (1, 3)),
    "td3": (("env=hopper", "algo.policy_delay=3"), (1, 2)),
    "ddpg": (("env=pendulum",), (1, 2)),
    "dqn": (("env=cartpole", "algo.target_interval=2"), (1, 2)),
}
BLOCKS = 3


@cache
def problem_of(name):
    """The settings and the problem of a small run."""
    config = compose([f"algo={name}", *SMALL, *CASES[name][0]])
    return config, make_problem(config)[0]


def made(name, shards):
    config, problem = problem_of(name)
    return algos.make(config.algo, NetSettings.of(config.net), problem._replace(shards=shards))


def drawn(algorithm, blocks=BLOCKS):
    """Random transitions and noise for some blocks of updates."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(blocks, *algorithm._minibatches, generator=generator)
    rows[..., -1] = (rows[..., -1] > -1).float()  # continues
    if algorithm.settings.name == "dqn":
        rows[..., algorithm.obs_dim] = (rows[..., algorithm.obs_dim] > 0).float()  # the action
    return Draw(rows, torch.randn(blocks, *algorithm._noise, generator=generator))


def learned(name, shards, rank=0, memory=None, places=None):
    """The state and the metrics after the updates of learner `rank` of a team."""
    algorithm = made(name, shards)
    if memory is not None:
        algorithm.join(SharedTeam(rank, memory, "cpu", nothing))
    metrics = algorithm.learn(*get(memory.round, places, "cpu") if memory else drawn(algorithm))
    return leaves(algorithm.state), metrics


@pytest.mark.parametrize("name", CASES)
def test_the_bits_do_not_depend_on_the_number_of_learners(name):
    torch.set_num_threads(1)
    state, metrics = learned(name, 4)
    assert not any(map(torch.equal, state, leaves(made(name, 4).state)))
    for size in CASES[name][1]:
        memory = TeamMemory(size)
        places = put(memory.round, drawn(made(name, 4)))
        learner = partial(learned, name, 4, memory=memory, places=places)
        for found, numbers in in_threads(size, lambda rank: learner(rank=rank)):  # noqa: B023
            assert all(map(torch.equal, found, state))
            assert all(map(torch.equal, numbers, metrics))


@pytest.mark.parametrize("name", [x for x in CASES if x != "xqc"])  # which normalises each shard
def test_shards_give_the_numbers_of_whole_minibatches_but_for_rounding(name):
    whole, parts = made(name, 1), made(name, 3)
    inputs = drawn(whole, blocks=1)
    expected, found = whole.learn(*inputs), parts.learn(*inputs)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(leaves(parts.state), leaves(whole.state), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)
