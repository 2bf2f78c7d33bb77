import itertools
import math

import numpy as np
import pytest
import torch

from walle.envs import EnvSpec, make_lanes
from walle.nets.features import GRU
from walle.nets.policies import CategoricalPolicy, FeaturePolicy, GaussianPolicy, memory_of
from walle.sampling.actor import Actor
from walle.sampling.collect import LaneSampler
from walle.sampling.slots import RolloutShape, Slot
from walle.timing import SAMPLER_SECTIONS, Timer
from walle.types import PolicySnapshot

COUNTER = EnvSpec("tests.toy:Counter-v0")  # its episodes have 3 steps


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def policy_of(units=10, discrete=False):
    if discrete:
        readout = CategoricalPolicy(units, 3, (16,), torch.tanh)
    else:
        readout = GaussianPolicy(units, 1, (16,), torch.tanh, 0.0)
    return FeaturePolicy(readout, memory=GRU("memory", 2, units))


def random_params(gru, generator):
    return {name: torch.randn(shape, generator=generator) for name, shape in gru.shapes.items()}


def test_a_step_by_hand():
    """One unit, h = 0.5 and x = 1: r = σ(1 + 1) and z = σ(0), n = tanh(1 + r (2 h + 1))."""
    gru = GRU("m", 1, 1)
    params = {
        "m.weight_x": torch.tensor([[1.0], [0.0], [1.0]]),
        "m.weight_h": torch.tensor([[2.0], [0.0], [2.0]]),
        "m.bias_x": torch.zeros(3),
        "m.bias_h": torch.tensor([0.0, 0.0, 1.0]),
    }
    reset = 1 / (1 + math.exp(-2))
    new = math.tanh(1 + reset * 2)
    found = gru.step(params, torch.tensor([[1.0]]), torch.tensor([[0.5]]))
    assert found.item() == pytest.approx(0.5 * new + 0.5 * 0.5)


def test_a_step_is_that_of_torchs_cell(generator):
    gru, cell = GRU("m", 3, 5), torch.nn.GRUCell(3, 5)
    params = random_params(gru, generator)
    own = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    with torch.no_grad():
        for theirs, ours in zip(own, params.values(), strict=True):
            theirs.copy_(ours)
    x, state = torch.randn(7, 3), torch.randn(7, 5)
    torch.testing.assert_close(gru.step(params, x, state), cell(x, state))


def test_an_episode_begins_with_an_empty_memory(generator):
    gru = GRU("m", 3, 5)
    params = random_params(gru, generator)
    x, state = torch.randn(4, 2, 3), torch.randn(2, 5)
    began = torch.tensor([[0, 1], [0, 0], [1, 0], [0, 0]]).bool()
    states = gru.unroll(params, x, began, state)
    for lane, beginnings in enumerate(([2], [0])):
        h = state[lane : lane + 1]
        for t in range(4):
            h = torch.zeros(1, 5) if t in beginnings else h
            h = gru.step(params, x[t, lane : lane + 1], h)
            torch.testing.assert_close(states[t, lane], h[0])


@pytest.mark.parametrize("units", [5, 64])
def test_acting_computes_what_a_step_does(generator, units):
    gru = GRU("m", 3, units)
    params = random_params(gru, generator)
    state, x = torch.randn(8, units), torch.randn(2, 8, 3)
    expected = gru.unroll(params, x, torch.zeros(2, 8).bool(), state)
    forward = gru.acting(params, state)
    for t in range(2):
        torch.testing.assert_close(forward(x[t]), expected[t])
        torch.testing.assert_close(state, expected[t])


def test_weights_of_every_gate_are_orthogonal(generator):
    params = GRU("m", 8, 8).init(generator)
    for gate in (*params["m.weight_x"].chunk(3), *params["m.weight_h"].chunk(3)):
        torch.testing.assert_close(gate @ gate.T, torch.eye(8), atol=1e-5, rtol=0)
    assert not params["m.bias_x"].any()


@pytest.mark.parametrize("discrete", [False, True])
def test_a_policys_vector_holds_memory_and_readout(generator, discrete):
    policy = policy_of(discrete=discrete)
    vector = policy.init(generator)
    assert vector.shape == (policy.layout.size,)
    params = policy.layout.unflatten(vector)
    assert params["memory.weight_h"].shape == (30, 10)
    feature = torch.randn(4, 10)
    own = {name: params[name] for name in policy.readout.layout.shapes}
    assert torch.equal(policy.dist(params, feature), policy.readout.dist(own, feature))
    assert memory_of(policy) is policy.memory
    assert memory_of(policy.readout) is None


def snapshot(policy):
    vector = policy.init(torch.Generator().manual_seed(0)).numpy()
    norm = np.concatenate((np.full(2, 0.1), np.full(2, 2.0)))
    return PolicySnapshot(0, np.concatenate((vector, norm), dtype=np.float32))


def collected(policy, numbers, rounds, steps=5):
    actor = Actor(policy, 2, len(numbers), 10.0)
    sampler = LaneSampler(make_lanes(COUNTER, numbers, seed=7), actor, numbers, seed=7)
    units = policy.memory.units
    shape = RolloutShape(steps, len(numbers), (2,), "float32", (1,), "float32", state=units)
    rollouts = []
    for round_ in range(rounds):
        slot = Slot.empty(shape)
        sampler.fill(slot.rollout, snapshot(policy), round_, Timer(SAMPLER_SECTIONS))
        rollouts.append(slot.rollout)
    sampler.lanes.close()
    return rollouts


def test_a_lane_remembers_from_rollout_to_rollout_and_forgets_at_an_episodes_end():
    policy = policy_of()
    rollouts = collected(policy, [0, 1], rounds=3)
    params = policy.layout.unflatten(torch.from_numpy(snapshot(policy).vector[:-4]))
    assert not rollouts[0].state.any()
    for before, after in itertools.pairwise(rollouts):
        obs = ((torch.from_numpy(before.obs[:-1]) - 0.1) * 2.0).clamp(-10, 10)
        ended = torch.from_numpy(before.terminated)
        began = torch.cat((torch.zeros(1, 2).bool(), ended[:-1]))
        states = policy.memory.unroll(params, obs, began, torch.from_numpy(before.state))
        expected = states[-1] * ~ended[-1:].T
        torch.testing.assert_close(torch.from_numpy(after.state), expected, atol=1e-5, rtol=0)
        log_prob = policy.log_prob(policy.dist(params, states), torch.from_numpy(before.action))
        np.testing.assert_allclose(before.log_prob, log_prob, atol=1e-5)
    assert rollouts[1].state.any()  # after 5 steps in the middle of an episode
    assert not collected(policy, [0], rounds=2, steps=3)[1].state.any()  # an episode ended there


@pytest.mark.parametrize("units", [10, 64])
def test_a_lane_does_the_same_in_whichever_sampler_it_lives(units):
    together = collected(policy_of(units), list(range(7)), rounds=3)
    for part in (range(1), range(1, 4), range(4, 7)):
        columns = list(part)
        for whole, alone in zip(
            together, collected(policy_of(units), columns, rounds=3), strict=True
        ):
            assert np.array_equal(whole.state[columns], alone.state)
            assert np.array_equal(whole.action[:, columns], alone.action)
            assert np.array_equal(whole.log_prob[:, columns], alone.log_prob)
