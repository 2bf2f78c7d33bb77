import numpy as np
import pytest

from walle.types import Lag, PolicySnapshot, Rollout, unique_lane_groups


@pytest.mark.parametrize(
    ("most", "mode", "slots", "depth", "oldest"),
    [
        (0, "lock_step", 1, 2, [0, 1, 2, 3]),
        (1, "overlapped", 2, 2, [0, 0, 1, 2]),
        (3, "overlapped", 4, 4, [0, 0, 0, 0]),
        (None, "free", 1, 2, [0, 0, 0, 0]),
    ],
)
def test_what_a_lag_means(most, mode, slots, depth, oldest):
    lag = Lag(most)
    assert (lag.mode, lag.slots, lag.depth) == (mode, slots, depth)
    assert [lag.oldest(round_) for round_ in range(4)] == oldest
    assert lag.lock_step == (mode == "lock_step")
    assert lag.free_running == (mode == "free")


def test_a_snapshot_gives_back_its_parts():
    parts = [np.array([1.0, 2.0]), np.array([3.0])]
    mean, inv_std = np.array([4.0, 5.0], np.float32), np.array([6.0, 7.0], np.float32)
    snapshot = PolicySnapshot.of(parts, mean, inv_std)
    assert (snapshot.version, snapshot.rollout_steps, snapshot.episodes) == (0, None, None)
    assert snapshot.vector.dtype == np.float32
    found = snapshot.parts(3)
    assert [part.tolist() for part in found] == [[1, 2, 3], [4, 5], [6, 7]]
    found[0][:] = 0  # a copy: the snapshot may lie in shared memory
    assert snapshot.vector[0] == 1


def rollout(steps, lanes):
    """Every number of every array is another one, so that no two places can be mistaken."""
    count = iter(range(1, 10_000))

    def numbers(*shape):
        size = int(np.prod(shape))
        return np.array([next(count) for _ in range(size)], np.float32).reshape(shape)

    false = np.zeros((steps, lanes), bool)
    return Rollout(
        obs=numbers(steps + 1, lanes, 2),
        final_obs=numbers(steps, lanes, 2),
        action=numbers(steps, lanes, 1),
        reward=numbers(steps, lanes),
        terminated=false,
        truncated=false.copy(),
        log_prob=numbers(steps, lanes),
        lane=np.arange(lanes),
        policy_version=np.full(lanes, 3),
        state=numbers(lanes, 4),
    )


def test_between_has_one_observation_more_than_steps():
    whole = rollout(5, 2)
    part = whole.between(1, 3)
    assert part.env_steps == 4
    assert np.array_equal(part.obs, whole.obs[1:4])
    for name in ("final_obs", "action", "reward", "terminated", "truncated", "log_prob"):
        assert np.array_equal(getattr(part, name), getattr(whole, name)[1:3]), name
    assert part.state is whole.state


def test_the_successor_of_an_episodes_last_step_is_its_own_last_observation():
    x = rollout(3, 2)
    x.terminated[1, 0] = x.truncated[2, 1] = True
    assert x.ended.tolist() == [[False, False], [True, False], [False, True]]
    expected = x.obs[1:].copy()
    expected[1, 0], expected[2, 1] = x.final_obs[1, 0], x.final_obs[2, 1]
    assert np.array_equal(x.successors(), expected)


def test_no_lane_comes_twice_in_a_group():
    groups = unique_lane_groups(np.array([4, 5, 4, 6, 4, 5]))
    assert [group.tolist() for group in groups] == [[0, 1, 3], [2, 5], [4]]
    assert [group.tolist() for group in unique_lane_groups(np.array([7, 2]))] == [[0, 1]]
