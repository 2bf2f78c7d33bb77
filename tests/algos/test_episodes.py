import numpy as np

from tests.agent.test_episode_tracker import rollout
from walle.algos.episodes import EpisodeClock, LaneReturns

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


def step_by_step(rounds, lanes):
    """What `LaneReturns` and `EpisodeClock` give, by a loop over all steps."""
    total, elapsed = [0.0] * lanes, [0] * lanes
    finished, times = [], []
    for one in rounds:
        times.append(np.empty(one.reward.shape, int))
        found = []
        for column, lane in enumerate(one.lane):
            for t, reward in enumerate(one.reward[:, column]):
                times[-1][t, column] = elapsed[lane]
                total[lane] += float(reward)
                elapsed[lane] += 1
                if one.ended[t, column]:
                    found.append((t, column, total[lane], elapsed[lane]))
                    total[lane], elapsed[lane] = 0.0, 0
        finished.append(sorted(found))
    return finished, times


def test_sums_and_times_are_those_of_a_loop_over_the_steps():
    """To the last bit, wherever episodes end and rollouts are cut, and for a single column."""
    rng = np.random.default_rng(0)
    for steps, lanes, share in ((200, 1, 0.05), (7, 5, 0.3), (1, 3, 0.5), (40, 2, 1.0)):
        rounds = [
            rollout(
                rng.normal(size=(steps, lanes)).astype(np.float32),
                rng.random((steps, lanes)) < share,
                lane=rng.permutation(lanes),
            )
            for _ in range(4)
        ]
        returns, clock = LaneReturns(lanes), EpisodeClock(lanes)
        finished, times = step_by_step(rounds, lanes)
        assert sum(map(len, finished)) > 3
        for one, episodes, before in zip(rounds, finished, times, strict=True):
            assert returns.add(one) == episodes
            assert np.array_equal(clock(one.ended, one.lane), before)
