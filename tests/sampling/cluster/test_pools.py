"""Lanes are dealt, their rollouts kept, and moved with their states when a node is lost."""

import numpy as np

from walle.envs import EnvSpec
from walle.sampling.cluster.connection import RayNode
from walle.sampling.cluster.members import Member
from walle.sampling.cluster.node import copied
from walle.sampling.cluster.sampling import Plan, Pools, deal_lanes, spread
from walle.sampling.lane_book import LaneBlock
from walle.sampling.sampler_process import SamplerTask
from walle.sampling.sampling import Patience
from walle.sampling.slots import RolloutShape, Slot
from walle.types import Lag

LANES, STEPS = 6, 3


def shape(lanes):
    return RolloutShape(STEPS, lanes, (1,), "float32", (1,), "float32", lane_state=8)


def pools_of(start=(), timeout_s=9.0):
    task = SamplerTask(
        index=0,
        env=EnvSpec("CartPole-v1"),
        lanes=tuple(range(LANES)),
        policy=None,
        obs_dim=1,
        clip=None,
        seed=0,
        lag=Lag(1),
        rounds=None,
        core=None,
        trace=None,
        start=start,
    )
    return Pools(Plan(task, shape, 4, 2, Patience(False, 3, timeout_s)))


def node(name):
    return Member(RayNode(name, name, "", 4), actor=None, state="live")


A, B, C = map(node, "abc")


def answer(pools, pool, round_, version=0):
    """What the node of a pool would send: the state of lane i after round r is 10 r + i."""
    slots = []
    for sampler in pool.samplers:
        lanes = np.array(pools.tasks[sampler].lanes)
        slot = Slot.empty(shape(len(lanes)))
        slot.rollout.lane[:], slot.rollout.policy_version[:] = lanes, version
        slot.rollout.obs[-1, :, 0] = slot.lane_states[:, 0] = 10 * round_ + lanes
        slot.round[0], slot.state_bytes[0] = round_, 8
        slots.append(copied(slot))
    return slots


def keep(pools, pool, round_):
    pools.keep(answer(pools, pool, round_), pool, 5)


def states(start):
    """The first byte of each lane's state in what a node starts from, by lane."""
    blocks = [block for task in start.tasks for block in task.blocks]
    return {n: int(s[0]) for b in blocks for n, s in zip(b.numbers.tolist(), b.state, strict=True)}


def test_the_first_round_begins_without_states():
    pools = pools_of()
    assert pools.deal({A: 2, B: 1}, 0) == {A: 2, B: 1}
    assert [(p.member, p.samplers, p.round) for p in pools.pools] == [(A, (0, 1), 0), (B, (2,), 0)]
    assert [task.lanes for task in pools.tasks] == [(0, 1), (2, 3), (4, 5)]
    assert all(task.first_round == 0 for task in pools.tasks)


def test_a_node_replaces_silent_samplers_before_it_is_set_aside_itself():
    pools = pools_of(timeout_s=9.0)
    pools.deal({A: 1}, 0)
    assert pools.pools[0].start.patience.timeout_s == 3.0
    unlimited = pools_of(timeout_s=None)
    unlimited.deal({A: 1}, 0)
    assert unlimited.pools[0].start.patience.timeout_s is None


def test_a_round_is_whole_when_every_sampler_has_delivered():
    pools = pools_of()
    pools.deal({A: 2, B: 1}, 0)
    first, second = pools.pools
    keep(pools, second, 0)
    assert pools.take_round() is None
    keep(pools, first, 0)
    received = pools.take_round()
    assert [item.sampler for item in received] == [0, 1, 2]
    assert [item.slot.rollout.lane.tolist() for item in received] == [[0, 1], [2, 3], [4, 5]]
    assert {int(item.slot.began_ns[0]) for item in received} == {5}  # on the agent's clock
    assert pools.take_round() is None


def test_lanes_are_dealt_anew_with_their_states():
    pools = pools_of()
    pools.deal({A: 2, B: 1}, 0)
    former = {pool.member: pool for pool in pools.pools}
    for pool in pools.pools:
        keep(pools, pool, 0)
        pool.start, pool.on_node = None, (pool.incarnation,)  # it was sent
    pools.take_round()
    assert pools.deal({A: 1, C: 1}, 1) == {A: 1, C: 1}
    ours, new = pools.pools
    assert states(ours.start) == {0: 0, 1: 1, 2: 2}
    assert states(new.start) == {3: 3, 4: 4, 5: 5}
    assert {task.first_round for task in pools.tasks} == {1}
    assert (ours.on_node, new.on_node) == ((former[A].incarnation,), ())
    keep(pools, ours, 1)


