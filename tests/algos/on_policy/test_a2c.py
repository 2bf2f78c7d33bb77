import pytest
import torch

from tests.algos.on_policy.test_ppo import CONSTANT, GAMMA, trained
from walle.config import compose
from walle.learning import returns
from walle.learning.adam import AdamSettings, TrainState, adam_step
from walle.training import train

QUIET = ("eval.episodes=0", "logger.progress=quiet")
SMALL = ("algo=a2c", "batch_size=64", "sampler.lanes=8", "algo.compile=false")


def test_targets_are_n_step_returns():
    algorithm, rollout = trained(1, *SMALL, "env=pendulum")
    x = algorithm.normalizers.experience(rollout)
    batch = algorithm.batch(x, algorithm.vector)
    assert not x.ended.any()
    with torch.no_grad():
        last = algorithm.networks.value_function(algorithm.vector)(x.states[64:])
    expected = returns.discounted_sums(x.reward, x.ended, 0.99, last)
    torch.testing.assert_close(batch.target, expected.flatten(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(batch.advantage, batch.target - batch.value)


def test_a_round_is_one_step_of_adam_on_the_policy_gradient():
    plain = ("algo.schedule=constant", "algo.normalize_rewards=false")
    algorithm, rollout = trained(0, *SMALL, "env=cartpole", *plain)
    batch = algorithm.batch(algorithm.normalizers.experience(rollout), algorithm.vector)
    vector = algorithm.vector.clone().requires_grad_()
    policy, critic = algorithm.networks.split(vector)
    log_prob = algorithm.policy.dist(policy, batch.obs)[range(64), batch.action]
    error = algorithm.critic(critic, batch.obs) - batch.target
    loss = -(log_prob * batch.advantage).mean() + 0.5 * error.square().mean()
    (gradient,) = torch.autograd.grad(loss, vector)
    settings = AdamSettings(epsilon=1e-5, max_grad_norm=0.5)
    rate, start = algorithm.settings.learning_rate, TrainState.start(vector.detach())
    expected, norm = adam_step(start, gradient, rate, settings)
    metrics = algorithm.update(rollout)
    torch.testing.assert_close(algorithm.vector, expected.vector)
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


@pytest.mark.slow
def test_the_value_of_a_constant_reward_reaches_the_geometric_series():
    small = ("batch_size=64", "algo.compile=false")
    algorithm, _ = trained(200, "algo=a2c", *CONSTANT, *small, "+env.kwargs.ends=truncated")
    value = algorithm.networks.value_function(algorithm.vector)(torch.tensor([[0.5, -0.5]]))
    assert value.item() == pytest.approx(1 / (1 - GAMMA), rel=0.05)


@pytest.mark.slow
def test_it_balances_the_pole(tmp_path):
    config = compose(["algo=a2c", "env=cartpole", "sampler=serial", "total_steps=150_000", *QUIET])
    assert train(config, tmp_path).return_mean >= 475


def test_entropy_is_rewarded():
    spread = []
    for weight in (0.0, 1.0):
        chosen = (f"algo.entropy_weight={weight}", "algo.learning_rate=1e-2")
        algorithm, rollout = trained(20, *SMALL, "env=cartpole", *chosen)
        spread.append(algorithm.update(rollout)["entropy"])
    assert spread[1] > spread[0]
