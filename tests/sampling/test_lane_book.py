"""What the agent knows about all lanes after each round that it took."""

import numpy as np
import pytest

from walle.sampling.lane_block import LaneBlock
from walle.sampling.lane_book import LaneBook
from walle.sampling.slots import RolloutShape, Slot

STEPS, ROOM = 4, 16


def slot_of(numbers, round_, width, steps=STEPS):
    """A rollout of those lanes, in which every number tells lane and round."""
    shape = RolloutShape(
        STEPS, len(numbers), (2,), "float32", (1,), "float32", state=3, lane_state=ROOM
    )
    slot = Slot.empty(shape)
    marks = np.array(numbers) + 100 * round_
    slot.rollout.obs[:] = marks[:, None]
    slot.rollout.obs[:] += np.arange(STEPS + 1)[:, None, None] / 8
    slot.rollout.action[:] = -marks[:, None]
    slot.rollout.lane[:] = numbers
    slot.round[0], slot.state_bytes[0], slot.steps[0] = round_, width, steps
    slot.lane_states[:] = np.array(numbers)[:, None] + 10 * round_
    slot.memory[:] = marks[:, None] / 2
    return slot


def book_of(*samplers, saved=True):
    """A book before the first round, with the lanes of each sampler."""
    return LaneBook([(LaneBlock.first(numbers),) for numbers in samplers], saved=saved)


def test_a_rollout_with_states_replaces_what_was_known():
    book = book_of([0, 1], [2])
    book.turn(0, slot_of([0, 1], 0, width=8))
    (block,), (other,) = book.after(0, []), book.after(1, [])
    assert (block.round, book.round(0)) == (1, 1)
    assert block.numbers.tolist() == [0, 1]
    assert block.state.tolist() == [[0] * 8, [1] * 8]
    assert block.obs.tolist() == [[0.5, 0.5], [1.5, 1.5]]  # the last one
    assert block.memory.tolist() == [[0] * 3, [0.5] * 3]
    assert block.actions.shape == (0, 2, 1)
    assert (other.round, other.state.size) == (0, 0)


def test_without_states_the_actions_since_the_last_ones_are_kept():
    book = book_of([0, 1])
    book.turn(0, slot_of([0, 1], 0, width=8))
    for round_ in (1, 2):
        book.turn(0, slot_of([0, 1], round_, width=0))
    (block,) = book.after(0, [])
    assert block.round == 3
    assert block.state.tolist() == [[0] * 8, [1] * 8]  # as after round 0
    assert block.actions[:, 1, 0].tolist() == [-101] * STEPS + [-201] * STEPS
    assert block.obs[1].tolist() == [201.5] * 2
    assert block.memory[0].tolist() == [100] * 3
    book.turn(0, slot_of([0, 1], 3, width=8))
    assert len(book.after(0, [])[0].actions) == 0


def test_actions_from_the_first_round_on_need_no_states():
    book = book_of([0, 1])
    for round_ in (0, 1):
        book.turn(0, slot_of([0, 1], round_, width=0))
    (block,) = book.after(0, [])
    assert (block.round, block.state.size) == (2, 0)
    assert block.actions[:, 0, 0].tolist() == [0] * STEPS + [-100] * STEPS


def test_blocks_of_different_ages_stay_apart_until_a_state_comes():
    """A run that is resumed with other samplers deals lanes of several blocks to one of them."""
    old = LaneBlock.first([0, 1])
    young = LaneBlock(
        np.array([2]), 0, np.full((1, 8), 7, np.uint8), np.zeros((1, 2)), np.zeros((1, 3)),
        np.full((2, 1, 1), 9.0, np.float32),
    )  # fmt: skip
    book = LaneBook([(old, young)], saved=True)
    book.turn(0, slot_of([0, 1, 2], 0, width=0))
    first, second = book.after(0, [])
    assert (first.numbers.tolist(), second.numbers.tolist()) == ([0, 1], [2])
    assert first.actions[:, :, 0].tolist() == [[0, -1]] * STEPS
    assert second.actions[:, 0, 0].tolist() == [9, 9] + [-2] * STEPS
    assert second.obs.tolist() == [[2.5, 2.5]]
    book.turn(0, slot_of([0, 1, 2], 1, width=8))
    (block,) = book.after(0, [])
    assert block.numbers.tolist() == [0, 1, 2]


def test_rollouts_in_the_queue_are_counted_without_being_noted():
    book = book_of([0, 1])
    waiting = [slot_of([0, 1], 0, width=8), slot_of([0, 1], 1, width=0)]
    (block,) = book.after(0, waiting)
    assert (block.round, len(block.actions)) == (2, STEPS)
    assert book.round(0) == 0
    (block,) = book.after(0, [])
    assert block.round == 0


def test_a_short_rollout_leaves_its_own_last_observation():
    book = book_of([0])
    book.turn(0, slot_of([0], 0, width=0, steps=2))
    (block,) = book.after(0, [])
    assert block.obs.tolist() == [[0.25, 0.25]]
    assert len(block.actions) == 2


def test_lanes_that_cannot_be_saved_have_a_round_only():
    book = book_of([0, 1], saved=False)
    book.turn(0, slot_of([0, 1], 0, width=0))
    (block,) = book.after(0, [])
    assert block.round == 1
    assert [array.size for array in (block.state, block.obs, block.actions)] == [0] * 3


@pytest.mark.parametrize("width", [8, 0])
def test_what_is_known_does_not_change_with_the_slot(width):
    book, slot = book_of([0, 1]), slot_of([0, 1], 0, width)
    book.turn(0, slot)
    (block,) = book.after(0, [])
    before = [np.array(part) for part in block]
    for array in (*slot.rollout, *slot[1:]):
        array[...] = 1
    for part, expected in zip(block, before, strict=True):
        np.testing.assert_array_equal(part, expected)


def test_blocks_come_back_from_a_checkpoint():
    book = book_of([0, 1], [2])
    book.turn(0, slot_of([0, 1], 0, width=8))
    again = [LaneBlock.loaded(fields) for fields in book.state_dict()]
    assert [block.round for block in again] == [1, 0]
    for block, expected in zip(again, [*book.after(0, []), *book.after(1, [])], strict=True):
        for part, other in zip(block, expected, strict=True):
            np.testing.assert_array_equal(part, other)
