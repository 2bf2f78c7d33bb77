"""Updates in C++ give the numbers of eager ones, and the same bits for any team."""

import platform
import shutil
from functools import cache, partial

import pytest
import torch

from tests.algos.test_updating_together import drawn
from tests.learning.sharing.test_team import in_threads, nothing
from walle import algos
from walle.algos import engines
from walle.config import compose
from walle.errors import WorkerDeathError
from walle.learning.native.replay_updates import NativeUpdates
from walle.learning.sharing.shared_team import SharedTeam, TeamMemory, get, put
from walle.learning.trees import leaves, rebuild
from walle.nets.factory import NetSettings
from walle.training import make_problem

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SMALL = (
    *("net.policy_hidden=[16,16]", "net.critic_hidden=[16,16]", "algo.minibatch_size=24"),
    *("algo.learning_rate=1e-3", "algo.compile=true", "sampler=serial"),
)
CASES = {
    "sac": ("algo=sac", "env=hopper"),
    "sac, an entropy to aim at": ("algo=sac", "env=hopper", "algo.target_entropy=-1"),
    "sac, odd widths": ("algo=sac", "env=hopper", "net.policy_hidden=[7]"),
    "sac, many rows": ("algo=sac", "env=hopper", "algo.minibatch_size=200", "algo.tau=0.1"),
    "sac, tanh": ("algo=sac", "env=pendulum", "net.activation=tanh", "algo.adam_beta1=0.9"),
    "sac, normalised layers": ("algo=sac", "env=hopper", "net.activation=norm_relu"),
    "sac, wide": ("algo=sac", "env=gym", "env.id=tests.toy:Wide-v0"),
    "sac, shards": ("algo=sac", "env=hopper", "learner.shards=4"),
    "xqc": ("algo=xqc", "env=hopper"),
    "xqc, no hidden layers": (
        *("algo=xqc", "env=hopper", "net.policy_hidden=[]", "net.critic_hidden=[]"),
        "algo.target_entropy=-1",
    ),
    "xqc, odd widths": (
        *("algo=xqc", "env=hopper", "net.policy_hidden=[7,1]", "net.critic_hidden=[9,20,33]"),
        "algo.policy_delay=2",
    ),
    "xqc, many rows": (
        *("algo=xqc", "env=hopper", "algo.minibatch_size=198", "algo.tau=0.1", "learner.shards=3"),
    ),
    "xqc, tanh": ("algo=xqc", "env=pendulum", "net.activation=tanh"),
    "xqc, wide": ("algo=xqc", "env=gym", "env.id=tests.toy:Wide-v0"),
    "td3": ("algo=td3", "env=hopper"),
    **{
        f"{name}, falling steps": (
            *(f"algo={name}", "env=hopper", "algo.schedule=linear", "total_steps=320"),
            *("algo.learning_starts=256", "algo.minibatch_size=8"),
        )
        for name in ("sac", "td3", "xqc")
    },
    "td3, three updates a block": ("algo=td3", "env=hopper", "algo.policy_delay=3"),
    "td3, layers of both normalised": ("algo=td3", "env=hopper", "net.activation=norm_relu"),
    "td3, relu": ("algo=td3", "env=hopper", "net.activation=relu"),
    "td3, shards": ("algo=td3", "env=hopper", "learner.shards=3"),
    "ddpg": ("algo=ddpg", "env=pendulum"),
    "ddpg, a deeper critic": ("algo=ddpg", "env=hopper", "net.critic_hidden=[9,20,33]"),
}
WINDY = ("env=gym", "env.id=tests.toy:Windy-v0", "env.critic_keys=[place,wind]")
WINDY = (*WINDY, "env.policy_keys=[target,place]", "learner.shards=2")
CASES |= {f"{name}, other keys": (f"algo={name}", *WINDY) for name in ("sac", "xqc", "td3")}
DQN = ("algo=dqn", "env=cartpole", "algo.max_grad_norm=0.1", "algo.target_interval=3")
CASES |= {
    "dqn": DQN,
    "dqn, neither double nor bounded": (*DQN, "algo.double=false", "algo.max_grad_norm=null"),
    "dqn, tanh, a soft target": (*DQN, "net.activation=tanh", "algo.tau=0.5"),
    "dqn, normalised layers": (*DQN, "net.activation=critic_norm_relu"),
    "dqn, shards": (*DQN, "learner.shards=3", "algo.schedule=constant"),
}
UPDATES = 20


@cache
def problem_of(case):
    """The settings and the problem of a small run; Hydra composes in one thread only."""
    config = compose([*SMALL, *CASES[case]])
    return config, make_problem(config)[0]


def made(case, **changed):
    config, problem = problem_of(case)
    return algos.make(config.algo, NetSettings.of(config.net), problem._replace(**changed))


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_eager_updates(case):
    torch.set_num_threads(1)
    eager, native = made(case), made(case)
    native.warm_up()
    assert isinstance(native.updates, NativeUpdates)
    before = leaves(eager.state)
    inputs = drawn(eager, UPDATES // eager.settings.updates_per_block)
    expected, found = eager.learn(*inputs), native.learn(*inputs)
    torch.testing.assert_close(
        torch.stack(found), torch.stack(expected), atol=2e-4, rtol=2e-4, equal_nan=True
    )
    parts = zip(before, leaves(native.state), leaves(eager.state), strict=True)
    for start, ours, theirs in parts:
        torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=2e-3)
        assert not torch.equal(ours, start)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors are not slower")
