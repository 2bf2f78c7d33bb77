import pytest

from walle.config import compose
from walle.errors import ConfigError
from walle.nets.widths import numbers
from walle.training import make_algorithm, make_problem


def test_the_widths_of_wall_e_on_halfcheetah_by_hand():
    """17 observations and the time, 6 actions: √(180 · 60) = 103.9, √(180 · 5) = 30."""
    assert numbers("key", ["10*obs", "mean", "10*act"], obs=18, act=6) == (180, 103, 60)
    assert numbers("key", ["10*obs", "mean", 5], obs=18, act=6) == (180, 30, 5)


def test_numbers_stay():
    assert numbers("key", [64, "32"], obs=3, act=1) == (64, 32)
    assert numbers("key", [], obs=3, act=1) == ()


@pytest.mark.parametrize("widths", [["mean"], ["mean", 5], [5, "mean"], [9, "mean", "mean", 4]])
def test_a_mean_needs_a_width_on_both_sides(widths):
    with pytest.raises(ConfigError, match=r"put a number, .* on both sides"):
        numbers("net.policy_hidden", widths, obs=3, act=1)


@pytest.mark.parametrize(
    "wrong", ["[10*ob]", "[0*obs]", "[middle]", "[1.5]", "[-3]", "[obs]", "[64,0]"]
)
def test_other_widths_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"net.policy_hidden=.* must be positive whole numbers"):
        compose([f"net.policy_hidden={wrong}"])


@pytest.mark.parametrize(
    ("env", "obs", "act"), [("hopper", 11, 3), ("cartpole", 4, 2), ("acrobot", 6, 3)]
)
def test_sizes_are_those_of_the_task(env, obs, act):
    config = compose([f"env={env}", "net.policy_hidden=[2*obs,mean,8*act]"])
    algorithm = make_algorithm(config, make_problem(config)[0])
    assert algorithm.policy.layout.shapes["policy.0.weight"] == (2 * obs, obs)
    assert algorithm.policy.layout.shapes["policy.2.weight"][0] == 8 * act


def test_off_policy_networks_take_them_too():
    small = ["env=pendulum", "net.policy_hidden=[4*obs]", "net.critic_hidden=[2*act]"]
    config = compose(["algo=sac", "algo.buffer_size=6000", "total_steps=6000", *small])
    algorithm = make_algorithm(config, make_problem(config)[0])
    assert algorithm.policy.layout.shapes["policy.0.weight"] == (12, 3)
    assert algorithm.critic.layout.shapes["q0.0.weight"] == (2, 4)
