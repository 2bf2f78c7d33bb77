import shutil
from typing import NamedTuple

import pytest
import torch

from tests.conftest import own_cache
from walle.config import compose
from walle.learning.gradient_steps import leaves, rebuild
from walle.learning.off_policy_updates import (
    TrainState,
    Updates,
    adam_update,
    polyak_update,
)
from walle.system.files import cache_directory
from walle.training import make_algorithm, make_problem

SMALL = (
    "env=hopper",
    "net.policy_hidden=[16,16]",
    "net.critic_hidden=[16,16]",
    "algo.minibatch_size=32",
    "algo.compile=false",
    "algo.learning_rate=1e-3",
)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


class Pair(NamedTuple):
    one: TrainState
    other: torch.Tensor


def test_descend_takes_adam_s_first_step():
    part = TrainState.start(torch.tensor([1.0, -2.0]))
    after, loss, beside = adam_update(lambda v: (v.square().sum(), v[0]), part, 0.1)
    assert loss.item() == 5.0
    assert beside.item() == 1.0
    torch.testing.assert_close(after.vector, torch.tensor([0.9, -1.9]))  # rate x sign at first
    assert part.vector.tolist() == [1.0, -2.0]


def test_descending_agrees_with_torch_s_adam():
    torch.manual_seed(0)
    part = TrainState.start(torch.randn(5))
    theirs = part.vector.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.01)
    for _ in range(50):
        slope = torch.randn(5)
        theirs.grad = slope.clone()
        optimizer.step()
        part, *_ = adam_update(lambda v, g=slope: ((v * g).sum(), v), part, 0.01)
    torch.testing.assert_close(part.vector, theirs.detach())


def test_followed_by_hand():
    target = polyak_update(torch.tensor([0.0, 4.0]), torch.tensor([1.0, 0.0]), 0.25)
    assert target.tolist() == [0.25, 3.0]


def test_nested_state_is_taken_apart_and_put_together():
    state = Pair(TrainState.start(torch.ones(2)), torch.zeros(3))
    parts = leaves(state)
    assert [len(x) for x in parts] == [2, 2, 2, 2, 3]
    again = rebuild(state, iter([x + 1 for x in parts]))
    assert isinstance(again.one, TrainState)
    assert again.one.vector.tolist() == [2, 2]
    assert again.other.tolist() == [1, 1, 1]


def fifty(name):
    """An algorithm's optimizer, its state, and minibatches and noise for 50 updates."""
    config = compose([f"algo={name}", *SMALL])
    problem, _ = make_problem(config)
    algorithm = make_algorithm(config, problem)
    generator = torch.Generator().manual_seed(1)
    block = algorithm.settings.policy_delay if name == "td3" else 1
    draws = {"sac": 2, "td3": 1, "ddpg": 0}[name]
    width = algorithm.replay.width
    rows = torch.randn(50 // block, block, 32, width, generator=generator)
    rows[..., -1] = (rows[..., -1] > -1).float()  # continues
    noise = torch.randn(50 // block, block, draws, 32, 3, generator=generator)
    return algorithm, rows, noise


@needs_compiler
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("ddpg", marks=pytest.mark.slow),
        pytest.param("td3", marks=pytest.mark.slow),
        pytest.param("sac", marks=pytest.mark.slow),
    ],
)
def test_compiled_and_eager_agree_after_fifty_updates(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache(tmp_path)))
    algorithm, rows, noise = fifty(name)
    start, optimizer = algorithm.state, Updates(algorithm.block)
    eager, eager_info = optimizer.run(start, rows, noise)
    optimizer.compile(start, rows[0], noise[0])
    assert len(list(cache_directory().glob("*.pt2"))) == 1
    fast, fast_info = optimizer.run(start, rows, noise)
    for ours, theirs, before in zip(*map(leaves, (fast, eager, start)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
        assert not torch.equal(ours, before)
    torch.testing.assert_close(
        torch.stack(fast_info), torch.stack(eager_info), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
def test_a_block_changes_nothing_it_was_given(name):
    algorithm, rows, noise = fifty(name)
    before = [x.clone() for x in leaves(algorithm.state)]
    algorithm.block(algorithm.state, rows[0], noise[0])
    assert all(map(torch.equal, before, leaves(algorithm.state)))
