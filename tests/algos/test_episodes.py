import numpy as np

from tests.agent.test_episode_tracker import rollout
from walle.algos.episodes import LaneReturns


def step_by_step(rounds, lanes):
    """What `LaneReturns` returns, by a loop over all steps."""
    total, elapsed = [0.0] * lanes, [0] * lanes
    finished = []
    for one in rounds:
        found = []
        for column, lane in enumerate(one.lane):
            for t, reward in enumerate(one.reward[:, column]):
                total[lane] += float(reward)
                elapsed[lane] += 1
                if one.ended[t, column]:
                    found.append((t, column, total[lane], elapsed[lane]))
                    total[lane], elapsed[lane] = 0.0, 0
        finished.append(sorted(found))
    return finished


def test_sums_are_those_of_a_loop_over_the_steps():
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
        returns, finished = LaneReturns(lanes), step_by_step(rounds, lanes)
        assert sum(map(len, finished)) > 3
        for one, episodes in zip(rounds, finished, strict=True):
            assert returns.add(one) == episodes
