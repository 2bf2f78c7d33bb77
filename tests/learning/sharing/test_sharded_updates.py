from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.learning.sharing.test_team import in_threads, nothing
from walle.learning.off_policy_updates import Stage, Updates, take_stages
from walle.learning.sharing.sharded_updates import ShardedUpdates
from walle.learning.sharing.team import SharedMemory, SharedTeam


class Places(NamedTuple):
    """Two numbers; the first moves by the mean of the rows, the second by that of the noise."""

    one: Tensor
    two: Tensor


def first_gradient(state, minibatch, noise):
    return minibatch.mean(0) + state.one, (minibatch[:, 0].square(),)


def first_step(state, grad, values):
    return state._replace(one=state.one - grad)


def second_gradient(state, minibatch, noise):
    return noise[0].mean(0), (state.one.sum(), minibatch[:, 0])


def second_step(state, grad, values):
    return state._replace(two=state.two - grad + values[1].mean())


def summary(found):
    (square,), (_, row) = found[0], found[-1]
    return square.mean(), row.mean()


STAGES = [Stage(first_gradient, first_step, k) for k in range(2)]
STAGES.append(Stage(second_gradient, second_step, 1))
START = Places(torch.tensor([10.0]), torch.tensor([0.0]))
ROWS = torch.tensor([[[1.0], [2.0], [3.0], [6.0]], [[0.0], [4.0], [4.0], [0.0]]])  # [K, B, W]
NOISE = torch.tensor([[[[9.0]] * 4], [[[1.0], [2.0], [3.0], [4.0]]]])  # [K, M, B, A]


def check(state, metrics):
    assert state.one.tolist() == [-2.0]  # 10 - (3 + 10), then - 3 - (2 - 3)
    assert state.two.tolist() == [-0.5]  # 0 - 2.5 + 2
    assert metrics.tolist() == [12.5, 2.0]  # (1 + 4 + 9 + 36) / 4


@pytest.mark.parametrize("shards", [2, 4])
def test_the_stages_of_a_block_by_hand(shards):
    state, (metrics,) = ShardedUpdates(STAGES, summary, shards).run(START, ROWS[None], NOISE[None])
    check(state, metrics)


def test_whole_minibatches_by_hand():
    def block(state, rows, noise):
        after, found = take_stages(STAGES, state, rows, noise)
        return after, summary(found)

    state, (metrics,) = Updates(block).run(START, ROWS[None], NOISE[None])
    check(state, metrics)


def test_a_learner_computes_its_shards_alone():
    memory, seen = SharedMemory(2), []

    def noted(state, minibatch, noise):
        seen.append(minibatch[:, 0].tolist())
        return first_gradient(state, minibatch, noise)

    def learner(rank):
        updates = ShardedUpdates([Stage(noted, first_step)], lambda found: found[0], shards=2)
        updates.join_team(SharedTeam(rank, memory, "cpu", nothing))
        return updates.run(START, ROWS[None], NOISE[None])[0].one

    assert [x.tolist() for x in in_threads(2, learner)] == [[-3.0], [-3.0]]
    assert sorted(rows for rows in seen if len(rows) == 2) == [[1, 2], [3, 6]]
