"""Lanes between two rounds: noted, dealt to other samplers, brought up to date and joined."""

from dataclasses import replace

import numpy as np
import pytest

from tests.envs.test_states_of_lanes import actions_of
from walle.envs import EnvSpec, make_lanes
from walle.errors import RestoreError
from walle.sampling.lane_book import LaneBlock, LaneBook, concatenated, deal, replayed
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
    book.advance(0, slot_of([0, 1], 0, width=8))
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
    book.advance(0, slot_of([0, 1], 0, width=8))
    for round_ in (1, 2):
        book.advance(0, slot_of([0, 1], round_, width=0))
    (block,) = book.after(0, [])
    assert block.round == 3
    assert block.state.tolist() == [[0] * 8, [1] * 8]  # as after round 0
    assert block.actions[:, 1, 0].tolist() == [-101] * STEPS + [-201] * STEPS
    assert block.obs[1].tolist() == [201.5] * 2
    assert block.memory[0].tolist() == [100] * 3
    book.advance(0, slot_of([0, 1], 3, width=8))
    assert len(book.after(0, [])[0].actions) == 0


def test_actions_from_the_first_round_on_need_no_states():
    book = book_of([0, 1])
    for round_ in (0, 1):
        book.advance(0, slot_of([0, 1], round_, width=0))
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
    book.advance(0, slot_of([0, 1, 2], 0, width=0))
    first, second = book.after(0, [])
    assert (first.numbers.tolist(), second.numbers.tolist()) == ([0, 1], [2])
    assert first.actions[:, :, 0].tolist() == [[0, -1]] * STEPS
    assert second.actions[:, 0, 0].tolist() == [9, 9] + [-2] * STEPS
    assert second.obs.tolist() == [[2.5, 2.5]]
    book.advance(0, slot_of([0, 1, 2], 1, width=8))
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
    book.advance(0, slot_of([0], 0, width=0, steps=2))
    (block,) = book.after(0, [])
    assert block.obs.tolist() == [[0.25, 0.25]]
    assert len(block.actions) == 2


def test_lanes_that_cannot_be_saved_have_a_round_only():
    book = book_of([0, 1], saved=False)
    book.advance(0, slot_of([0, 1], 0, width=0))
    (block,) = book.after(0, [])
    assert block.round == 1
    assert [array.size for array in (block.state, block.obs, block.actions)] == [0] * 3


@pytest.mark.parametrize("width", [8, 0])
def test_what_is_known_does_not_change_with_the_slot(width):
    book, slot = book_of([0, 1]), slot_of([0, 1], 0, width)
    book.advance(0, slot)
    (block,) = book.after(0, [])
    before = [np.array(part) for part in block]
    for array in (*slot.rollout, *slot[1:]):
        array[...] = 1
    for part, expected in zip(block, before, strict=True):
        np.testing.assert_array_equal(part, expected)


def test_blocks_come_back_from_a_checkpoint():
    book = book_of([0, 1], [2])
    book.advance(0, slot_of([0, 1], 0, width=8))
    again = [LaneBlock.loaded(fields) for fields in book.state_dict()]
    assert [block.round for block in again] == [1, 0]
    for block, expected in zip(again, [*book.after(0, []), *book.after(1, [])], strict=True):
        for part, other in zip(block, expected, strict=True):
            np.testing.assert_array_equal(part, other)


SEED = 7
SPECS = {
    "batched MuJoCo": EnvSpec("HalfCheetah-v5", episode_limit=30),
    "own looped robot": EnvSpec("tests.toy_robot:LOOPED"),
    "pickled": EnvSpec("CartPole-v1"),
    "replayed": EnvSpec("LunarLander-v3", saving="replay", episode_limit=30),
    "with a clock": EnvSpec("CartPole-v1", time_feature=True),
}


def acted(spec, numbers, with_state, steps=40):
    """Lanes after some steps, and the block that a run would have of them.

    Its state is that before step `with_state`; None: the block has the actions of all steps.
    """
    lanes = make_lanes(spec, numbers, SEED)
    actions = actions_of(lanes, steps)
    obs, state, begin = lanes.reset(), np.zeros((len(numbers), 0), np.uint8), 0
    for t, action in enumerate(actions):
        if t == with_state:
            state, begin = lanes.state(), t
        obs = lanes.step(action).obs
    if with_state == steps:
        state, begin = lanes.state(), steps
    memory = np.arange(2.0 * len(numbers), dtype=np.float32).reshape(-1, 2)
    shown = np.array(obs, np.float32)
    return lanes, LaneBlock(np.array(numbers), 3, state, shown, memory, actions[begin:])


