import numpy as np
import pytest
import torch

from walle.learning.replay import Replay, Transitions
from walle.types import Rollout


def rollout(first, steps=3, lanes=2, ends=()):
    """Observations count up along each lane: `first + t`, plus 100 a lane; `ends`: (t, lane, how).

    After an end the next episode's observations are negative, and the true successor is +0.5.
    """
    count = first + np.arange(steps + 1.0)[:, None] + 100 * np.arange(lanes)
    obs = count[..., None].astype(np.float32)
    final = np.full((steps, lanes, 1), np.nan, np.float32)
    ended = {how: np.zeros((steps, lanes), bool) for how in ("terminated", "truncated")}
    for t, lane, how in ends:
        ended[how][t, lane] = True
        final[t, lane] = obs[t, lane] + 0.5
        obs[t + 1 :, lane] *= -1
    return Rollout(
        obs=obs,
        final_obs=final,
        action=10 * obs[:-1],
        reward=obs[:-1, :, 0] / 2,
        terminated=ended["terminated"],
        truncated=ended["truncated"],
        log_prob=np.zeros((steps, lanes), np.float32),
        lane=np.arange(lanes),
        policy_version=np.zeros(lanes, np.int64),
    )


def newest(buffer):
    """The rows that a buffer holds, oldest first, and the number of rows that it ever got."""
    return buffer.rows(buffer.inserted - len(buffer), buffer.inserted), buffer.inserted


def held(buffer):
    """What a buffer holds, oldest first."""
    return Transitions.split(newest(buffer)[0], 1)


def test_a_step_is_kept_with_its_successor():
    buffer = Replay(100, 1, 1)
    buffer.add(rollout(1))
    assert len(buffer) == 6
    found = held(buffer)
    assert found.obs[:, 0].tolist() == [1, 101, 2, 102, 3, 103]
    assert found.next_obs[:, 0].tolist() == [2, 102, 3, 103, 4, 104]
    assert found.action[:, 0].tolist() == [10, 1010, 20, 1020, 30, 1030]
    assert found.reward.tolist() == [0.5, 50.5, 1, 51, 1.5, 51.5]
    assert found.continues.tolist() == [1] * 6


def test_no_transition_crosses_the_end_of_an_episode():
    buffer = Replay(100, 1, 1)
    buffer.add(rollout(1, ends=[(1, 0, "terminated"), (2, 1, "truncated")]))
    found = held(buffer)
    assert found.obs[:, 0].tolist() == [1, 101, 2, 102, -3, 103]
    assert found.next_obs[:, 0].tolist() == [2, 102, 2.5, 103, -4, 103.5]
    assert found.continues.tolist() == [1, 1, 0, 1, 1, 1]  # a truncated step's value goes on


def test_the_oldest_are_overwritten_first():
    buffer = Replay(8, 1, 1)
    for first in (0, 3, 6):
        buffer.add(rollout(first))
        expected = [x for t in range(first + 3) for x in (t, 100 + t)][-8:]
        assert held(buffer).obs[:, 0].tolist() == expected
    assert len(buffer) == 8


def test_a_rollout_larger_than_the_buffer_leaves_its_end():
    buffer = Replay(4, 1, 1)
    buffer.add(rollout(0, steps=5))
    assert held(buffer).obs[:, 0].tolist() == [3, 103, 4, 104]
    buffer.add(rollout(5, steps=1))
    assert held(buffer).obs[:, 0].tolist() == [4, 104, 5, 105]


def test_samples_are_rows_of_the_buffer_drawn_evenly():
    buffer = Replay(50, 1, 1)
    buffer.add(rollout(0, steps=5))
    rows = buffer.sample(3, 2000, torch.Generator().manual_seed(0))
    assert rows.shape == (3, 2000, buffer.width)
    assert rows.is_contiguous()
    found = Transitions.split(rows, 1)
    assert torch.equal(found.action, 10 * found.obs)
    values, counts = found.obs.unique(return_counts=True)
    assert values.tolist() == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
    # 6,000 draws of 10 rows: a standard deviation of 23 around 600
    assert (counts - 600).abs().max() < 120


