"""What a node answers comes out as it went in, or is refused."""

import numpy as np
import pytest

from walle.sampling.cluster.answer import AnswerError, Header, pack, read_header, unpack
from walle.sampling.slots import RolloutShape, Slot

WIDE = RolloutShape(6, 3, (2,), "float32", (2,), "float32", state=4, lane_state=40)
EPISODES = RolloutShape(8, 1, (2,), "float32", (), "int64", packed_lanes=2)
PIXELS = RolloutShape(2, 2, (12,), "uint8", (), "int64", lane_state=8)
HEADER = Header(7, 6, 11, (0, 1, 2, 3, 4))


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


@pytest.mark.parametrize(
    ("shape", "steps", "width"),
    [(WIDE, 6, 40), (WIDE, 4, 17), (WIDE, 6, 0), (EPISODES, 5, 0), (PIXELS, 2, 8)],
)
def test_slots_come_out_as_they_went_in(shape, steps, width):
    slots = {2: filled(shape, steps, width), 5: filled(shape, steps, width, seed=1)}
    packed = pack(HEADER, slots)
    assert (packed.dtype, packed.ndim, packed.flags.c_contiguous) == (np.uint8, 1, True)
    packed.flags.writeable = False  # as Ray gives it
    assert read_header(packed) == HEADER
    found = unpack(packed, {2: shape, 5: shape})
    assert list(found) == [2, 5]
    for sampler, slot in slots.items():
        assert_equal(found[sampler], slot)


def test_an_answer_that_is_not_needed_any_more_is_overwritten():
    first, second = ({0: filled(WIDE, 6, 40, seed)} for seed in (0, 1))
    for slots in (first, second):
        slots[0].rollout.terminated[:], slots[0].rollout.truncated[:] = False, False
    former = pack(HEADER, first)
    packed = pack(HEADER, second, former)
    assert packed is former
    assert_equal(unpack(packed, {0: WIDE})[0], second[0])
    assert read_header(packed) == HEADER
    long = RolloutShape(400, 4, (9,), "float32", (2,), "float32")
    assert pack(HEADER, {0: filled(long, 400, 0)}, former) is not former


def test_an_answer_is_small_where_no_episode_ends():
    wide = WIDE._replace(obs=(1000,))
    quiet, ending = filled(wide, 6, 0), filled(wide, 6, 0)
    quiet.rollout.terminated[:], quiet.rollout.truncated[:] = False, False
    ending.rollout.terminated[:] = True
    saved = len(pack(HEADER, {0: ending})) - len(pack(HEADER, {0: quiet}))
    assert saved > 0.9 * 6 * 3 * 1000 * 4  # the rows


@pytest.mark.parametrize("place", [16, 32, 64, 300, -1])
def test_a_damaged_answer_is_refused(place):
    packed = pack(HEADER, {0: filled(WIDE, 6, 40)})
    packed[place] ^= 1
    with pytest.raises(AnswerError, match="damaged"):
        read_header(packed)


def test_words_that_change_places_are_damage():
    packed = pack(
        HEADER, {0: filled(RolloutShape(400, 4, (9,), "float32", (2,), "float32"), 400, 0)}
    )
    words = packed[64:].view(np.uint64).reshape(-1, 512)
    for swapped in ([1, 0], [0, 1]):
        (a, b) = (words[1], words[2]) if swapped[0] else (words[:, 100], words[:, 101])
        assert (a != b).any()
        kept = a.copy()
        a[:], b[:] = b.copy(), kept
        with pytest.raises(AnswerError, match="damaged"):
            read_header(packed)
        a[:], b[:] = b.copy(), a.copy()
    read_header(packed)


@pytest.mark.parametrize("bytes_", [1, 64, 4096])
def test_an_answer_that_is_cut_short_is_refused(bytes_):
    packed = pack(HEADER, {0: filled(WIDE, 6, 40)})
    with pytest.raises(AnswerError, match=r"cut short|damaged"):
        read_header(packed[:-bytes_])


def test_an_answer_of_another_format_is_refused_with_the_cure():
    packed = pack(HEADER, {0: filled(WIDE, 6, 40)})
    packed[8] += 1
    with pytest.raises(AnswerError, match=r"format 2.* same version of walle"):
        read_header(packed)


@pytest.mark.parametrize("size", [0, 8, 200, 64, 64 + 4096])
def test_what_is_no_answer_is_refused(size):
    with pytest.raises(AnswerError, match="marker"):
        read_header(np.zeros(size, np.uint8))
