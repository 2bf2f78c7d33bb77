import math

import numpy as np
import pytest
import torch

from walle.algos import REGISTRY, load
from walle.config import compose, config_directory
from walle.errors import ConfigError
from walle.sampling.process_sampling import SerialSampling
from walle.sampling.sampling import EventLog
from walle.system.signals import Signals
from walle.system.supervision import Watchdog
from walle.training import make_algorithm, make_problem, make_tasks, rollout_shape

GAMMA = 0.9


def trained(rounds, *overrides, native=False):
    """An algorithm after some rounds, with the last round's experience still to learn from."""
    config = compose(["sampler=serial", "eval.episodes=0", *overrides])
    problem, probed = make_problem(config)
    algorithm = make_algorithm(config, problem)
    if native:  # several times faster
        assert algorithm.warm_up().startswith("learning in C++")
    (task,) = make_tasks(config, problem, probed, algorithm)
    shape = rollout_shape(config, problem, probed, config.lanes)
    sampling = SerialSampling(task, shape, Signals(), EventLog(), Watchdog(None, print, print))
    for _ in range(rounds):
        sampling.publish(algorithm.snapshot())
        algorithm.update(sampling.receive().rollout)
    sampling.publish(algorithm.snapshot())
    rollout = sampling.receive().rollout
    sampling.close()
    return algorithm, rollout


def stale(rollout):
    """The same experience, a version older."""
    return rollout._replace(lag=np.ones_like(rollout.policy_version))


def values(algorithm):
    obs = torch.tensor([[0.5, -0.5]])
    return algorithm.critic(algorithm.networks.split(algorithm.vector)[1], obs).item()


CONSTANT = (
    "env=gym",
    "env.id=tests.toy:Constant-v0",
    f"algo.gamma={GAMMA}",
    "algo.normalize_observations=false",
    "algo.normalize_rewards=false",
    "algo.learning_rate=1e-2",
    "algo.schedule=constant",
    "batch_size=256",
    "sampler.lanes=8",
    "total_steps=1e6",
)


def test_a_smaller_beta2_remembers_fewer_gradients():
    """After one gradient step Adam's mean of squares is (1 - beta2) times the gradient's square."""
    once = (*CONSTANT, "algo.epochs=1", "algo.minibatch_size=256", "algo.compile=false")
    usual, quick = (trained(1, *once, *more)[0] for more in ((), ("algo.adam_beta2=0.9",)))
    torch.testing.assert_close(quick.adam.square, 10 * usual.adam.square)
    assert usual.adam.square.any()


@pytest.mark.slow
def test_the_value_of_a_constant_reward_that_is_cut_reaches_the_geometric_series():
    algorithm, _ = trained(30, *CONSTANT, "+env.kwargs.ends=truncated")
    assert values(algorithm) == pytest.approx(1 / (1 - GAMMA), rel=0.02)


@pytest.mark.slow
def test_the_value_of_a_constant_reward_that_terminates_does_not():
    algorithm, _ = trained(30, *CONSTANT, "+env.kwargs.ends=terminated")
    remaining = np.arange(1, 9)
    expected = np.mean((1 - GAMMA**remaining) / (1 - GAMMA))
    assert values(algorithm) == pytest.approx(expected, rel=0.1)
    assert values(algorithm) < 0.6 / (1 - GAMMA)


def log_std(algorithm):
    return algorithm.networks.split(algorithm.vector)[0]["log_std"]


@pytest.mark.slow
def test_noise_that_is_not_learned_shrinks_linearly_from_its_start_to_its_end():
    """By hand: after 2 of 8 rounds it has gone a quarter of the way from -1 to -3."""
    short = ("batch_size=256", "total_steps=2048", "sampler.lanes=8", "algo.compile=false")
    noise = ("net.log_std=-1", "algo.log_std_end=-3")
    for rounds, expected in ((2, -1.5), (8, -3.0)):
        algorithm, _ = trained(rounds, "env=hopper", *short, *noise)
        size = log_std(algorithm)
        torch.testing.assert_close(size, torch.full_like(size, expected))


def test_noise_that_is_not_learned_has_no_gradient():
    short = ("batch_size=256", "total_steps=2048", "sampler.lanes=8", "algo.compile=false")
    for end, learned in (("null", True), ("-3", False)):
        algorithm, _ = trained(1, "env=hopper", *short, f"algo.log_std_end={end}")
        moved = algorithm.networks.split(algorithm.adam.square)[0]["log_std"]
        assert bool(moved.any()) == learned


@pytest.mark.parametrize("kind", ["env=cartpole", "net.scale=state"])
def test_noise_that_is_no_parameter_has_no_end(kind):
    algorithm, _ = trained(1, kind, "algo.log_std_end=-3")
    assert algorithm.log_std_end is None


def test_an_entropy_bonus_is_refused_where_the_noise_is_not_learned():
    with pytest.raises(ConfigError, match=r"=0\.1 with algo\.log_std_end=-1\.0, .*=null"):
        compose(["algo.entropy_weight=0.1"])  # before a job of a sweep starts


@pytest.mark.parametrize("env", ["hopper", "cartpole"])
def test_the_first_ratio_of_a_round_is_one(env):
    small = ("batch_size=256", "sampler.lanes=8", "algo.epochs=2")
    algorithm, rollout = trained(3, f"env={env}", *small)
    x = algorithm.normalizers.experience(rollout)
    dist = algorithm.policy.dist(algorithm.networks.split(algorithm.vector)[0], x.obs)
    ratio = (algorithm.policy.log_prob(dist, x.action) - x.log_prob).exp()
    assert (ratio - 1).abs().max() < 1e-5


def test_a_kl_target_ends_the_updates_early():
    small = ("env=cartpole", "batch_size=256", "sampler.lanes=8", "algo.learning_rate=0.1")
    algorithm, rollout = trained(0, *small, "algo.minibatch_size=64", "algo.target_kl=0.01")
    metrics = algorithm.update(rollout)
    assert metrics["gradient_steps"] < 10 * 256 / 64


def test_gradients_reach_policy_scale_and_critic():
    tiny = ("batch_size=64", "sampler.lanes=8", "algo.log_std_end=null")
    algorithm, rollout = trained(0, "env=hopper", *tiny)
    x = algorithm.normalizers.experience(rollout)
    batch = algorithm.batch(x, algorithm.vector)
    vector = algorithm.vector.clone().requires_grad_()
    loss, info = algorithm.loss(vector, batch)
    loss.backward()
    policy, critic = algorithm.networks.split(vector.grad)
    assert policy["log_std"].abs().min() > 0
    assert policy["policy.0.weight"].abs().max() > 0
    assert critic["critic.2.weight"].abs().max() > 0
    assert math.isfinite(info["entropy"].item())


def test_every_registered_algorithm_has_its_file_of_settings():
    files = {path.stem for path in (config_directory() / "algo").glob("*.yaml")}
    assert files == {*REGISTRY, "own"}
    for name in REGISTRY:
        assert compose([f"algo={name}"]).algo.name == name


def test_an_unknown_algorithm_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'ppo_kl'"):
        load("ppo_lk")
