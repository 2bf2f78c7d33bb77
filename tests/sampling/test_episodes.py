"""Whole episodes: packed lane after lane into one column, and apart again."""

from itertools import count

import numpy as np
import pytest
import torch
from gymnasium.utils.seeding import np_random

from walle.envs import EnvSpec, make_lanes
from walle.errors import RolloutError
from walle.nets.policies import GaussianPolicy
from walle.sampling.actor import Actor
from walle.sampling.episodes import (
    EpisodeQuota,
    EpisodeSampler,
    capacity,
    concatenate,
    episodes_of_lanes,
    pack,
    steps_to_quota,
    unpack,
)
from walle.sampling.slots import RolloutShape, Slot
from walle.streams import episode_env_seed
from walle.timing import SAMPLER_SECTIONS, Timer
from walle.types import PolicySnapshot, Rollout

FIELDS = ("obs", "final_obs", "action", "reward", "terminated", "truncated", "log_prob", "info")


def side_by_side(steps=4, lanes=2, first=1):
    """A rollout in which no two numbers are equal, and an episode ends in every way there is."""
    numbers = count(first)

    def field(*shape):
        return np.fromiter(numbers, np.float32, int(np.prod(shape))).reshape(shape)

    bits = np.arange(steps * lanes).reshape(steps, lanes)
    return Rollout(
        obs=field(steps + 1, lanes, 2),
        final_obs=field(steps, lanes, 2),
        action=field(steps, lanes, 1),
        reward=field(steps, lanes),
        terminated=bits % 2 == 1,
        truncated=bits // 2 % 2 == 1,
        log_prob=field(steps, lanes),
        lane=first + np.arange(lanes),
        policy_version=np.full(lanes, first),
        state=np.full((lanes, 1), first, np.float32),
        info=field(steps, lanes, 2).astype(np.float64),
    )


def column(steps, lanes):
    """An empty rollout with one column, for that many lanes of that many steps."""
    arrays = ((2,), "float32", (1,), "float32")
    shape = RolloutShape(steps * lanes, 1, *arrays, packed_lanes=lanes, info=2)
    return Slot.empty(shape).rollout


def packed(rollout, lane_steps):
    out = column(*rollout.reward.shape)
    pack(rollout, np.array(lane_steps), out)
    return out


def test_the_packed_copy_keeps_every_field():
    rollout = side_by_side()
    out = packed(rollout, [2, 3])
    for name in FIELDS:
        whole = getattr(rollout, name)
        expected = np.concatenate((whole[:2, 0], whole[:3, 1]))
        np.testing.assert_array_equal(getattr(out, name)[:5, 0], expected, name)


def test_the_packed_copy_ends_with_what_the_last_lane_saw_last():
    rollout = side_by_side()
    assert packed(rollout, [2, 3]).obs[5, 0].tolist() == rollout.obs[3, 1].tolist()


def test_unpacked_lanes_keep_every_field():
    rollout = side_by_side()
    found = unpack(packed(rollout, [2, 3]).between(0, 5), np.array([2, 3]), [7, 9])
    for lane, (one, steps) in enumerate(zip(found, [2, 3], strict=True)):
        assert one.lane.tolist() == [[7], [9]][lane]
        assert one.obs.shape == (steps + 1, 1, 2)
        for name in FIELDS:
            found_field, expected = getattr(one, name)[:steps, 0], getattr(rollout, name)
            np.testing.assert_array_equal(found_field, expected[:steps, lane], name)


def test_unpacking_needs_a_number_for_every_lane():
    with pytest.raises(ValueError, match="argument"):
        unpack(packed(side_by_side(), [2, 3]), np.array([2, 3]), [7])


def test_packed_rollouts_are_joined_field_by_field():
    first, *_, last = all_three = [side_by_side(2, 1, first=number) for number in (1, 100, 200)]
    joined = concatenate(all_three)
    for name in FIELDS:
        rows = np.concatenate([getattr(rollout, name)[:2] for rollout in all_three])
        np.testing.assert_array_equal(getattr(joined, name)[:6], rows, name)
    assert joined.env_steps == 6
    assert joined.obs[6, 0].tolist() == last.obs[2, 0].tolist()
    assert (joined.lane.tolist(), joined.policy_version.tolist()) == ([1], [1])
    assert joined.state.tolist() == [[1]]
    assert not np.shares_memory(joined.lane, first.lane)


