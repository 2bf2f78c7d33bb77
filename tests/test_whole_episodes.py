"""Runs that collect whole episodes, from the command to the files."""

import pytest

from tests.conftest import read
from tests.test_training import learned
from walle.config import compose
from walle.errors import ConfigError
from walle.training import train

WHOLE = ("sampler.collect=episodes", "env=cartpole")


@pytest.mark.slow
@pytest.mark.parametrize("env", ["cartpole", "hopper"])
def test_learning_does_not_depend_on_the_number_of_samplers(run, env):
    whole = ("sampler.collect=episodes", f"env={env}", "total_steps=600")
    _, serial = run(*whole, "sampler=serial")
    expected = learned(serial)
    assert len(expected) >= 3
    for n in (1, 3):
        assert learned(run(*whole, f"sampler.n={n}")[1]) == expected


@pytest.mark.slow
def test_nor_when_overlapped(run):
    whole = (*WHOLE, "sampler.max_lag=1", "total_steps=600")
    found = [learned(run(*whole, f"sampler.n={n}")[1]) for n in (1, 3)]
    assert found[0] == found[1]
    assert found[0][-1]["lag_max"] == "1"


@pytest.mark.slow
def test_rounds_are_made_of_whole_episodes(run):
    _, directory = run(*WHOLE, "sampler.n=3", "total_steps=1200")
    rows, episodes = (read(directory / f"{name}.csv") for name in ("iterations", "episodes"))
    steps, count, previous = 0, 0, None
    for row in rows:
        ended = episodes[count : int(row["episodes"])]
        lasted = [int(episode["length"]) for episode in ended]
        assert int(row["env_steps"]) == steps + sum(lasted)
        assert len(ended) == (8 if previous is None else max(8, round(256 / previous)))
        steps, count = int(row["env_steps"]), int(row["episodes"])
        previous = sum(lasted) / len(lasted)
    assert len(rows) >= 3
    assert {episode["lane"] for episode in episodes} == {str(lane) for lane in range(8)}
    assert {episode["sampler"] for episode in episodes} == {"0", "1", "2"}


@pytest.mark.parametrize("algo", ["ppo_kl", "trpo", "a2c"])
def test_the_other_algorithms_learn_from_them_too(tmp_path, algo):
    shape = ("sampler=serial", "batch_size=256", "sampler.lanes=8", "total_steps=1000")
    quiet = ("logger.progress=quiet", "eval.episodes=0")
    train(compose([*WHOLE, f"algo={algo}", *shape, *quiet]), tmp_path)
    rows = read(tmp_path / "iterations.csv")
    assert len(rows) >= 3
    assert all(float(row["entropy"]) > 0 for row in rows)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("sampler.max_lag=null",), "sampler.collect=episodes changes the length"),
        (("env.backend=envpool",), "EnvPool cannot do"),
        (("sampler.collect=episode",), "did you mean 'episodes'"),
    ],
)
def test_what_cannot_be_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose([*WHOLE, *overrides])


def test_episodes_without_a_limit_are_refused(run):
    with pytest.raises(ConfigError, match=r"set env\.episode_limit"):
        run("sampler.collect=episodes", "env=gym", "env.id=tests.toy:Counter-v0")