def test_the_same_generator_draws_the_same_rows():
    buffer = Replay(50, 1, 1)
    buffer.add(rollout(0, steps=5))
    both = [buffer.sample(2, 4, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*both)


@pytest.mark.parametrize("capacity", [7, 100])  # a full ring, and one that is not
def test_it_goes_on_from_its_state(capacity):
    ours, theirs = Replay(capacity, 1, 1), Replay(capacity, 1, 1)
    for first in (0, 3):
        ours.add(rollout(first))
    theirs.restore(*newest(ours))
    for buffer in (ours, theirs):
        buffer.add(rollout(6, steps=2))
    samples = [b.sample(2, 8, torch.Generator().manual_seed(0)) for b in (ours, theirs)]
    assert torch.equal(*samples)
    assert (theirs.inserted, len(theirs)) == (16, min(capacity, 16))


def test_rows_are_named_by_their_number_since_the_beginning():
    buffer = Replay(7, 1, 1)
    for first in (0, 3):
        buffer.add(rollout(first))  # rows 0 to 11; the ring has 5 to 11
    found = Transitions.split(buffer.rows(6, 9), 1)
    assert found.obs[:, 0].tolist() == [3, 103, 4]


def test_transitions_are_split_in_any_leading_shape():
    # a row: observation 0, 1, action 2, successor 3, 4, reward 5, continues 6
    rows = torch.arange(7.0).expand(3, 2, 7)
    obs, action, next_obs, reward, continues = Transitions.split(rows, 2)
    assert (obs.shape, action.shape, next_obs.shape) == ((3, 2, 2), (3, 2, 1), (3, 2, 2))
    assert reward.shape == continues.shape == (3, 2)
    assert obs[0, 0].tolist() == [0, 1]
    assert action[0, 0].tolist() == [2]
    assert next_obs[0, 0].tolist() == [3, 4]
    assert (reward[0, 0], continues[0, 0]) == (5, 6)


def test_rows_live_on_the_device_that_was_asked_for():
    buffer = Replay(4, 1, 1, device="meta")
    buffer.add(rollout(1))
    assert buffer.sample(1, 2, torch.Generator()).device.type == "meta"


def test_transitions_that_a_checkpoint_lacks_are_never_drawn():
    earlier, later = Replay(4, 1, 1), Replay(9, 1, 1)
    earlier.add(rollout(0))  # six transitions, of which it holds four
    later._rows[:] = torch.nan
    later.restore(*newest(earlier))
    assert held(later).obs[:, 0].tolist() == [1, 101, 2, 102]
    for first in (3, 6):
        later.add(rollout(first))
        drawn = later.sample(1, 500, torch.Generator().manual_seed(0))[0]
        expected = [x for t in range(1, first + 3) for x in (t, 100 + t)][-9:]
        assert sorted(drawn[:, 0].unique().tolist()) == sorted(expected)


@pytest.mark.parametrize("capacity", [100, 14, 12, 4])
def test_an_add_is_taken_back_with_the_rows_that_it_overwrote(capacity):
    buffer = Replay(capacity, 1, 1)
    buffer.add(rollout(1))
    buffer.add(rollout(4))
    rows, inserted = newest(buffer)
    buffer.add(rollout(7))
    buffer.take_back(inserted)
    assert buffer.inserted == inserted
    assert newest(buffer)[0].equal(rows)


def test_an_add_that_broke_off_is_taken_back(monkeypatch):
    buffer = Replay(6, 1, 1)
    buffer.add(rollout(1))
    rows, inserted = newest(buffer)

    def broken(new):
        buffer._rows[:2] = new[:2]
        raise KeyboardInterrupt

    monkeypatch.setattr(buffer, "_place", broken)
    with pytest.raises(KeyboardInterrupt):
        buffer.add(rollout(4))
    buffer.take_back(inserted)
    assert newest(buffer)[0].equal(rows)


def test_nothing_is_taken_back_that_was_learned_from():
    buffer = Replay(6, 1, 1)
    buffer.take_back(0)
    buffer.add(rollout(1))
    rows, inserted = newest(buffer)
    buffer.take_back(inserted)
    assert newest(buffer)[0].equal(rows)
