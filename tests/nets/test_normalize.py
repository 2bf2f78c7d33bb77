import numpy as np
import pytest
import torch

from walle.nets.normalize import (
    ObservationNormalizer,
    RewardNormalizer,
    RunningMoments,
    batch_moments,
    normalize_into,
)


def test_moments_of_batches_are_those_of_all_samples():
    x = np.random.default_rng(0).normal(3, 2, (100, 4))
    moments = RunningMoments((4,))
    for batch in np.split(x, [10, 11, 60]):
        moments.update(batch)
    np.testing.assert_allclose(moments.mean, x.mean(0))
    np.testing.assert_allclose(moments.variance, x.var(0))


@pytest.mark.parametrize("width", [2, 17, 348])
@pytest.mark.parametrize("count", [1, 753, 754, 16_000])
def test_deviations_in_blocks_have_the_bits_of_one_sum(count, width):
    x = np.random.default_rng(count).normal(3, 2, (count, width)).astype(np.float32)
    center = x.mean(0, dtype=np.float64)
    np.testing.assert_array_equal(batch_moments(x)[1], np.square(x - center).sum(0))


def test_before_the_first_sample_nothing_changes():
    mean, inv_std = ObservationNormalizer(2, enabled=True).frozen()
    obs = np.array([[3.0, -4.0]], np.float32)
    out = obs.copy()
    normalize_into(out, out, mean, inv_std, 10.0)
    np.testing.assert_allclose(out, obs, rtol=1e-6)


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


def test_the_return_of_an_episode_that_was_given_up_does_not_go_on():
    ours, theirs = (RewardNormalizer(2, 0.5, enabled=True) for _ in range(2))
    reward, lanes = np.ones((3, 2), np.float32), np.arange(2)
    running, ended = np.zeros((3, 2), bool), np.zeros((3, 2), bool)
    ended[2, 1] = True  # as if lane 1 had ended there
    ours(reward, running, lanes)
    ours(reward, running, lanes, np.array([False, True]))
    theirs(reward, ended, lanes)
    theirs(reward, running, lanes)
    assert ours.state_dict()["return"].tolist() == theirs.state_dict()["return"].tolist()
    for key in ("mean", "m2"):
        a, b = (each.state_dict()["moments"][key] for each in (ours, theirs))
        assert a == b


def test_disabled_rewards_stay():
    reward = np.ones((2, 1), np.float32)
    scaled = RewardNormalizer(1, 0.9, enabled=False)(reward, reward > 2, np.array([0]))
    assert scaled.tolist() == [[1.0], [1.0]]


def test_moments_of_single_precision_samples_have_double_precision():
    x = (1e4 + np.random.default_rng(0).random((1000, 1))).astype(np.float32)
    moments = RunningMoments((1,))
    moments.update(x)
    np.testing.assert_allclose(moments.mean, x.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, x.astype(np.float64).var(0), rtol=1e-9)


def test_moments_go_on_from_their_state():
    ours, theirs = RunningMoments((2,)), RunningMoments((2,))
    ours.update(np.array([[1.0, 10.0], [3.0, 20.0]]))
    state = ours.state_dict()
    theirs.load_state_dict(state)
    ours.update(np.array([[8.0, 60.0]]))  # leaves the state as it was
    theirs.update(np.array([[8.0, 60.0]]))
    for moments in (ours, theirs):  # of 1, 3, 8 and 10, 20, 60
        assert moments.count == 3
        np.testing.assert_allclose(moments.mean, [4, 30])
        np.testing.assert_allclose(moments.variance, [(9 + 1 + 16) / 3, (400 + 100 + 900) / 3])
    assert (state["count"], state["mean"].tolist()) == (2, [2, 15])


def test_observations_of_all_steps_and_lanes_are_taken_in():
    # [T, L, O] = [2, 2, 3]: the entries are 0, 2, 4, 6 times 1, 10 and 0
    normalizer = ObservationNormalizer(3, enabled=True)
    normalizer.update(np.array([0.0, 2, 4, 6]).reshape(2, 2, 1) * np.array([1.0, 10, 0]))
    mean, inv_std = normalizer.frozen()
    assert mean.tolist() == [3, 30, 0]
    # a variance of 5, of 500, and of 0 to which 1e-8 is added
    np.testing.assert_allclose(inv_std, [5**-0.5, 500**-0.5, 1e4], rtol=1e-6)
    assert mean.dtype == inv_std.dtype == np.float32


def test_an_observation_normalizer_goes_on_from_its_state():
    ours, theirs = (ObservationNormalizer(1, enabled=True) for _ in range(2))
    ours.update(np.array([[1.0], [3.0]]))
    theirs.load_state_dict(ours.state_dict())
    theirs.update(np.array([[8.0]]))
    mean, inv_std = theirs.frozen()
    assert mean.tolist() == [4]
    np.testing.assert_allclose(inv_std, (26 / 3) ** -0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("clip", "expected"), [(None, [2.0, 100.0, -100.0]), (10.0, [2.0, 10.0, -10.0])]
)
def test_observations_are_clipped_on_both_sides_if_asked(clip, expected):
    obs, mean, inv_std = (
        np.array(x, np.float32) for x in ([[5, 100, -98]], [1, 0, 2], [0.5, 1, 1])
    )
    out = np.empty_like(obs)
    normalize_into(out, obs, mean, inv_std, clip)
    assert out.tolist() == [expected]


def test_the_discounted_returns_of_all_lanes_have_one_variance():
    # gamma 0.5; lane 2: R = 1, 2.5; lane 0: R = 3, then an end, then 5.
    # mean 2.875, variance (1.875² + 0.375² + 0.125² + 2.125²) / 4 = 2.046875
    normalizer = RewardNormalizer(3, 0.5, enabled=True)
    reward = np.array([[1, 3], [2, 5]], np.float32)
    scaled = normalizer(reward, np.array([[False, True], [False, False]]), np.array([2, 0]))
    np.testing.assert_allclose(scaled.numpy(), reward / np.sqrt(2.046875), rtol=1e-6)
    assert scaled.dtype == torch.float32
    assert normalizer.state_dict()["return"].tolist() == [5, 0, 2.5]


def test_rewards_that_never_vary_stay_finite():
    scaled = RewardNormalizer(1, 0.9, enabled=True)(
        np.zeros((2, 1), np.float32), np.zeros((2, 1), bool), np.array([0])
    )
    assert scaled.tolist() == [[0.0], [0.0]]


def test_a_reward_normalizer_goes_on_from_its_state():
    ours, theirs = (RewardNormalizer(2, 0.5, enabled=True) for _ in range(2))
    lane, running = np.array([0, 1]), np.zeros((1, 2), bool)
    ours(np.array([[1, 2]], np.float32), running, lane)
    state = ours.state_dict()
    theirs.load_state_dict(state)
    after = [n(np.array([[3, 4]], np.float32), running, lane) for n in (ours, theirs)]
    # R = 1, 2, then 3.5, 5
    expected = np.array([[3, 4]]) / np.array([1, 2, 3.5, 5]).std()
    for scaled in after:
        np.testing.assert_allclose(scaled.numpy(), expected, rtol=1e-6)
    assert state["return"].tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_state_has_the_same_types_before_and_after_loading_and_updating(shape):
    """NumPy makes a scalar of a sum of arrays without axes; checkpoints are compared exactly."""
    moments, found = RunningMoments(shape), []
    for step in (lambda: moments.update(np.ones((3, *shape))), lambda: None):
        moments.load_state_dict(state := moments.state_dict())
        found += [list(map(type, each.values())) for each in (state, moments.state_dict())]
        step()
    assert found == found[:1] * 4