def test_episodes_are_split_evenly_and_the_first_lanes_take_the_rest():
    assert episodes_of_lanes(8, [0, 1, 2], 3).tolist() == [3, 3, 2]
    assert episodes_of_lanes(8, [2], 3).tolist() == [2]


def test_a_lane_can_hold_four_times_its_part_of_the_batch_and_one_episode():
    assert capacity(2048, 16, 500) == 512
    assert capacity(2048, 16, 1000) == 1000
    assert capacity(10, 16, 1) == 2


def test_steps_to_quota_by_hand():
    ended = np.array([[0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 0, 1]], bool)
    assert steps_to_quota(ended, np.array([1, 2, 1])).tolist() == [2, 3, 4]
    # the third lane ends one episode only, so all four steps are its own
    assert steps_to_quota(ended, np.array([2, 1, 2])).tolist() == [4, 1, 4]
    assert steps_to_quota(ended[1:2], np.array([1, 1, 1])).tolist() == [1, 1, 1]


def policy():
    return GaussianPolicy(2, 1, (4,), torch.tanh, 0.0)


def snapshot(**changed):
    parameters = policy().init(torch.Generator().manual_seed(0)).numpy()
    return PolicySnapshot.of([parameters], np.zeros(2), np.ones(2))._replace(**changed)


class Sampling:
    """A sampler of toy lanes, whose episodes last 3 steps; counts the steps it makes."""

    def __init__(self, numbers, capacity=12, all_lanes=None, **toy):
        self.steps = 0
        self._numbers, self._capacity = numbers, capacity
        lanes = make_lanes(EnvSpec("tests.toy:Counter-v0", toy), numbers, seed=7)
        self._step, lanes.step = lanes.step, self._counted
        actor = Actor(policy(), 2, len(numbers), 10.0)
        self._sampler = EpisodeSampler(lanes, actor, numbers, 7, all_lanes or len(numbers))

    def _counted(self, action):
        self.steps += 1
        return self._step(action)

    def collect(self, episodes, round_=0, version=0):
        out = column(self._capacity, len(self._numbers))
        asked = snapshot(episodes=episodes, version=version)
        filled = self._sampler.fill(out, asked, round_, Timer(SAMPLER_SECTIONS))
        return out.between(0, filled.steps), filled.lane_steps.tolist()


def test_lanes_are_collected_one_after_the_other():
    # eleven episodes on six lanes: lane 4 runs two of them, lane 5 the last one
    rollout, lane_steps = Sampling([4, 5], all_lanes=6).collect(11, version=8)
    assert lane_steps == [6, 3]
    assert rollout.obs[:-1, 0, 0].tolist() == [0, 1, 2] * 3
    assert rollout.terminated[:, 0].tolist() == [False, False, True] * 3
    assert not rollout.truncated.any()
    assert rollout.successors()[:, 0, 0].tolist() == [1, 2, 3] * 3
    assert (rollout.lane.tolist(), rollout.policy_version.tolist()) == ([4], [8])
    marks = rollout.obs[:-1, 0, 1].reshape(3, 3)
    assert (marks == marks[:, :1]).all()
    assert len(set(marks[:, 0].tolist())) == 3  # three episodes, each with its draw
    mapped = np.clip(3 * rollout.action[..., 0] + 1, -2, 4)  # from [-1, 1] onto [-2, 4]
    np.testing.assert_allclose(rollout.reward, mapped, atol=1e-6)


def test_an_episode_that_exceeds_the_capacity_is_truncated_there():
    rollout, lane_steps = Sampling([0], capacity=5).collect(2)
    assert lane_steps == [5]
    assert rollout.terminated[:, 0].tolist() == [False, False, True, False, False]
    assert rollout.truncated[:, 0].tolist() == [False] * 4 + [True]
    assert rollout.successors()[4, 0, 0] == 2


