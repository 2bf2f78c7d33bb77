import math

import numpy as np
import pytest
import torch

from walle.nets.policies import BernoulliPolicy, MultiCategoricalPolicy

LOG = math.log


def multi():
    """Two entries: probabilities (1/2, 1/4, 1/4) and (3/4, 1/4)."""
    probs = torch.tensor([[0.5, 0.25, 0.25, 0.75, 0.25]])
    return MultiCategoricalPolicy(4, (3, 2), (8,), torch.tanh), probs.log()


def test_the_log_probability_of_several_choices_is_the_sum_over_them():
    policy, dist = multi()
    found = (
        policy.log_prob(dist, torch.tensor([[0, 0]])),
        policy.log_prob(dist, torch.tensor([[2, 1]])),
    )
    assert found[0].tolist() == pytest.approx([LOG(0.5) + LOG(0.75)])
    assert found[1].tolist() == pytest.approx([LOG(0.25) + LOG(0.25)])
    assert policy.mode(dist).tolist() == [[0, 0]]


def test_the_entropy_of_several_choices_is_the_sum_over_them():
    policy, dist = multi()
    first = -(0.5 * LOG(0.5) + 2 * 0.25 * LOG(0.25))
    second = -(0.75 * LOG(0.75) + 0.25 * LOG(0.25))
    assert policy.entropy(dist).tolist() == pytest.approx([first + second])


def test_the_divergence_of_several_choices_is_the_sum_over_them():
    policy, dist = multi()
    even = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.5, 0.5]]).log()
    expected = LOG(3) + LOG(2) - float(policy.entropy(dist))
    assert policy.kl(dist, even).tolist() == pytest.approx([expected])
    assert policy.kl(dist, dist).tolist() == pytest.approx([0])


def test_several_choices_are_drawn_with_their_probabilities_and_independently():
    policy, dist = multi()
    noise = torch.from_numpy(policy.noise(np.random.default_rng(0), 20_000))
    assert noise.shape == (20_000, 2)
    action = torch.empty(20_000, 2, dtype=torch.int64)
    policy.sample(dist.expand(20_000, -1), noise, action)
    pairs = np.bincount((2 * action[:, 0] + action[:, 1]).numpy(), minlength=6) / 20_000
    expected = np.outer([0.5, 0.25, 0.25], [0.75, 0.25]).ravel()
    np.testing.assert_allclose(pairs, expected, atol=0.015)


@pytest.mark.parametrize("policy", [multi()[0], BernoulliPolicy(4, 3, (8,), torch.tanh)])
def test_acting_gives_what_learning_computes(policy):
    params = policy.layout.unflatten(policy.init(torch.Generator().manual_seed(0)) * 5)
    obs = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    found = policy.acting(params, 16)(obs)
    torch.testing.assert_close(found, policy.dist(params, obs))


def test_switches_have_the_probabilities_of_their_logits():
    policy = BernoulliPolicy(4, 2, (8,), torch.tanh)
    dist = torch.tensor([[LOG(3), -LOG(4)]])  # p = 3/4 and 1/5
    assert policy.log_prob(dist, torch.tensor([[1, 1]])).tolist() == pytest.approx(
        [LOG(0.75 * 0.2)]
    )
    assert policy.log_prob(dist, torch.tensor([[0, 0]])).tolist() == pytest.approx(
        [LOG(0.25 * 0.8)]
    )
    entropies = [-(p * LOG(p) + (1 - p) * LOG(1 - p)) for p in (0.75, 0.2)]
    assert policy.entropy(dist).tolist() == pytest.approx([sum(entropies)])
    expected = 2 * LOG(2) - sum(entropies)
    assert policy.kl(dist, torch.zeros(1, 2)).tolist() == pytest.approx([expected])
    assert policy.mode(dist).tolist() == [[1, 0]]
    noise = torch.from_numpy(policy.noise(np.random.default_rng(0), 20_000))
    action = torch.empty(20_000, 2, dtype=torch.int64)
    policy.sample(dist.expand(20_000, -1), noise, action)
    np.testing.assert_allclose(action.double().mean(0), [0.75, 0.2], atol=0.015)
