"""Several learners end with the bits of one, whatever the algorithm and the network."""

import pytest
import torch

from tests.algos.on_policy.test_ppo import trained
from tests.learning.sharing.test_team import in_threads, nothing
from walle.algos import load
from walle.algos.on_policy.base import RoundData
from walle.algos.on_policy.trpo import TRPO
from walle.config import compose
from walle.learning.sharing.shared_team import SharedTeam, TeamMemory, get, put
from walle.nets.factory import NetSettings
from walle.training import make_problem

SMALL = (
    "env=hopper",
    "batch_size=512",
    "sampler.lanes=8",
    "algo.compile=false",
    "learner.shards=4",
)
VALUES = ("algo.value_minibatch_size=64", "algo.value_epochs=2")
CASES = {
    "ppo": ("algo.epochs=2", "algo.minibatch_size=192"),  # the last minibatch is smaller
    "ppo gru": ("net=gru", "net.sequence=8", "algo.epochs=2", "algo.minibatch_size=256"),
    "ppo target_kl": ("algo.target_kl=1e-4", "algo.learning_rate=1e-2"),
    "ppo_kl": ("algo=ppo_kl", "algo.epochs=2", *VALUES),
    "a2c": ("algo=a2c",),
    "pqn": ("algo=pqn", "env=acrobot", "algo.epochs=2", "algo.minibatch_size=192"),
    "trpo": ("algo=trpo", *VALUES),
}
ROUNDS = 2


def round_of(rollout, algorithm):
    """What an algorithm's `learn` gets of a rollout."""
    return RoundData(algorithm.normalizers.experience(rollout), rollout)


def vectors(state):
    """All tensors of a state, by their names."""
    found = {}
    for name, value in state.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": x for inner, x in vectors(value).items()}
        elif isinstance(value, torch.Tensor):
            found[name] = value
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_bits_do_not_depend_on_the_number_of_learners(case, monkeypatch):
    # TRPO's policy step, which nobody divides, differentiates forwards: that works in one thread.
    monkeypatch.setattr(TRPO, "improve_policy", lambda *_: {})
    torch.set_num_threads(1)
    options = (*SMALL, *CASES[case])
    leader, rollout = trained(0, *options)
    data, config = round_of(rollout, leader), compose([*options, "sampler=serial"])
    problem, _ = make_problem(config)

    def learner(rank, memory, places):
        algorithm = load(config.algo.name)(config.algo, NetSettings.of(config.net), problem)
        if memory is not None:
            algorithm.join(SharedTeam(rank, memory, "cpu", nothing))
        for _ in range(ROUNDS):
            metrics = algorithm.learn(*get(memory.round, places, "cpu") if memory else data)
        return vectors(algorithm.state_dict()), metrics

    expected, numbers = learner(0, None, None)
    assert any(not expected[name].equal(x) for name, x in vectors(leader.state_dict()).items())
    for size in (1, 2, 3, 4):
        memory = TeamMemory(size)
        places = put(memory.round, data)
        for found, metrics in in_threads(size, lambda rank: learner(rank, memory, places)):  # noqa: B023
            assert found.keys() == expected.keys()
            for name, tensor in found.items():
                assert tensor.equal(expected[name]), name
            assert metrics == pytest.approx(numbers, rel=0, abs=0, nan_ok=True)