def test_only_unfinished_episodes_are_truncated():
    """Lane 0 has to run two episodes of three steps and has room for five; lane 1 runs one."""
    rollout, lane_steps = Sampling([0, 1], capacity=5).collect(3)
    assert lane_steps == [5, 3]
    assert np.flatnonzero(rollout.terminated).tolist() == [2, 7]
    assert np.flatnonzero(rollout.truncated).tolist() == [4]
    assert rollout.successors()[:, 0, 0].tolist() == [1, 2, 3, 1, 2, 1, 2, 3]


def test_long_episodes_are_collected_whole():
    sampling = Sampling([0, 1], limit=50, capacity=200)
    rollout, lane_steps = sampling.collect(4)
    assert lane_steps == [100, 100]
    assert rollout.obs[:-1, 0, 0].tolist() == [*range(50)] * 4
    assert np.flatnonzero(rollout.terminated).tolist() == [49, 99, 149, 199]
    assert 100 <= sampling.steps < 200  # stops before the lanes are full


def test_lanes_stop_when_they_have_run_just_their_episodes():
    sampling = Sampling([0], limit=64, capacity=200)
    _, lane_steps = sampling.collect(1)
    assert lane_steps == [64]
    assert 64 <= sampling.steps < 128  # no second episode


def test_a_lane_does_the_same_in_whatever_company():
    """Lane 1 has fewer episodes than lane 0; beside it, lane 1 runs on and drops the rest."""
    together, alone = Sampling([0, 1]), Sampling([1], all_lanes=2)
    marks = []
    for round_ in range(3):
        rollout, lane_steps = together.collect(3, round_)
        lane_1 = unpack(rollout, np.array(lane_steps), [0, 1])[1]
        one, _ = alone.collect(3, round_)
        assert lane_1.env_steps == one.env_steps == 3
        np.testing.assert_array_equal(lane_1.obs[:-1], one.obs[:-1])
        np.testing.assert_array_equal(lane_1.action, one.action)
        marks.append((one.obs[0, 0, 1], one.action[0, 0, 0]))
    assert len(set(marks)) == 3  # every round has random streams of its own
    assert len({mark for mark, _ in marks}) == len({action for _, action in marks}) == 3


def test_a_lanes_episodes_come_from_the_seed_of_the_lane_and_the_round():
    sampling = Sampling([0, 5], all_lanes=6)
    for round_ in range(3):
        rollout, lane_steps = sampling.collect(6, round_)
        for lane, one in zip([0, 5], unpack(rollout, np.array(lane_steps), [0, 5]), strict=True):
            drawn = np_random(episode_env_seed(7, lane, round_))[0].random()
            assert one.obs[0, 0, 1] == np.float32(drawn)  # the toy shows its first draw


def test_a_lane_whose_reward_is_no_number_is_named():
    with pytest.raises(RolloutError, match="lane 4 at step 1 of"):
        Sampling([4, 5], nan_at=2).collect(2)
    late = Sampling([4, 5], capacity=120, nan_at=70)
    with pytest.raises(RolloutError, match="lane 4 at step 69 of"):
        late.collect(60)


def test_lanes_begin_anew_from_the_seeds_they_are_given():
    for spec in (EnvSpec("CartPole-v1"), EnvSpec("Hopper-v5", time_feature=True)):
        lanes = make_lanes(spec, [0, 1], seed=0)
        own = lanes.reset().copy()
        first = lanes.reset([5, 6]).copy()
        lanes.step(np.zeros((2, *lanes.action_space.shape), lanes.action_space.dtype))
        assert (lanes.reset([5, 6]) == first).all()
        assert (first != own).any()
        assert (lanes.reset() != first).any()
        lanes.close()


def test_the_wanted_steps_over_the_mean_length_are_the_episodes_of_a_round():
    quota = EpisodeQuota(1000, 4)
    assert quota(snapshot()).episodes == 4  # no length is known: one a lane
    quota.observe(side_by_side())  # 6 of 8 steps end an episode: 4/3 steps each
    assert quota(snapshot()).episodes == 750
    assert quota(snapshot(rollout_steps=10)).episodes == 30  # 10 steps of 4 lanes
    assert quota(snapshot(rollout_steps=1)).episodes == 4  # 3, but one a lane at least
