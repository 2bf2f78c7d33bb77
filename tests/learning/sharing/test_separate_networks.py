"""A gradient step divided by networks: its numbers, and that they do not depend on the learners."""

import math
import shutil
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.learning.sharing.test_team import in_threads, nothing
from walle.learning.adam import AdamSettings, AdamState
from walle.learning.optimizer import Optimizer
from walle.learning.sharing.separate_networks import Network, SeparateStep
from walle.learning.sharing.team import SharedMemory, SharedTeam


class Pairs(NamedTuple):
    x: Tensor
    y: Tensor


class Column(NamedTuple):
    x: Tensor


def first(vector, batch):
    """The mean of (x w - 1)² for the mean w of weights; by w its gradient is 2 x (x w - 1)."""
    error = batch.x * vector.mean() - 1
    return error.square().mean(), {"error": error.mean(), "size": error.abs().mean()}


def second(vector, batch):
    """The mean of x w, whose gradient is the mean of x."""
    found = (batch.x * vector.mean()).mean()
    return found, {"product": found}


def both(vector, batch):
    """What the two networks minimise together."""
    one, more = first(vector[:2], Column(batch.x))
    other, less = second(vector[2:], Column(batch.y))
    return one + other, more | less


NETWORKS = (
    Network(2, lambda batch: Column(batch.x), first, ("error", "size")),
    Network(3, lambda batch: Column(batch.y), second, ("product",)),
)


def one_step(max_grad_norm):
    step = SeparateStep(NETWORKS, AdamSettings(max_grad_norm=max_grad_norm))
    vector = torch.ones(5)
    (batch,) = step.deal(Pairs(torch.tensor([1.0, 3.0]), torch.tensor([3.0, 3.0])), None, 2)
    held = step.opened(vector, AdamState.zeros_like(vector))
    *held, numbers = step(*held, torch.tensor(0.1), batch)
    vector, state = step.closed(*held)
    return vector, state, dict(zip(step.names, numbers.tolist(), strict=True))


def test_the_norm_is_that_of_all_networks_together():
    # gradients: (0 + 12) / 2 = 6, 3 for each of 2 weights; 3, 1 for each of 3 weights
    vector, state, numbers = one_step(None)
    assert numbers == {
        "loss": pytest.approx(2 + 3),
        "grad_norm": pytest.approx(math.sqrt(2 * 9 + 3 * 1)),
        "error": pytest.approx(1),
        "size": pytest.approx(1),
        "product": pytest.approx(3),
    }
    assert state.mean.tolist() == pytest.approx([0.3, 0.3, 0.1, 0.1, 0.1])
    assert vector.tolist() == pytest.approx([0.9] * 5)  # Adam's first step is the step size
    assert float(state.steps) == 1


def test_the_gradient_is_clipped_by_the_norm_of_all():
    _, state, numbers = one_step(1.0)
    norm = math.sqrt(21)
    assert numbers["grad_norm"] == pytest.approx(norm)
    assert state.mean.tolist() == pytest.approx(
        [0.3 / norm, 0.3 / norm, *[0.1 / norm] * 3], rel=1e-5
    )


def learned(rank, memory, *, divided=True, stop=None, amsgrad=False, compiled=False):
    """Parameters, Adam's state and numbers of three epochs with learner `rank` of a team."""
    generator = torch.Generator().manual_seed(1)
    data = Pairs(torch.randn(200, generator=generator), torch.randn(200, generator=generator))
    vector = torch.randn(5, generator=generator)
    settings = AdamSettings(max_grad_norm=0.5, amsgrad=amsgrad)
    optimizer = Optimizer(both, settings, stop=stop, networks=NETWORKS if divided else ())
    if memory is not None:
        optimizer.join_team(SharedTeam(rank, memory, "cpu", nothing))
    if compiled:
        optimizer.compile(vector, data, 48)
    result = optimizer.minimise(
        vector,
        AdamState.zeros_like(vector, amsgrad=amsgrad),
        data,
        epochs=3,
        minibatch_size=48,  # the last minibatch of an epoch has 8 rows
        learning_rate=1e-2,
        generator=generator,
    )
    return result


def same(result, other):
    tensors = [result.vector, *result.state.tensors()], [other.vector, *other.state.tensors()]
    assert all(x.equal(y) for x, y in zip(*tensors, strict=True))
    assert (result.info, result.minibatches) == (other.info, other.minibatches)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("stop", [None, lambda info: info["size"] < 1.1])
def test_the_bits_do_not_depend_on_the_number_of_learners(amsgrad, stop):
    torch.set_num_threads(1)
    alone = learned(0, None, stop=stop, amsgrad=amsgrad)
    assert alone.stopped == (stop is not None)
    for size in (1, 2):
        memory = SharedMemory(size)

        def learner(rank, memory=memory):
            return learned(rank, memory, stop=stop, amsgrad=amsgrad)

        for found in in_threads(size, learner):
            same(found, alone)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_undivided_learning_gives_the_same_numbers_but_for_rounding(amsgrad):
    whole = learned(0, None, divided=False, amsgrad=amsgrad)
    parts = learned(0, None, amsgrad=amsgrad)
    torch.testing.assert_close(whole.vector, parts.vector, atol=1e-6, rtol=0)
    assert parts.info == pytest.approx(whole.info, rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_compiled_steps_have_the_numbers_of_eager_ones_but_for_rounding():
    eager, compiled = learned(0, None), learned(0, None, compiled=True)
    torch.testing.assert_close(eager.vector, compiled.vector, atol=1e-6, rtol=0)
    assert compiled.info == pytest.approx(eager.info, rel=1e-4)
