"""A node's slots come out on the agent's side as they went in."""

import pickle

import numpy as np
import pytest

from walle.sampling.cluster.node import copied, restored
from walle.sampling.slots import RolloutShape, Slot

WIDE = RolloutShape(6, 3, (2,), "float32", (2,), "float32", state=4, lane_state=40)
EPISODES = RolloutShape(8, 1, (2,), "float32", (), "int64", packed_lanes=2)
PIXELS = RolloutShape(2, 2, (12,), "uint8", (), "int64", lane_state=8)


def filled(shape, steps, width, seed=0):
    """A slot of random numbers; episodes end in about a third of the steps."""
    slot, rng = Slot.empty(shape), np.random.default_rng(seed)
    arrays = [*slot.rollout[: len(shape.fields())], slot.sections_s, slot.lane_states, slot.memory]
    for array in arrays:
        array[...] = rng.integers(0, 200, array.shape)
    for name in ("terminated", "truncated"):
        getattr(slot.rollout, name)[...] = rng.random(slot.rollout.reward.shape) < 0.2
    slot.steps[0], slot.round[0], slot.state_bytes[0] = steps, 7, width
    slot.lane_steps[:] = range(1, 1 + len(slot.lane_steps))
    return slot


def assert_equal(found, slot):
    width = int(slot.state_bytes[0])
    for name in slot.rollout._fields:
        ours, theirs = getattr(found.filled, name), getattr(slot.filled, name)
        if name == "final_obs":
            ended = slot.filled.ended
            assert not found.filled.final_obs[~ended].any()
            ours, theirs = ours[ended], theirs[ended]
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs, name)
    for name in ("sections_s", "steps", "lane_steps", "round", "state_bytes", "memory"):
        np.testing.assert_array_equal(getattr(found, name), getattr(slot, name), name)
    np.testing.assert_array_equal(found.lane_states, slot.lane_states[:, :width])


def sent(slot):
    """The slot after Ray's way of carrying it: pickled, with read-only arrays."""
    buffers = []
    data = pickle.dumps(copied(slot), protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[pickle.PickleBuffer(bytes(b)) for b in buffers])


@pytest.mark.parametrize(
    ("shape", "steps", "width"),
    [(WIDE, 6, 40), (WIDE, 4, 17), (WIDE, 6, 0), (EPISODES, 5, 0), (PIXELS, 2, 8)],
)
def test_slots_come_out_as_they_went_in(shape, steps, width):
    slot = filled(shape, steps, width)
    found = restored(sent(slot), 5, 9)
    assert_equal(found, slot)
    assert (found.began_ns.tolist(), found.sent_ns.tolist()) == ([5], [9])


def test_a_copy_does_not_change_with_its_slot():
    slot = filled(WIDE, 6, 40)
    copy, obs = copied(slot), slot.rollout.obs.copy()
    slot.rollout.obs[:] = -1
    np.testing.assert_array_equal(copy.rollout.obs, obs)


def test_only_the_observations_at_the_ends_of_episodes_travel():
    slot = filled(WIDE, 6, 0)
    slot.rollout.terminated[:], slot.rollout.truncated[:] = False, False
    assert copied(slot).rollout.final_obs.nbytes == 0
    slot.rollout.terminated[2, 1] = True
    assert copied(slot).rollout.final_obs.shape == (1, 2)
