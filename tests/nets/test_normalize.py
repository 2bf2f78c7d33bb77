import numpy as np
import pytest
import torch

from walle.nets.normalize import (
    ObservationNormalizer,
    RewardNormalizer,
    RunningMoments,
    apply_normalizer,
)


def test_moments_of_batches_are_those_of_all_samples():
    x = np.random.default_rng(0).normal(3, 2, (100, 4))
    moments = RunningMoments((4,))
    for batch in np.split(x, [10, 11, 60]):
        moments.update(batch)
    np.testing.assert_allclose(moments.mean, x.mean(0))
    np.testing.assert_allclose(moments.variance, x.var(0))


def test_before_the_first_sample_nothing_changes():
    mean, inv_std = ObservationNormalizer(2, enabled=True).frozen()
    obs = torch.tensor([[3.0, -4.0]])
    scaled = apply_normalizer(obs, torch.from_numpy(mean), torch.from_numpy(inv_std), 10.0)
    torch.testing.assert_close(scaled, obs)


def test_apply_normalizer_by_hand():
    obs = torch.tensor([[5.0, 100.0]])
    scaled = apply_normalizer(obs, torch.tensor([1.0, 0.0]), torch.tensor([0.5, 1.0]), 10.0)
    assert scaled.tolist() == [[2.0, 10.0]]


def test_disabled_observations_stay():
    normalizer = ObservationNormalizer(2, enabled=False)
    normalizer.update(np.full((5, 2), 9.0))
    mean, inv_std = normalizer.frozen()
    assert mean.tolist() == [0, 0]
    np.testing.assert_allclose(inv_std, 1, atol=1e-6)


def test_rewards_are_divided_by_the_std_of_the_discounted_return():
    # gamma 0.5, one lane: R = 1, 2.5, then an end, then 4: mean 2.5, variance 1.5
    normalizer = RewardNormalizer(1, 0.5, enabled=True)
    reward = np.array([[1.0], [2.0], [4.0]], np.float32)
    ended = np.array([[False], [True], [False]])
    scaled = normalizer(reward, ended, np.array([0]))
    np.testing.assert_allclose(scaled.numpy(), reward / np.sqrt(1.5), rtol=1e-6)


def test_reward_returns_go_on_across_rollouts():
    whole, halves = (RewardNormalizer(3, 0.9, enabled=True) for _ in range(2))
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(6, 3)).astype(np.float32)
    ended = rng.random((6, 3)) < 0.3
    whole(reward, ended, np.arange(3))
    halves(reward[:3], ended[:3], np.arange(3))
    halves(reward[3:], ended[3:], np.arange(3))
    for key in ("mean", "m2"):
        a, b = (n.state_dict()["moments"][key] for n in (whole, halves))
        assert a == pytest.approx(b)


def test_a_lane_that_comes_twice_is_taken_in_order():
    once, twice = (RewardNormalizer(1, 0.9, enabled=True) for _ in range(2))
    reward = np.arange(4, dtype=np.float32).reshape(4, 1)
    ended = np.zeros((4, 1), bool)
    once(reward, ended, np.array([0]))
    side_by_side = np.concatenate((reward[:2], reward[2:]), 1)
    twice(side_by_side, ended[:2].repeat(2, 1), np.array([0, 0]))
    assert once.state_dict()["return"] == pytest.approx(twice.state_dict()["return"])


def test_disabled_rewards_stay():
    reward = np.ones((2, 1), np.float32)
    scaled = RewardNormalizer(1, 0.9, enabled=False)(reward, reward > 2, np.array([0]))
    assert scaled.tolist() == [[1.0], [1.0]]
