from types import SimpleNamespace

import numpy as np
import pytest

from walle.sampling.queues import Received
from walle.sampling.rounds import Round, assemble_round, split_lanes
from walle.sampling.slots import RolloutShape, Slot
from walle.timing import SAMPLER_SECTIONS

STEP_FIELDS = ("obs", "final_obs", "action", "reward", "terminated", "truncated", "log_prob")
LANE_FIELDS = ("lane", "policy_version", "state", "begins")
TASKS = [  # what a round asks of the samplers' tasks
    SimpleNamespace(name="sampler-0", lanes=(0, 1)),
    SimpleNamespace(name="sampler-1", lanes=(2,)),
]


def received(sampler, first, shape, steps, lane_steps=(), began_ns=0, sent_ns=0):
    """A slot whose arrays count up from `first`, filled with that many steps."""
    slot = Slot.empty(shape)
    for name in STEP_FIELDS + LANE_FIELDS:
        array = getattr(slot.rollout, name)
        numbers = first + np.arange(array.size).reshape(array.shape)
        array[...] = numbers % 3 == 0 if array.dtype == bool else numbers
        first += array.size
    slot.steps[0], slot.lane_steps[:] = steps, lane_steps
    slot.began_ns[0], slot.sent_ns[0] = began_ns, sent_ns
    return Received(sampler, 0, slot)


def beside(sampler, lanes, first, **header):
    """Three steps of lanes side by side, of which two are filled."""
    shape = RolloutShape(3, lanes, (2,), "float32", (1,), "float32", state=2)
    return received(sampler, first, shape, 2, **header)


def packed(sampler, lane_steps, first, **header):
    """Lanes one after the other in a column with room for eight steps."""
    shape = RolloutShape(8, 1, (2,), "float32", (1,), "float32", len(lane_steps), state=2)
    return received(sampler, first, shape, sum(lane_steps), lane_steps, **header)


def test_lanes_are_split_into_blocks_the_larger_ones_first():
    assert split_lanes(5, 2) == [(0, 1, 2), (3, 4)]
    assert split_lanes(4, 4) == [(0,), (1,), (2,), (3,)]


def test_rollouts_side_by_side_keep_every_field():
    both = [beside(0, 2, 0), beside(1, 1, 1000)]
    rollout = assemble_round(both, TASKS).rollout
    first, second = (item.slot.rollout for item in both)
    for name in STEP_FIELDS:
        filled = 3 if name == "obs" else 2
        rows = np.concatenate([getattr(x, name)[:filled] for x in (first, second)], 1)
        found = getattr(rollout, name)
        assert (found.shape, found.dtype) == (rows.shape, rows.dtype)
        there = rollout.ended if name == "final_obs" else ...  # elsewhere these are undefined
        np.testing.assert_array_equal(found[there], rows[there], name)
    assert rollout.ended.any()
    assert not rollout.ended.all()
    for name in LANE_FIELDS:
        rows = [getattr(x, name) for x in (first, second)]
        np.testing.assert_array_equal(getattr(rollout, name), np.concatenate(rows), name)
    assert rollout.reward.shape == (2, 3)
    assert rollout.lane.shape == (3,)


def test_lanes_side_by_side_are_the_columns_of_the_rollout():
    found = assemble_round([beside(0, 2, 0), beside(1, 1, 1000)], TASKS)
    assert len(found.lanes) == 1
    assert found.lanes[0] is found.rollout


def test_packed_rollouts_keep_every_field():
    both = [packed(0, [2, 3], 0), packed(1, [1], 1000)]
    rollout = assemble_round(both, TASKS).rollout
    first, second = (item.slot.rollout for item in both)
    for name in STEP_FIELDS:
        last = 2 if name == "obs" else 1
        rows = [getattr(first, name)[:5], getattr(second, name)[:last]]
        np.testing.assert_array_equal(getattr(rollout, name), np.concatenate(rows), name)
    for name in LANE_FIELDS:
        np.testing.assert_array_equal(getattr(rollout, name), getattr(first, name), name)
    assert rollout.reward.shape == (6, 1)


def test_packed_lanes_are_rollouts_of_their_own():
    found = assemble_round([packed(0, [2, 3], 0), packed(1, [1], 1000)], TASKS)
    assert [lane.lane.tolist() for lane in found.lanes] == [[0], [1], [2]]
    begin = 0
    for lane, steps in zip(found.lanes, [2, 3, 1], strict=True):
        np.testing.assert_array_equal(lane.reward, found.rollout.reward[begin : begin + steps])
        np.testing.assert_array_equal(lane.obs, found.rollout.obs[begin : begin + steps + 1])
        begin += steps


def test_packed_lanes_are_named_by_their_samplers():
    """A free-running round holds the rollouts of those samplers that were ready first."""
    found = assemble_round([packed(1, [2], 0), packed(0, [1, 3], 1000)], TASKS)
    assert [lane.lane.tolist() for lane in found.lanes] == [[2], [0], [1]]


@pytest.mark.parametrize("make", [lambda: beside(0, 2, 0), lambda: packed(0, [2, 3], 0)])
def test_a_round_has_memory_of_its_own(make):
    item = make()
    rollout = assemble_round([item], TASKS).rollout
    for name in STEP_FIELDS + LANE_FIELDS:
        assert not np.shares_memory(getattr(rollout, name), getattr(item.slot.rollout, name)), name


def test_a_round_lasts_from_the_first_beginning_to_the_last_handing_over():
    both = [
        beside(0, 2, 0, began_ns=20, sent_ns=40),
        beside(1, 1, 0, began_ns=10, sent_ns=30),
    ]
    found = assemble_round(both, TASKS)
    assert (found.began_ns, found.last_sent_ns) == (10, 40)


def test_a_round_has_the_sections_of_every_sampler():
    both = [beside(1, 1, 0), beside(0, 2, 100)]
    both[0].slot.sections_s[:] = [1, 2, 3, 4, 5, 6]
    both[1].slot.sections_s[:] = [7, 8, 9, 10, 11, 12]
    found = assemble_round(both, TASKS)
    assert [name for name, _ in found.sections_s] == ["sampler-1", "sampler-0"]
    first, second = (row for _, row in found.sections_s)
    assert first == dict(zip(SAMPLER_SECTIONS, [1, 2, 3, 4, 5, 6], strict=True))
    assert second["env_step"] == 8


def test_a_sampler_that_waits_is_not_busy():
    # busy for 1 + 2 + 3 + 4 and for 5 + 6 seconds
    rows = [
        {"act": 1.0, "env_step": 2.0, "send": 3.0, "other": 4.0, "wait_policy": 50.0},
        {"act": 5.0, "env_step": 6.0, "wait_slot": 50.0, "wait_policy": 50.0},
    ]
    named = [(f"sampler-{i}", row) for i, row in enumerate(rows)]
    assert Round(None, named, 0, 0, []).busy_s == [10, 11]