def future(lanes, actions):
    found = []
    for action in actions:
        step = lanes.step(action)
        found.append([np.array(x) for x in step[:4]])
    return [np.stack(x) for x in zip(*found, strict=True)]


@pytest.mark.parametrize("with_state", [None, 0, 25, 40])
@pytest.mark.parametrize("kind", SPECS)
def test_a_settled_block_goes_on_in_any_lanes_as_its_own_did(kind, with_state):
    spec, numbers = SPECS[kind], [4, 5, 6]
    lanes, block = acted(spec, numbers, with_state)
    found = replayed(block, spec, SEED)
    assert len(found.actions) == 0
    assert found.round == block.round
    others = make_lanes(spec, [0, 1, 2], seed=99)
    others.restore(found.state)
    actions = actions_of(lanes, 35)
    for ours, theirs in zip(future(lanes, actions), future(others, actions), strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_a_settled_block_is_left_alone():
    _, block = acted(SPECS["pickled"], [0, 1], with_state=40)
    assert replayed(block, SPECS["pickled"], SEED) is block


@pytest.mark.parametrize("with_state", [None, 5])
def test_repeated_actions_that_lead_elsewhere_are_refused(with_state):
    """The environment draws from a stream of its own after the steps that a trial takes."""
    spec = EnvSpec("tests.toy:Locked-v0", {"leaves": 35}, saving="replay")
    _, block = acted(spec, [0, 1], with_state)
    with pytest.raises(RestoreError, match=r"the same actions led elsewhere in lanes 0 to 1"):
        replayed(block, spec, SEED)


@pytest.mark.parametrize("leaves", [None, 35])
def test_the_lanes_that_repeat_actions_are_closed(tmp_path, leaves):
    spec = EnvSpec("tests.toy:Locked-v0", {"leaves": leaves}, saving="replay")
    _, block = acted(spec, [0, 1], None)
    told = replace(spec, kwargs={**spec.kwargs, "told": str(tmp_path / "told")})
    try:
        replayed(block, told, SEED)
    except RestoreError:
        assert leaves
    lines = (tmp_path / "told").read_text().splitlines()
    assert lines.count("made") == lines.count("closed") == 2


def block_of(numbers, width, round_=3):
    """A settled block in which every number tells its lane."""
    marks = np.array(numbers)
    state = np.repeat(marks[:, None], width, 1).astype(np.uint8)
    parts = [np.repeat(marks[:, None], n, 1).astype(np.float32) for n in (4, 2)]
    return LaneBlock(marks, round_, state, *parts, np.zeros((0, len(numbers), 1), np.float32))


def test_lanes_are_dealt_by_their_numbers():
    blocks = [block_of([0, 1, 2], 8), block_of([3, 4], 6)]
    first, second = deal(blocks, (2, 3))
    assert (first.numbers.tolist(), second.numbers.tolist()) == ([2], [3])
    assert (first.state.tolist(), second.state.tolist()) == ([[2] * 8], [[3] * 6])
    assert (first.obs.tolist(), second.memory.tolist()) == ([[2] * 4], [[3] * 2])
    assert [block.numbers.tolist() for block in deal(blocks, (4,))] == [[4]]
    assert deal(blocks, (9,)) == ()


def test_actions_are_dealt_with_their_lanes():
    block = block_of([0, 1, 2], 8)._replace(actions=np.arange(6.0).reshape(2, 3, 1))
    (dealt,) = deal([block], (1, 2))
    assert dealt.actions[..., 0].tolist() == [[1, 2], [4, 5]]


def test_joined_lanes_are_in_the_order_of_their_numbers():
    found = concatenated([block_of([3, 4], 6), block_of([0, 2], 8)])
    assert found.numbers.tolist() == [0, 2, 3, 4]
    assert found.state.tolist() == [[0] * 8, [2] * 8, [3] * 6 + [0] * 2, [4] * 6 + [0] * 2]
    assert found.obs[:, 0].tolist() == found.memory[:, 1].tolist() == [0, 2, 3, 4]
    assert (found.round, found.actions.shape) == (3, (0, 2, 1))


def test_a_block_comes_back_from_a_checkpoint_with_arrays_of_its_own():
    block = block_of([3, 4], 6)
    fields = block._asdict()
    again = LaneBlock.loaded(fields)
    for part, other in zip(again, block, strict=True):
        np.testing.assert_array_equal(part, other)
    assert not np.shares_memory(again.state, block.state)


def test_lanes_before_the_first_round_have_nothing_but_their_numbers():
    block = LaneBlock.first([3, 4])
    assert (block.round, block.numbers.tolist()) == (0, [3, 4])
    assert block.state.shape == block.obs.shape == block.memory.shape == (2, 0)
    assert block.actions.shape == (0, 2)
