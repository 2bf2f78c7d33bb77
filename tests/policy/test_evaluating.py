import dataclasses
import math

import gymnasium as gym
import numpy as np
import pytest

import walle
from walle.envs.observations import ObservationRows
from walle.errors import ConfigError
from walle.policy import evaluating
from walle.policy.acting import Origin, Spaces
from walle.policy.evaluating import MeanReturn, Result
from walle.streams import afterwards_seed


def result(returns):
    origin = Origin("best.pt", "ppo", 100, 3)
    lengths, info = [len(returns)] * len(returns), {"x": [0.5, math.nan, 1.0]}
    return Result(origin, "CartPole-v1", 0, True, returns, lengths, info)


def test_the_statistics_are_those_of_the_returns():
    row = result([1.0, 2.0, 3.0, 10.0]).row()
    found = {name: row[f"return_{name}"] for name in ("mean", "median", "min", "max")}
    assert found == {"mean": 4.0, "median": 2.5, "min": 1.0, "max": 10.0}
    assert row["return_std"] == pytest.approx(math.sqrt((9 + 4 + 1 + 36) / 4))
    assert row["return_mean_low"] < 4 < row["return_mean_high"]
    assert (row["episodes"], row["length_mean"], row["checkpoint"]) == (4, 4, "best.pt")
    assert str(result([5.0])) == "return 5, median 5, x_mean 0.75, 1 episode"
    assert row["x_mean"] == 0.75


def test_the_interval_of_the_mean_is_student_s():
    assert str(MeanReturn.of([3.0, 5.0])) == "4 [-8.71, 16.7]"
    assert MeanReturn.of([3.0, 5.0], (0.0, 6.0)) == (4.0, 0.0, 6.0)
    assert MeanReturn.of([9.0, 9.0], (0.0, 6.0)) == (9.0, 9.0, 9.0)
    assert str(MeanReturn.of([7.0])) == "7"


def test_an_episode_depends_on_seed_and_number_alone(trained, monkeypatch):
    policy = walle.load(trained("discrete"))
    whole = walle.evaluate(policy, 7, seed=5)
    monkeypatch.setattr(evaluating, "AT_ONCE", 3)
    assert walle.evaluate(trained("discrete"), 7, seed=5) == whole
    assert walle.evaluate(policy, 4, seed=5).returns == whole.returns[:4]
    assert walle.evaluate(policy, 7, seed=6).returns != whole.returns
    drawn = [walle.evaluate(policy, 7, seed=5, deterministic=False) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].returns != whole.returns


def test_lanes_that_take_no_seeds_are_not_those_of_the_runs_own_evaluations(trained, monkeypatch):
    policy, made = walle.load(trained("ppo")), []
    policy.spec = dataclasses.replace(policy.spec, backend="envpool")

    def make_lanes(spec, numbers, seed, role):
        made.append((seed, role))
        raise RuntimeError

    monkeypatch.setattr(evaluating, "make_lanes", make_lanes)
    with pytest.raises(RuntimeError):
        evaluating._run(policy, [0, 1], 0, True)
    assert made == [(afterwards_seed(0, 0), "evaluate")]


@pytest.mark.parametrize("name", ["mujoco", "sac"])
def test_episodes_are_those_of_the_policy_s_environment(trained, name):
    policy = walle.load(trained(name), "last")
    found = walle.evaluate(policy, 2)
    env = policy.env()
    for number in range(2):
        total, length, ended = 0.0, 0, False
        obs, _ = env.reset(seed=afterwards_seed(0, number))
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
            total, length, ended = total + reward, length + 1, terminated or truncated
        assert (found.returns[number], found.lengths[number]) == (pytest.approx(total), length)
    env.close()


def test_a_memory_begins_empty_in_every_episode(trained):
    policy = walle.load(trained("memory"))
    returns = walle.evaluate(policy, 60).returns
    assert walle.evaluate(policy, 60).returns == returns
    assert set(returns) <= {0.0, 1.0}
    assert 0.2 < np.mean(returns) < 0.8  # it has learned nothing: the cue is even


@pytest.mark.parametrize(
    "wrong", [{"episodes": 0}, {"seed": -1}, {"seed": [0, 1]}, {"episodes": 2.5}]
)
def test_wrong_numbers_are_refused(trained, wrong):
    with pytest.raises(ConfigError, match=r"must be a whole number, \d at least"):
        walle.evaluate(trained("discrete"), **wrong)
    with pytest.raises(ConfigError, match="which='last' with a policy that is loaded already"):
        walle.evaluate(walle.load(trained("discrete")), which="last")


def test_an_environment_with_other_spaces_is_refused(trained):
    policy = walle.load(trained("ppo"))
    spaces, wider = policy.spaces, gym.spaces.Box(-3, 3, policy.spaces.action.shape, np.float32)
    policy.spaces = spaces._replace(action=wider)
    with pytest.raises(ConfigError, match=r"now has actions in Box\(-2.0, .* had Box\(-3.0, "):
        walle.evaluate(policy, 1)
    policy.spaces = spaces._replace(observation=gym.spaces.Box(-1, 1, (9,)))
    with pytest.raises(ConfigError, match=r"now has observations in Box\(3,\), .* had Box\(9,\)"):
        walle.evaluate(policy, 1)


def test_spaces_of_the_user_s_own_classes_and_other_bounds_are_the_same_spaces(trained):
    class Printed(gym.spaces.Box):
        def __repr__(self):
            return "Printed"

    spaces = walle.load(trained("ppo")).spaces
    action = Printed(-2, 2, spaces.action.shape, spaces.action.dtype)
    seen = Printed(-9, 9, spaces.observation.shape)
    assert Spaces(seen, action).texts == spaces.texts
    whole = gym.spaces.Discrete(2)
    assert Spaces(seen, whole, 1).texts != Spaces(seen, whole, 0).texts
    assert Spaces(seen, action, 0, (1, 1)).texts != spaces.texts


def test_the_outline_of_rows_has_keys_shapes_and_pixels():
    def rows(high=1, pixels=255, name="pose"):
        cam = gym.spaces.Box(0, pixels, (36, 36, 3), np.uint8)
        parts = {"cam": cam, name: gym.spaces.Box(-high, high, (3,))}
        return ObservationRows(gym.spaces.Dict(parts), "toy").outline

    assert rows() == rows(high=2)
    assert len({rows(), rows(pixels=100), rows(name="arm")}) == 3
    assert "pose: (3,)" in rows()
