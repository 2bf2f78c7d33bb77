import numpy as np

from walle.algos.episodes import EpisodeClock

SMALL = ("algo=trpo", "batch_size=256", "sampler.lanes=8", "algo.compile=false")


def test_the_clock_runs_on_from_rollout_to_rollout():
    clock = EpisodeClock(3)
    ended = np.array([[0, 0], [1, 0], [0, 0]], bool)
    assert clock(ended, np.array([0, 2])).T.tolist() == [[0, 1, 0], [0, 1, 2]]
    again = EpisodeClock(3)
    again.load_state_dict(clock.state_dict())
    assert again(ended[:1], np.array([2, 0])).T.tolist() == [[3], [1]]


def test_a_lane_that_comes_twice_goes_on_in_its_second_column():
    clock = EpisodeClock(1)
    assert clock(np.zeros((2, 2), bool), np.array([0, 0])).T.tolist() == [[0, 1], [2, 3]]


def test_the_clock_begins_again_where_an_episode_was_given_up():
    clock = EpisodeClock(2)
    ended, lanes = np.zeros((2, 2), bool), np.array([0, 1])
    clock(ended, lanes)
    assert clock(ended, lanes, np.array([False, True])).T.tolist() == [[2, 3], [0, 1]]
    twice = np.array([1, 1]), np.array([False, True])  # two rollouts of one lane in a round
    assert clock(ended, *twice).T.tolist() == [[2, 3], [0, 1]]