def test_moments_are_never_denormal():
    native = made("sac")
    native.warm_up()
    smallest = torch.tensor(1e-40)
    native.state = rebuild(native.state, iter([x + smallest for x in leaves(native.state)]))
    native.learn(*drawn(native, 2))
    for numbers in leaves(native.state):
        assert not ((numbers != 0) & (numbers.abs() < torch.finfo(torch.float32).tiny)).any()
    assert smallest * 1 != 0  # outside of learning they count


@pytest.mark.parametrize("case", ["sac", "xqc", "td3", "ddpg", "dqn"])
def test_updates_one_by_one_and_at_once_have_the_same_bits(case):
    at_once, one_by_one = made(case), made(case)
    inputs = drawn(at_once, 5)
    at_once.warm_up()
    one_by_one.warm_up()
    at_once.learn(*inputs)
    for k in range(5):
        one_by_one.learn(*(x[k : k + 1] for x in inputs))
        one_by_one.load_state_dict(one_by_one.state_dict())
    assert all(map(torch.equal, leaves(at_once.state), leaves(one_by_one.state)))


@pytest.mark.parametrize("case", ["sac", "xqc", "td3", "ddpg", "dqn"])
def test_the_bits_do_not_depend_on_the_number_of_learners(case):
    torch.set_num_threads(1)

    def learned(rank=0, memory=None, places=None):
        algorithm = made(case, shards=4)
        if memory is not None:
            algorithm.join(SharedTeam(rank, memory, "cpu", nothing))
        algorithm.warm_up()
        assert isinstance(algorithm.optimizers()[0], NativeUpdates)
        data = get(memory.round, places, "cpu") if memory else drawn(algorithm)
        return leaves(algorithm.state), algorithm.learn(*data), leaves(algorithm.state)

    start, metrics, state = learned()
    for size in (2, 3, 4):
        memory = TeamMemory(size)
        places = put(memory.round, drawn(made(case, shards=4)))
        for _, numbers, found in in_threads(size, partial(learned, memory=memory, places=places)):
            assert all(map(torch.equal, found, state))
            assert all(map(torch.equal, numbers, metrics))
    assert not any(map(torch.equal, start, state))


def test_a_learner_that_waits_in_vain_raises_what_broke_the_team():
    algorithm = made("sac", shards=2)

    def while_waiting():
        raise WorkerDeathError("learner-1 was killed")

    team = SharedTeam(0, TeamMemory(2), "cpu", while_waiting)
    updates = algorithm.native_updates()
    updates.join_team(team)
    with pytest.raises(WorkerDeathError, match=r"learner-1 was killed"):
        updates.run(algorithm.state, *drawn(algorithm, 1))


def test_other_networks_learn_in_pytorch():
    config = compose([*SMALL, "algo=sac", "env=hopper", "net.activation=elu"])
    problem = make_problem(config)[0]
    algorithm = algos.make(config.algo, NetSettings.of(config.net), problem)
    assert not engines.has_networks(algorithm)


def test_minibatches_of_another_shape_are_refused():
    algorithm = made("dqn")
    minibatches, noise = drawn(algorithm, 2)
    with pytest.raises(ValueError, match=r"expected the shape \(2, 1, 24, .*got \(2, 1, 23, "):
        algorithm.native_updates().run(algorithm.state, minibatches[:, :, 1:], noise)


@pytest.mark.parametrize("case", ["sac", "xqc", "td3", "ddpg", "dqn"])
@pytest.mark.parametrize("times", [0, 2])
def test_a_state_of_another_length_is_refused(case, times):
    algorithm = made(case)
    inputs, updates = drawn(algorithm, 2), algorithm.native_updates()
    tensors = leaves(algorithm.state)
    for i, tensor in enumerate(tensors):
        other = tensor.flatten().repeat(times)
        state = rebuild(algorithm.state, iter([*tensors[:i], other, *tensors[i + 1 :]]))
        with pytest.raises(ValueError, match=r"expected the shape .*, got"):
            updates.run(state, *inputs)
    for fewer in (tuple(tensors[:-1]), (*tensors, tensors[0])):
        with pytest.raises(ValueError, match="zip"):
            updates.run(fewer, *inputs)


@pytest.mark.parametrize("case", ["sac", "xqc", "td3", "ddpg", "dqn"])
def test_rows_and_noise_of_another_width_are_refused(case):
    algorithm = made(case)
    (minibatches, noise), updates = drawn(algorithm, 2), algorithm.native_updates()
    for wrong in ((minibatches[..., 1:], noise), (minibatches, noise[:1])):
        with pytest.raises(ValueError, match=r"expected the shape .*, got"):
            updates.run(algorithm.state, *wrong)
