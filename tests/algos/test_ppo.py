import math
from functools import partial

import numpy as np
import pytest
import torch
from walle.agent.build import make_algorithm, make_problem, make_shape, make_tasks

from walle.algos import REGISTRY, load
from walle.algos.on_policy import advantages, corrected, remaining
from walle.config import compose, config_directory
from walle.errors import ConfigError
from walle.learning import returns
from walle.processes.signals import Signals
from walle.transport.sampling import SerialSampling

GAMMA = 0.9


def trained(rounds, *overrides):
    """An algorithm after some rounds, with the last round's experience still to learn from."""
    config = compose(["sampler=serial", "eval.every=null", *overrides])
    problem, env = make_problem(config)
    algorithm = make_algorithm(config, problem)
    (task,) = make_tasks(config, env, algorithm, problem, None, 0)
    sampling = SerialSampling(task, make_shape(config, problem, config.lanes), Signals())
    for _ in range(rounds):
        sampling.publish(algorithm.snapshot())
        algorithm.update(sampling.receive().rollout)
    sampling.publish(algorithm.snapshot())
    rollout = sampling.receive().rollout
    sampling.close()
    return algorithm, rollout


def values(algorithm):
    obs = torch.tensor([[0.5, -0.5]])
    return algorithm.critic(algorithm.split(algorithm.vector)[1], obs).item()


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


def test_the_value_of_a_constant_reward_that_is_cut_reaches_the_geometric_series():
    algorithm, _ = trained(30, *CONSTANT, "+env.kwargs.ends=truncated")
    assert values(algorithm) == pytest.approx(1 / (1 - GAMMA), rel=0.02)


def test_the_value_of_a_constant_reward_that_terminates_does_not():
    algorithm, _ = trained(30, *CONSTANT, "+env.kwargs.ends=terminated")
    remaining = np.arange(1, 9)
    expected = np.mean((1 - GAMMA**remaining) / (1 - GAMMA))
    assert values(algorithm) == pytest.approx(expected, rel=0.1)
    assert values(algorithm) < 0.6 / (1 - GAMMA)


@pytest.mark.parametrize("env", ["hopper", "cartpole"])
def test_the_first_ratio_of_a_round_is_one(env):
    small = ("batch_size=256", "sampler.lanes=8", "algo.epochs=2")
    algorithm, rollout = trained(3, f"env={env}", *small)
    x = algorithm.normalizers.experience(rollout)
    dist = algorithm.policy.dist(algorithm.split(algorithm.vector)[0], x.obs)
    ratio = (algorithm.policy.log_prob(dist, x.action) - x.log_prob).exp()
    assert (ratio - 1).abs().max() < 1e-5


def test_the_learning_rate_falls_linearly_to_zero():
    small = ("env=cartpole", "batch_size=256", "sampler.lanes=8", "algo.epochs=1")
    algorithm, rollout = trained(2, *small, "total_steps=1024", "algo.learning_rate=0.4")
    assert algorithm.update(rollout)["learning_rate"] == 0.2
    assert [remaining("linear", steps, 1024) for steps in (0, 768, 1024, 1280)] == [1, 0.25, 0, 0]
    assert remaining("constant", 768, 1024) == 1


def test_a_kl_target_ends_the_updates_early():
    small = ("env=cartpole", "batch_size=256", "sampler.lanes=8", "algo.learning_rate=0.1")
    algorithm, rollout = trained(0, *small, "algo.target_kl=0.01")
    metrics = algorithm.update(rollout)
    assert metrics["minibatches"] < 10 * 256 / 64


def test_gradients_reach_policy_scale_and_critic():
    algorithm, rollout = trained(0, "env=hopper", "batch_size=64", "sampler.lanes=8")
    x = algorithm.normalizers.experience(rollout)
    batch = algorithm.batch(x, algorithm.vector)
    vector = algorithm.vector.clone().requires_grad_()
    loss, info = algorithm.loss(vector, batch)
    loss.backward()
    policy, critic = algorithm.split(vector.grad)
    assert policy["log_std"].abs().min() > 0
    assert policy["policy.0.weight"].abs().max() > 0
    assert critic["critic.2.weight"].abs().max() > 0
    assert math.isfinite(info["entropy"].item())


def test_every_registered_algorithm_has_its_file_of_settings():
    files = {path.stem for path in (config_directory() / "algo").glob("*.yaml")}
    assert files == set(REGISTRY)
    for name in REGISTRY:
        assert compose([f"algo={name}"]).algo.name == name


def test_an_unknown_algorithm_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'ppo_kl'"):
        load("ppo_lk")


def test_experience_of_an_older_policy_is_corrected():
    """The update's ratio starts at one again; what is left is new / acting."""
    algorithm, rollout = trained(2, "env=hopper", "batch_size=256", "sampler.lanes=8")
    x = algorithm.normalizers.experience(rollout)
    acting = x.log_prob + torch.linspace(-0.5, 0.5, x.log_prob.numel()).view_as(x.log_prob)
    params = algorithm.split(algorithm.vector)[0]
    found, ratio = corrected(algorithm.policy, params, x._replace(log_prob=acting))
    torch.testing.assert_close(found.log_prob, x.log_prob, atol=1e-5, rtol=0)
    torch.testing.assert_close(ratio, (x.log_prob - acting).exp(), atol=1e-5, rtol=0)


def test_each_correction_weighs_advantages_as_it_says():
    algorithm, rollout = trained(0, "env=hopper", "batch_size=64", "sampler.lanes=8")
    x = algorithm.normalizers.experience(rollout)
    value, next_value = torch.rand(2, 8, 8)
    ratio = torch.linspace(0.5, 1.5, 64).view(8, 8)
    of = partial(advantages, x, value, next_value, 0.9, 0.8, ratio=ratio)
    plain, target = of(correction="none")
    truncated, same_target = of(correction="truncated")
    torch.testing.assert_close(truncated, plain * ratio.clamp(max=1))
    torch.testing.assert_close(same_target, target)
    advantage, other_target = of(correction="vtrace")
    assert (other_target - target).abs().max() > 0.01
    steps = x.reward, x.continues, x.ended, value, next_value
    torch.testing.assert_close((other_target, advantage), returns.vtrace(*steps, ratio, 0.9, 0.8))


def test_only_lagging_experience_is_corrected():
    small = ("env=hopper", "batch_size=256", "sampler.lanes=8", "algo.compile=false")
    results = []
    for correction in ("none", "truncated", "vtrace"):
        algorithm, rollout = trained(1, *small, f"algo.correction={correction}")
        results.append((algorithm.update(rollout), algorithm.update(rollout)))
    fresh, stale = zip(*results, strict=True)
    assert fresh[0] == fresh[1] == fresh[2]
    assert len({metrics["policy_loss"] for metrics in stale}) == 3
