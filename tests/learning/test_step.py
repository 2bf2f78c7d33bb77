"""Gradient steps: their numbers by hand, and that they do not depend on the number of learners."""

import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch

from tests.learning.sharing.test_team import in_threads, nothing
from walle.learning.adam import AdamSettings, AdamState, TrainState
from walle.learning.sharing.shared_team import SharedTeam, TeamMemory
from walle.learning.step import (
    Minibatch,
    Optimizer,
    Stage,
    Updates,
    compiled,
    minibatches,
    take_step,
)
from walle.learning.trees import leaves, replaced


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
    assert result.gradient_steps == 6


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
    assert result.gradient_steps == 0
    assert result.vector.tolist() == [0, 0, 0]
    assert result.info["worst"] > 0  # what it stopped at


def squares(vector, batch):
    """The mean of (x w - 1)², whose gradient is the mean of 2 x (x w - 1)."""
    error = batch.x * vector - 1
    return error.square().mean(), {"error": error.mean()}


@pytest.mark.parametrize("shards", [1, 2])
def test_the_gradients_of_shards_are_averaged_by_their_rows(shards):
    vector = torch.tensor([1.0])
    optimizer = Optimizer(squares, AdamSettings(), shards=shards)
    data = Column(torch.tensor([1.0, 2.0, 3.0]))
    result = optimizer.step(vector, AdamState.zeros_like(vector), data, 0.1)
    assert result.info["error"] == pytest.approx(1.0)  # (0 + 1 + 2) / 3
    assert result.info["loss"] == pytest.approx(5 / 3)  # (0 + 1 + 4) / 3
    assert result.info["grad_norm"] == pytest.approx(16 / 3)  # 2 (0 + 2 + 6) / 3
    assert float(result.state.mean) == pytest.approx(0.1 * 16 / 3)
    assert float(result.vector) == pytest.approx(0.9)  # Adam's first step is the step size


def test_a_minibatch_with_fewer_rows_than_shards():
    vector, data = torch.tensor([1.0]), Column(torch.tensor([1.0, 2.0]))
    optimizer = Optimizer(squares, AdamSettings(), shards=4)
    result = optimizer.step(vector, AdamState.zeros_like(vector), data, 0.1)
    assert result.info["error"] == pytest.approx(0.5)
    assert result.info["grad_norm"] == pytest.approx(2.0)  # 2 (0 + 2) / 2


@pytest.mark.parametrize("rows", [64, 50, 3])
@pytest.mark.parametrize("order", [None, "random"])
def test_every_row_is_dealt_once(rows, order):
    data = Column(torch.arange(rows))
    order = None if order is None else torch.randperm(rows)
    teams = [SharedTeam(rank, TeamMemory(3), "cpu", nothing) for rank in range(3)]
    taken = []
    for minibatch in zip(*(minibatches(data, order, 16, 4, team) for team in teams), strict=True):
        shards = [shard for learner in minibatch for shard in learner.shards]
        weights = minibatch[0].weights
        assert len(shards) == len(weights) == 4
        assert sum(weights) == pytest.approx(1)
        for shard, weight in zip(shards, weights, strict=True):
            taken += shard.x.tolist() if weight else []
    assert taken == (data.x if order is None else data.x[order]).tolist()


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
        memory = TeamMemory(size)
        for vector, square, info in in_threads(
            size,
            lambda rank: learned(rank, memory, shards),  # noqa: B023
        ):
            assert vector.equal(alone[0])
            assert square.equal(alone[1])
            assert info == alone[2]


def test_one_learner_without_shards_has_the_same_numbers_but_for_rounding():
    whole, parts = learned(0, None, 1), learned(0, None, 4)
    torch.testing.assert_close(whole[0], parts[0], atol=1e-5, rtol=0)


def test_an_optimizer_without_shards_joins_no_team():
    with pytest.raises(TypeError, match="1 shards cannot be divided by 2 learners"):
        Optimizer(squares, AdamSettings()).join_team(SharedTeam(0, TeamMemory(2), "cpu", nothing))


