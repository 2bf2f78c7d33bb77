"""A gradient step in shards: its numbers, and that they do not depend on the number of learners."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.learning.sharing.test_team import in_threads, nothing
from walle.learning.adam import AdamSettings, AdamState
from walle.learning.step import Optimizer
from walle.learning.shards import ShardedStep, bounds
from walle.learning.sharing.team import SharedMemory, SharedTeam


class Column(NamedTuple):
    x: Tensor


def squares(vector, batch):
    """The mean of (x w - 1)², whose gradient is the mean of 2 x (x w - 1)."""
    error = batch.x * vector - 1
    return error.square().mean(), {"error": error.mean()}


def step_with(shards, rows, vector, size=None):
    step = ShardedStep(squares, AdamSettings(), shards)
    state, rate = AdamState.zeros_like(vector), torch.tensor(0.1)
    infos = []
    for batch in step.deal(Column(rows), None, size or len(rows)):
        vector, state, info = step(vector, state, rate, batch)
        infos.append(dict(zip(step.names, info.tolist(), strict=True)))
    return vector, state, infos


def test_the_gradients_of_shards_are_averaged_by_their_rows():
    vector, state, (info,) = step_with(2, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0]))
    assert info["error"] == pytest.approx(1.0)  # (0 + 1 + 2) / 3
    assert info["loss"] == pytest.approx(5 / 3)  # (0 + 1 + 4) / 3
    assert info["grad_norm"] == pytest.approx(16 / 3)  # 2 (0 + 2 + 6) / 3
    assert float(state.mean) == pytest.approx(0.1 * 16 / 3)
    assert float(vector) == pytest.approx(0.9)  # Adam's first step is the step size


def test_a_minibatch_with_fewer_rows_than_shards():
    _, _, (info,) = step_with(4, torch.tensor([1.0, 2.0]), torch.tensor([1.0]))
    assert info["error"] == pytest.approx(0.5)
    assert info["grad_norm"] == pytest.approx(2.0)  # 2 (0 + 2) / 2


def test_bounds_of_shards():
    assert bounds(8, 4) == [0, 2, 4, 6, 8]
    assert bounds(3, 2) == [0, 1, 3]


@pytest.mark.parametrize("rows", [64, 50, 3])
@pytest.mark.parametrize("order", [None, "random"])
def test_every_row_is_dealt_once(rows, order):
    data = Column(torch.arange(rows))
    taken = None if order is None else torch.randperm(rows)
    dealt = []
    for rank in range(3):
        step = ShardedStep(squares, AdamSettings(), 4)
        step.team = SharedTeam(rank, SharedMemory(3), "cpu", nothing)
        dealt.append(step.deal(data, taken, 16))
    found = []
    for minibatch in zip(*dealt, strict=True):
        shards = [shard for learner in minibatch for shard in learner.shards]
        weights = minibatch[0].weights
        assert len(shards) == len(weights) == 4
        assert float(weights.sum()) == pytest.approx(1)
        for shard, weight in zip(shards, weights.tolist(), strict=True):
            found += shard.x.tolist() if weight else []
    expected = data.x if taken is None else data.x[taken]
    assert found == expected.tolist()


def learned(rank, memory, shards):
    """Parameters and numbers of three epochs with learner `rank` of a team."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(200, 5, generator=generator)
    weights = torch.randn(5 * 7 + 7, generator=generator)

    def loss(vector, batch):
        hidden = torch.tanh(batch.x @ vector[:35].view(5, 7))
        error = hidden @ vector[35:] - 1
        return error.square().mean(), {"error": error.mean()}

    optimizer = Optimizer(loss, AdamSettings(max_grad_norm=0.5), shards=shards)
    if memory is not None:
        optimizer.join_team(SharedTeam(rank, memory, "cpu", nothing))
    result = optimizer.minimise(
        weights,
        AdamState.zeros_like(weights),
        Column(x),
        epochs=3,
        minibatch_size=48,
        learning_rate=1e-2,
        generator=generator,
    )
    return result.vector, result.state.square, result.info


@pytest.mark.parametrize("shards", [2, 4])
def test_the_bits_do_not_depend_on_the_number_of_learners(shards):
    torch.set_num_threads(1)
    alone = learned(0, None, shards)
    for size in range(1, shards + 1):
        memory = SharedMemory(size)
        for vector, square, info in in_threads(
            size,
            lambda rank: learned(rank, memory, shards),  # noqa: B023
        ):
            assert vector.equal(alone[0])
            assert square.equal(alone[1])
            assert info == alone[2]


def test_one_learner_without_shards_gives_the_same_numbers_but_for_rounding():
    whole, parts = learned(0, None, 1), learned(0, None, 4)
    torch.testing.assert_close(whole[0], parts[0], atol=1e-5, rtol=0)


def test_an_optimizer_without_shards_joins_no_team():
    with pytest.raises(TypeError, match="without shards"):
        Optimizer(squares, AdamSettings()).join_team(SharedTeam(0, SharedMemory(2), "cpu", nothing))
