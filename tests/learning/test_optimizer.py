from typing import NamedTuple

import pytest
import torch

from walle.learning.adam import AdamSettings, AdamState
from walle.learning.step import Optimizer


class Data(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Column(NamedTuple):
    x: torch.Tensor


class Weighted(NamedTuple):
    weight: torch.Tensor
    inputs: Column


def quadratic(vector, batch):
    error = batch.x @ vector - batch.y
    return error.square().mean(), {"worst": error.abs().max()}


@pytest.fixture
def problem():
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    return Data(x, x @ torch.tensor([1.0, -2.0, 3.0]))


def minimise(data, vector=None, stop=None, **changed):
    vector = torch.zeros(3) if vector is None else vector
    arguments = {
        "epochs": 1,
        "minibatch_size": 16,
        "learning_rate": 0.1,
        "generator": torch.Generator().manual_seed(0),
        **changed,
    }
    optimizer = Optimizer(quadratic, AdamSettings(), stop)
    return optimizer.minimise(vector, AdamState.zeros_like(vector), data, **arguments)


def test_it_minimises(problem):
    result = minimise(problem, epochs=200)
    torch.testing.assert_close(result.vector, torch.tensor([1.0, -2.0, 3.0]), atol=1e-2, rtol=0)


def test_every_row_is_seen_once_an_epoch():
    seen = []

    def loss(vector, batch):
        seen.extend(batch.x.tolist())
        return (vector * 0).sum(), {}

    vector = torch.zeros(1)
    result = Optimizer(loss, AdamSettings()).minimise(
        vector,
        AdamState.zeros_like(vector),
        Column(torch.arange(10)),
        epochs=2,
        minibatch_size=4,
        learning_rate=0.1,
        generator=torch.Generator().manual_seed(0),
    )
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]
    assert result.minibatches == 6


def test_the_same_generator_gives_the_same_numbers(problem):
    assert torch.equal(minimise(problem).vector, minimise(problem).vector)


def test_data_may_be_made_anew_before_each_epoch_but_the_first(problem):
    vectors = []

    def recompute(vector):
        vectors.append(vector.clone())
        return problem

    result = minimise(problem, epochs=3, recompute=recompute)
    assert len(vectors) == 2
    first = minimise(problem, epochs=1).vector
    assert torch.equal(vectors[0], first)
    assert not torch.equal(vectors[1], first)
    assert not torch.equal(vectors[1], result.vector)


def test_what_has_no_rows_reaches_every_minibatch():
    seen = []

    def loss(vector, batch):
        seen.append((len(batch.inputs.x), batch.weight.item()))
        return (vector * 0).sum(), {}

    vector = torch.zeros(1)
    data = Weighted(torch.tensor(7.0), Column(torch.arange(5)))
    Optimizer(loss, AdamSettings()).minimise(
        vector,
        AdamState.zeros_like(vector),
        data,
        epochs=1,
        minibatch_size=3,
        learning_rate=0.1,
        generator=torch.Generator(),
    )
    assert seen == [(3, 7.0), (2, 7.0)]


def test_info_is_averaged_over_the_minibatches():
    def loss(vector, batch):
        return (vector * batch.x.mean()).sum(), {"mean": batch.x.mean()}

    vector = torch.zeros(1)
    result = Optimizer(loss, AdamSettings()).minimise(
        vector,
        AdamState.zeros_like(vector),
        Column(torch.tensor([1.0, 2.0, 3.0, 4.0])),
        epochs=1,
        minibatch_size=2,
        learning_rate=0.0,
        generator=torch.Generator().manual_seed(0),
    )
    assert result.info["mean"] == 2.5
    assert result.info["grad_norm"] == 2.5


def test_stop_ends_before_the_step(problem):
    result = minimise(problem, epochs=5, stop=lambda info: float(info["worst"]) > 0)
    assert result.stopped
    assert result.minibatches == 0
    assert result.vector.tolist() == [0, 0, 0]
    assert result.info["worst"] > 0  # what it stopped at