class Numbers(NamedTuple):
    """Two numbers; the first moves by the mean of the rows, the second by that of the noise."""

    one: torch.Tensor
    two: torch.Tensor


class Rows(NamedTuple):
    x: torch.Tensor
    noise: torch.Tensor


def split(rows, noise):
    return Rows(rows, noise.transpose(0, 1))


def first_gradient(state, batch):
    return batch.x.mean(0) + state.one, batch.x[:, 0].square().mean().unsqueeze(0)


def first_step(state, grad, numbers):
    return state._replace(one=state.one - grad), numbers


def second_gradient(state, batch):
    return batch.noise[:, 0].mean(0), batch.x[:, 0].mean().unsqueeze(0)


def second_step(state, grad, numbers):
    return state._replace(two=state.two - grad + numbers), numbers


def summary(numbers):
    return torch.cat((numbers[0], numbers[-1]))


STAGES = [Stage(first_gradient, first_step, k) for k in range(2)]
STAGES.append(Stage(second_gradient, second_step, 1))
START = Numbers(torch.tensor([10.0]), torch.tensor([0.0]))
ROWS = torch.tensor([[[1.0], [2.0], [3.0], [6.0]], [[0.0], [4.0], [4.0], [0.0]]])  # [K, B, W]
NOISE = torch.tensor([[[[9.0]] * 4], [[[1.0], [2.0], [3.0], [4.0]]]])  # [K, M, B, A]


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_the_stages_of_a_block_by_hand(shards):
    updates = Updates(STAGES, split, summary, shards)
    state, (metrics,) = updates.run(START, ROWS[None], NOISE[None])
    assert state.one.tolist() == [-2.0]  # 10 - (3 + 10), then - 3 - (2 - 3)
    assert state.two.tolist() == [-0.5]  # 0 - 2.5 + 2
    assert metrics.tolist() == [12.5, 2.0]  # (1 + 4 + 9 + 36) / 4


def test_a_learner_computes_its_own_shards_only():
    memory, seen = TeamMemory(2), []

    def noted(state, batch):
        seen.append(batch.x[:, 0].tolist())
        return first_gradient(state, batch)

    def learner(rank):
        updates = Updates([Stage(noted, first_step)], split, summary, shards=2)
        updates.join_team(SharedTeam(rank, memory, "cpu", nothing))
        return updates.run(START, ROWS[None], NOISE[None])[0].one

    assert [x.tolist() for x in in_threads(2, learner)] == [[-3.0], [-3.0]]
    assert sorted(seen) == [[1, 2], [3, 6]]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.5]])
def test_a_compiled_step_has_the_same_numbers_for_its_shape_and_others(problem, weights):
    optimizer, train = Optimizer(quadratic, AdamSettings()), TrainState.start(torch.ones(3))
    optimizer._rate = torch.tensor(0.1)
    batches = problem, Data(problem.x[:5], problem.y[:5])
    whole, part = (Minibatch([batch] * len(weights), weights) for batch in batches)
    stage = compiled(optimizer._stage, train, whole)
    for minibatch in (whole, part):
        ours, theirs = (take_step(s, train, minibatch) for s in (stage, optimizer._stage))
        for x, y in zip(leaves(ours), leaves(theirs), strict=True):
            torch.testing.assert_close(x, y)


@pytest.mark.slow
def test_importing_the_agent_or_a_sampler_loads_no_compiler_and_no_library_for_figures():
    heavy = {"torch._dynamo", "torch._inductor", "sympy", "scipy", "pandas", "matplotlib"}
    code = (
        "import sys, walle.training, walle.algos.on_policy.ppo, walle.envs.mujoco.registry;"
        "import walle.sampling.sampler_process;"
        f"print([name for name in {sorted(heavy)} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_a_compiled_function_returns_the_record_with_its_new_field():
    start = TrainState.start(torch.zeros(2))

    def moved(state):
        return replaced(state, vector=state.vector + 1)

    after = torch.compile(moved, backend="eager")(start)
    assert type(after) is TrainState
    assert after.vector.tolist() == [1, 1]
    assert len(after) == len(start)