def test_what_a_node_was_never_sent_does_not_end_there():
    pools = pools_of()
    pools.deal({A: 1}, 0)
    (first,) = pools.pools
    first.start, first.on_node = None, (first.incarnation,)  # it was sent
    pools.deal({A: 1, B: 1}, 0)
    pools.deal({A: 1, C: 1}, 0)
    assert pools.pools[0].on_node == (first.incarnation,)


def test_nothing_is_dealt_anew_to_the_same_nodes():
    pools = pools_of()
    pools.deal({A: 2}, 0)
    kept = pools.pools[0]
    assert pools.deal({A: 2}, 0) == {A: 2}
    assert pools.pools == [kept]


def test_a_node_that_took_the_place_of_a_lost_one_keeps_its_samplers():
    """And is dealt all the same: the run is told that other nodes collect."""
    pools = pools_of()
    pools.deal({A: 1, B: 1}, 0)
    pools.dismiss(B)
    pools.rehouse([A, C])
    kept = list(pools.pools)
    assert pools.deal({A: 1, C: 1}, 0) == {A: 1, C: 1}
    assert pools.pools == kept


def test_the_samplers_of_a_lost_node_go_on_elsewhere_from_what_has_come():
    """With a lag: node A has delivered rounds 0 and 1, of which the agent has taken round 0."""
    pools = pools_of()
    pools.deal({A: 1, B: 1, C: 1}, 0)
    lost, *_ = former = list(pools.pools)
    for pool in former:
        keep(pools, pool, 0)
    pools.take_round()
    keep(pools, lost, 1)
    assert pools.dismiss(A) == 2
    pools.rehouse([B, C])
    assert [pool.member for pool in pools.pools] == [B, C, B]
    moved = pools.pools[-1]
    assert (moved.samplers, moved.round) == ((0,), 2)
    assert states(moved.start) == {0: 10, 1: 11}  # after round 1
    keep(pools, moved, 2)
    for pool in former[1:]:
        keep(pools, pool, 1)
    assert [int(i.slot.round[0]) for i in pools.take_round()] == [1, 1, 1]


def test_samplers_wait_for_a_node_if_none_is_left():
    pools = pools_of()
    pools.deal({A: 2}, 0)
    assert pools.dismiss(B) is None
    assert pools.dismiss(A) == 0
    pools.rehouse([])
    assert pools.homeless == [0, 1]
    pools.rehouse([B])
    assert [(pool.member, pool.samplers) for pool in pools.pools] == [(B, (0, 1))]


def test_a_resumed_run_begins_where_its_checkpoint_left_the_lanes():
    block = LaneBlock.first(range(LANES))
    state = np.arange(LANES, dtype=np.uint8)[:, None]
    obs = np.zeros((LANES, 1), np.float32)
    pools = pools_of((block._replace(round=7, state=state, obs=obs, memory=obs[:, :0]),))
    assert [each["round"] for each in pools.lanes.state_dict()] == [7]
    pools.deal({A: 1, B: 1}, 7)
    assert states(pools.pools[1].start) == {3: 3, 4: 4, 5: 5}
    assert {task.first_round for task in pools.tasks} == {7}


def test_lanes_are_dealt_in_blocks_node_after_node():
    assert deal_lanes({"a": 2, "b": 1}, 7) == {"a": [(0, 1, 2), (3, 4)], "b": [(5, 6)]}


def test_every_lane_is_dealt_once():
    for lanes in (1, 2, 5, 8, 13):
        shares = deal_lanes({"a": 3, "b": 1, "c": 4}, lanes)
        found = [lane for share in shares.values() for own in share for lane in own]
        assert found == list(range(lanes))
        assert all(own for share in shares.values() for own in share)


def test_with_few_lanes_every_node_gets_a_sampler_before_any_gets_two():
    counts = {name: len(share) for name, share in deal_lanes({"a": 4, "b": 4}, 3).items()}
    assert counts == {"a": 2, "b": 1}


def test_a_node_without_a_lane_has_no_share():
    assert list(deal_lanes({"a": 2, "b": 2, "c": 2}, 2)) == ["a", "b"]


def test_samplers_without_a_node_go_where_the_fewest_are():
    assert spread([4, 5, 6], {"a": 2, "b": 0}) == {"b": [4, 5], "a": [6]}
