import numpy as np
import pytest

from walle.agent.recorder import EpisodeTracker, statistics
from walle.types import Rollout


def rollout(reward, terminated, truncated=None, lane=None):
    reward = np.array(reward, np.float32)
    T, L = reward.shape
    terminated = np.array(terminated, bool)
    truncated = np.zeros((T, L), bool) if truncated is None else np.array(truncated, bool)
    lane = np.arange(L) if lane is None else np.array(lane)
    empty = np.zeros((T, L))
    return Rollout(empty, empty, empty, reward, terminated, truncated, empty, lane, np.full(L, 5))


def test_episodes_are_added_up_across_rollouts():
    tracker = EpisodeTracker([0, 1], window=10)
    first = tracker.add(rollout([[1, 10], [2, 20]], [[0, 0], [0, 1]]), 0, 1.5)
    assert [(e.lane, e.sampler, e.episode_return, e.length) for e in first] == [(1, 1, 30.0, 2)]
    assert (first[0].env_steps, first[0].wall_s, first[0].policy_version) == (4, 1.5, 5)
    truncated = [[0, 0], [1, 0]]
    second = tracker.add(rollout([[3, 1], [4, 1]], [[0, 0], [0, 0]], truncated), 4, 2.0)
    assert [(e.lane, e.episode_return, e.length, e.end) for e in second] == [
        (0, 10.0, 4, "truncated")
    ]
    assert tracker.return_mean == 20.0
    assert tracker.length_mean == 3.0
    assert tracker.count == 2


def test_return_mean_is_over_the_last_episodes():
    tracker = EpisodeTracker([0], window=2)
    assert tracker.return_mean is None
    tracker.add(rollout([[1], [2], [6]], [[1], [1], [1]]), 0, 0.0)
    assert tracker.return_mean == 4.0


def test_lanes_are_told_apart_by_their_numbers():
    tracker = EpisodeTracker([0, 0, 1, 1], window=2)
    (episode,) = tracker.add(rollout([[1, 2]], [[0, 1]], lane=[2, 3]), 0, 0.0)
    assert (episode.lane, episode.sampler, episode.episode_return) == (3, 1, 2.0)


def test_a_lane_that_comes_twice_is_added_up_in_order():
    """As when a free-running round holds two rollouts of one sampler."""
    tracker = EpisodeTracker([0], window=9)
    twice = rollout([[1, 10], [2, 20]], [[0, 0], [0, 1]], lane=[0, 0])
    (episode,) = tracker.add(twice, 0, 0.0)
    assert (episode.episode_return, episode.length) == (33.0, 4)


def test_an_episode_that_was_given_up_leaves_no_trace():
    tracker = EpisodeTracker([0, 1], window=9)
    tracker.add(rollout([[1, 10], [2, 20]], [[0, 0], [0, 0]]), 0, 0.0)
    after = rollout([[3, 30], [4, 40]], [[0, 0], [1, 1]])._replace(begins=np.array([True, False]))
    found = [(e.lane, e.episode_return, e.length) for e in tracker.add(after, 4, 0.0)]
    assert found == [(0, 7.0, 2), (1, 100.0, 4)]


def test_statistics_by_hand():
    assert statistics([1, 2, 6], "r", "mean", "median", "std", "min", "max") == {
        "r_mean": 3.0,
        "r_median": 2.0,
        "r_std": pytest.approx(np.sqrt(14 / 3)),
        "r_min": 1.0,
        "r_max": 6.0,
    }
    assert statistics([], "r", "mean", "std") == {"r_mean": None, "r_std": None}
