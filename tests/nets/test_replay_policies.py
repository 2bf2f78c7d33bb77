import math

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from walle.nets.critics import QFunctions
from walle.nets.mlp import ACTING_ROWS
from walle.nets.replay_policies import (
    DeterministicPolicy,
    EpsilonGreedyPolicy,
    RandomFirst,
    SquashedGaussianPolicy,
)

OBS = 5


def squashed(action_dim):
    return SquashedGaussianPolicy(OBS, action_dim, (16, 16), torch.relu)


def deterministic(action_dim, exploration=0.1):
    return DeterministicPolicy(OBS, action_dim, (16, 16), torch.relu, exploration)


def initial(policy, seed=0):
    return policy.init(torch.Generator().manual_seed(seed))


def acted(policy, vector, obs, noise):
    """Actions of all rows at once, as a sampler draws them, and their log densities."""
    params = policy.layout.unflatten(vector)
    dist_params = policy.acting(params, len(obs))(obs)
    out = torch.empty(len(obs), policy.action_dim)
    policy.sample(dist_params, policy.scale_noise(params, noise), out)
    return out, policy.log_prob(policy.distribution(params, dist_params), out)


def test_squashed_log_prob_is_the_transformed_distribution_s():
    torch.manual_seed(0)
    policy, dist = squashed(3), torch.randn(10, 6)
    mean, log_std = dist.chunk(2, -1)
    base = Independent(Normal(mean, log_std.exp()), 1)
    theirs = TransformedDistribution(base, TanhTransform())
    action = 0.9 * torch.tanh(torch.randn(10, 3))
    torch.testing.assert_close(
        policy.log_prob(dist, action), theirs.log_prob(action), atol=1e-4, rtol=1e-4
    )


def test_what_is_learned_from_is_what_was_done():
    policy = squashed(3)
    vector = initial(policy)
    obs, noise = torch.randn(8, OBS), torch.randn(8, 3)
    action, log_prob = acted(policy, vector, obs, noise)
    learned, learned_log_prob = policy.draw(vector, obs, noise)
    torch.testing.assert_close(action, learned)
    torch.testing.assert_close(log_prob, learned_log_prob, atol=1e-4, rtol=1e-4)


def test_log_densities_stay_finite_where_tanh_saturates():
    policy = squashed(2)
    dist = torch.tensor([[40.0, -40.0, -30.0, 5.0]])  # beyond both bounds of log std too
    assert policy.log_prob(dist, torch.tensor([[1.0, -1.0]])).isfinite().all()
    vector = 100 * initial(policy)
    _, log_prob = policy.draw(vector, torch.randn(50, OBS), torch.randn(50, 2))
    assert log_prob.isfinite().all()


def test_the_policy_s_gradient_reaches_every_parameter():
    policy = squashed(2)
    vector = initial(policy).requires_grad_()
    action, log_prob = policy.draw(vector, torch.randn(64, OBS), torch.randn(64, 2))
    (action.sum() + log_prob.sum()).backward()
    for gradient in policy.layout.unflatten(vector.grad).values():
        assert gradient.abs().max() > 0


