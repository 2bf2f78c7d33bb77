from itertools import pairwise

import pytest

from tests.conftest import read
from walle.config import compose
from walle.errors import ConfigError
from walle.training import make_algorithm, make_problem, train

SMALL = ("algo=a3c", "env=cartpole", "eval.episodes=0", "logger.progress=quiet")
SHAPE = ("batch_size=128", "sampler.lanes=8", "sampler.n=4", "total_steps=1280")


@pytest.mark.slow
def test_it_updates_as_each_rollout_arrives(tmp_path):
    train(compose([*SMALL, *SHAPE]), tmp_path)
    rows = read(tmp_path / "iterations.csv")
    steps = [0, *(int(row["env_steps"]) for row in rows)]
    assert {after - before for before, after in pairwise(steps)} == {128 // 4}
    assert len(rows) == 40
    assert max(int(row["lag_max"]) for row in rows) >= 1
    timing = read(tmp_path / "timing.csv")
    senders = [row["process"] for row in timing if row["process"] != "agent"]
    assert len(senders) == 40
    assert set(senders) == {f"sampler-{i}" for i in range(4)}


@pytest.mark.slow
def test_it_balances_the_pole(tmp_path):
    config = compose([*SMALL, "sampler.n=4", "total_steps=500_000"])
    assert train(config, tmp_path).return_mean >= 450


def test_there_is_no_shape_to_compile_for():
    config = compose(["algo=a3c", "algo.compile=true", "net.activation=elu", "env=cartpole"])
    problem = make_problem(config)[0]
    with pytest.raises(ConfigError, match=r"algo\.compile=true: rounds differ"):
        make_algorithm(config, problem)


def test_rounds_are_refused_with_the_cure():
    with pytest.raises(ConfigError, match="without rounds; for rounds use algo=a2c"):
        compose(["algo=a3c", "sampler.max_lag=0"])


@pytest.mark.slow
def test_old_rollouts_are_dropped_and_counted(tmp_path):
    """An episode of Pendulum has 200 steps, so no segment of a lane goes unseen."""
    small = ("algo=a3c", "env=pendulum", "eval.episodes=0", "logger.progress=quiet")
    shape = ("batch_size=160", "sampler.lanes=8", "sampler.n=4", "total_steps=4000")
    train(compose([*small, *shape, "algo.max_staleness=0"]), tmp_path)
    rows = read(tmp_path / "iterations.csv")
    assert len(rows) == 100
    assert {row["lag_max"] for row in rows} == {"0"}
    dropped = sum(int(row["dropped_steps"]) for row in rows)
    assert dropped == 40 * sum(int(row["dropped_rollouts"]) for row in rows)
    assert dropped > 0
    episodes = read(tmp_path / "episodes.csv")
    assert {row["length"] for row in episodes} == {"200"}
    assert (4000 + dropped) // 200 - 8 <= len(episodes) <= (4000 + dropped) // 200
    senders = [row for row in read(tmp_path / "timing.csv") if row["process"] != "agent"]
    assert len(senders) == len(rows) + dropped // 40


@pytest.mark.parametrize(
    "lag", ["sampler.max_lag=0", "sampler.max_lag=1", "sampler=serial"], ids=str
)
def test_a_bound_on_age_is_refused_where_all_rollouts_have_one_age(lag):
    with pytest.raises(ConfigError, match=r"algo\.max_staleness=1 .* none or all would be dropped"):
        compose(["algo=a2c", lag, "algo.max_staleness=1"])