def test_exploration_has_its_scale_and_stays_within_bounds():
    policy = deterministic(1, exploration=0.1)
    params = policy.layout.unflatten(torch.zeros(policy.layout.size))
    dist_params = policy.acting(params, 10_000)(torch.zeros(10_000, OBS))
    noise = torch.from_numpy(policy.noise(np.random.default_rng(0), 10_000))
    out = torch.empty(10_000, 1)
    policy.sample(dist_params, policy.scale_noise(params, noise), out)
    assert out.std().item() == pytest.approx(0.1, rel=0.05)
    policy.sample(torch.ones(10_000, 1), policy.scale_noise(params, noise), out)
    assert out.max() == 1.0
    assert (out == 1.0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert torch.equal(policy.mode(dist_params), dist_params)


def test_deterministic_log_prob_is_the_gaussian_s():
    policy, mean = deterministic(2, exploration=0.3), torch.tensor([[0.1, -0.2]])
    action = torch.tensor([[0.4, 0.0]])
    expected = Independent(Normal(mean, 0.3), 1).log_prob(action)
    torch.testing.assert_close(policy.log_prob(mean, action), expected)


@pytest.mark.parametrize("make", [squashed, deterministic])
def test_random_first_then_the_policy(make):
    policy = RandomFirst(make(2), 2)
    vector = initial(policy)
    assert vector[-1] == 1
    obs = torch.randn(4000, OBS)
    noise = torch.from_numpy(policy.noise(np.random.default_rng(0), 4000))
    action, log_prob = acted(policy, vector, obs, noise)
    assert torch.equal(action, noise[:, -2:])
    assert action.min() < -0.99
    assert action.max() > 0.99
    assert action.mean().abs() < 0.05
    assert (log_prob == -2 * math.log(2)).all()
    vector[-1] = 0
    action, log_prob = acted(policy, vector, obs, noise)
    expected, expected_log_prob = acted(make(2), vector[:-1], obs, noise[:, :2])
    assert torch.equal(action, expected)
    assert torch.equal(log_prob, expected_log_prob)


@pytest.mark.parametrize("make", [squashed, deterministic])
@pytest.mark.parametrize("action_dim", [1, 3, 6, 17])
def test_a_lane_acts_the_same_whatever_stands_beside_it(make, action_dim):
    policy = RandomFirst(make(action_dim), action_dim)
    vector = initial(policy)
    vector[-1] = 0
    params = policy.layout.unflatten(vector)
    obs = torch.randn(36, OBS)
    noise = torch.from_numpy(policy.noise(np.random.default_rng(0), 36))

    def actions(first, lanes):
        padded = torch.zeros(-(-lanes // ACTING_ROWS) * ACTING_ROWS, OBS)
        padded[:lanes] = obs[first : first + lanes]
        dist_params = torch.empty(lanes, policy.dist_params_size)
        dist_params.copy_(policy.acting(params, len(padded))(padded)[:lanes])
        out = torch.empty(lanes, action_dim)
        policy.sample(dist_params, policy.scale_noise(params, noise[first : first + lanes]), out)
        return out

    together = actions(0, 36)
    for lanes in (1, 2, 3, 5, 8, 11, 18):
        for first in range(0, 36 - lanes, lanes):
            assert torch.equal(actions(first, lanes), together[first : first + lanes])


def test_q_functions_are_independent():
    critic = QFunctions(OBS, 2, (16, 16), torch.relu, 2)
    vector = critic.init(torch.Generator().manual_seed(0))
    obs, action = torch.randn(7, OBS), torch.randn(7, 2)
    q = critic(vector, obs, action)
    assert q.shape == (2, 7)
    assert torch.equal(critic.first(vector, obs, action), q[0])
    half = critic.layout.size // 2
    changed = torch.cat((vector[:half], torch.zeros(half)))
    again = critic(changed, obs, action)
    assert torch.equal(again[0], q[0])
    assert (again[1] == 0).all()
    assert not torch.allclose(q[0], q[1], atol=1e-3)
    alone = QFunctions(OBS, 2, (16, 16), torch.relu, 1)
    torch.testing.assert_close(alone(vector[:half], obs, action)[0], q[0])


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_an_epsilon_greedy_policy_explores_as_often_as_epsilon_says(epsilon):
    policy = EpsilonGreedyPolicy(None, 3, 4, (8,), torch.relu)
    params = {"epsilon": torch.tensor([epsilon])}
    values = torch.tensor([[0.0, 2.0, 1.0, -1.0]]).expand(20_000, -1)
    noise = torch.from_numpy(policy.noise(np.random.default_rng(0), 20_000))
    action = torch.empty(20_000, dtype=torch.int64)
    policy.sample(values, policy.scale_noise(params, noise), action)
    expected = [epsilon / 4] * 4
    expected[1] += 1 - epsilon
    np.testing.assert_allclose(np.bincount(action, minlength=4) / 20_000, expected, atol=0.015)
    dist = policy.distribution(params, values[:4])
    assert policy.mode(dist).tolist() == [1] * 4
    found = policy.log_prob(dist, torch.arange(4)).exp()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_an_epsilon_greedy_policy_starts_with_an_epsilon_of_one():
    policy = EpsilonGreedyPolicy(None, 3, 4, (8,), torch.relu)
    vector = policy.init(torch.Generator().manual_seed(0))
    assert policy.layout.unflatten(vector)["epsilon"].tolist() == [1]
    obs = torch.randn(5, 3)
    params = policy.layout.unflatten(vector)
    torch.testing.assert_close(policy.dist(params, obs)[:, :4], policy.values(vector[:-1], obs))
