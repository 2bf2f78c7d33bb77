import numpy as np
import pytest

from tests.collecting.test_sampler import COUNTER, gaussian, snapshot
from tests.conftest import read
from tests.test_train import learned
from walle.collecting.actor import Actor
from walle.collecting.episodes import (
    EpisodeQuota,
    EpisodeSampler,
    capacity,
    episodes_of_lanes,
    steps_to_quota,
    unpack,
)
from walle.config import compose
from walle.envs import EnvSpec, make_lanes
from walle.errors import ConfigError
from walle.timing import SAMPLER_SECTIONS, Timer
from walle.train import train
from walle.transport.slots import RolloutShape, Slot

WHOLE = ("sampler.collect=episodes", "env=cartpole")


def test_episodes_are_dealt_evenly_the_first_lanes_taking_the_rest():
    assert episodes_of_lanes(8, [0, 1, 2], 3).tolist() == [3, 3, 2]
    assert episodes_of_lanes(8, [2], 3).tolist() == [2]


def test_a_lane_has_room_for_four_times_its_share_and_for_one_episode():
    assert capacity(2048, 16, 500) == 512
    assert capacity(2048, 16, 1000) == 1000


def test_steps_to_a_quota_by_hand():
    ended = np.array([[0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 0, 1]], bool)
    assert steps_to_quota(ended, np.array([1, 2, 1])).tolist() == [2, 3, 4]
    assert steps_to_quota(ended, np.array([2, 1, 2])).tolist() == [
        4,
        1,
        4,
    ]


def collected(numbers, quota, rows=12, rounds=1, all_lanes=None):
    """What a sampler of toy lanes, whose episodes have three steps, collects round by round."""
    lanes = make_lanes(COUNTER, numbers, seed=7)
    actor = Actor(gaussian(), 2, len(numbers), 10.0)
    sampler = EpisodeSampler(lanes, actor, numbers, 7, all_lanes or len(numbers))
    shape = RolloutShape(rows * len(numbers), 1, (2,), "float32", (1,), "float32", len(numbers))
    found = []
    for _ in range(rounds):
        slot = Slot.empty(shape)
        asked = snapshot(gaussian())._replace(episodes=quota)
        filled = sampler.fill(slot.rollout, asked, Timer(SAMPLER_SECTIONS))
        slot.steps[0], slot.lane_steps[:] = filled
        found.append(slot)
    sampler.close()
    return found


def test_lanes_are_packed_one_after_the_other():
    (slot,) = collected([0, 1], quota=3)
    rollout = slot.filled
    assert slot.lane_steps.tolist() == [6, 3]
    assert rollout.obs[:9, 0, 0].tolist() == [0, 1, 2] * 3
    assert rollout.terminated[:, 0].tolist() == [False, False, True] * 3
    assert not rollout.truncated.any()
    assert rollout.successors()[:, 0, 0].tolist() == [1, 2, 3] * 3
    marks = rollout.obs[:9, 0, 1]
    assert len(set(marks.tolist())) == 3  # three episodes, each with its draw
    mapped = np.clip(3 * rollout.action[..., 0] + 1, -2, 4)  # from [-1, 1] onto [-2, 4]
    np.testing.assert_allclose(rollout.reward, mapped, atol=1e-6)
    assert set(rollout.policy_version) == {3}


def test_the_parts_are_the_lanes():
    (slot,) = collected([4, 5], quota=3, all_lanes=2)
    first, second = unpack(slot.filled, slot.lane_steps, [4, 5])
    assert (first.env_steps, second.env_steps) == tuple(slot.lane_steps)
    assert (first.lane.tolist(), second.lane.tolist()) == ([4], [5])
    assert second.reward[0, 0] == slot.rollout.reward[slot.lane_steps[0], 0]


def test_what_the_room_cuts_off_is_truncated():
    (slot,) = collected([0], quota=2, rows=5)
    rollout = slot.filled
    assert rollout.env_steps == 5
    assert rollout.terminated[:, 0].tolist() == [False, False, True, False, False]
    assert rollout.truncated[:, 0].tolist() == [False] * 4 + [True]
    assert rollout.successors()[4, 0, 0] == 2


def test_a_lane_does_the_same_whoever_its_neighbours_are():
    """Lane 1 has fewer episodes than lane 0, so with it it runs on for nothing."""
    together = collected([0, 1], quota=3, rounds=3, all_lanes=2)
    alone = collected([1], quota=3, rounds=3, all_lanes=2)
    for both, one in zip(together, alone, strict=True):
        of_lane_1 = unpack(both.filled, both.lane_steps, [0, 1])[1]
        assert of_lane_1.env_steps == one.filled.env_steps == 3
        assert (of_lane_1.obs[:-1] == one.filled.obs[:-1]).all()
        assert (of_lane_1.action == one.filled.action).all()
    assert (alone[0].filled.obs[0] != alone[1].filled.obs[0]).any()


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


def test_the_number_of_episodes_is_the_wanted_steps_over_their_mean_length():
    quota, plain = EpisodeQuota(1000, 4), snapshot(gaussian())
    assert quota(plain).episodes == 4  # nothing is known yet: one a lane
    (slot,) = collected([0, 1], quota=3)
    quota.observe(slot.filled)
    assert quota(plain).episodes == 333
    assert quota(plain._replace(rollout_steps=10)).episodes == 13
    assert EpisodeQuota(3, 4)(plain).episodes == 4


@pytest.mark.parametrize("env", ["cartpole", "hopper"])
def test_learning_does_not_depend_on_the_number_of_samplers(run, env):
    whole = ("sampler.collect=episodes", f"env={env}", "total_steps=600")
    _, serial = run(*whole, "sampler=serial")
    expected = learned(serial)
    assert len(expected) >= 3
    for n in (1, 3):
        assert learned(run(*whole, f"sampler.n={n}")[1]) == expected


def test_nor_when_overlapped(run):
    whole = (*WHOLE, "sampler.max_lag=1", "total_steps=600")
    found = [learned(run(*whole, f"sampler.n={n}")[1]) for n in (1, 3)]
    assert found[0] == found[1]
    assert found[0][-1]["lag_max"] == "1"


def test_rounds_are_made_of_whole_episodes(run):
    _, directory = run(*WHOLE, "sampler.n=3", "total_steps=1200")
    rows, episodes = (read(directory / f"{name}.csv") for name in ("iterations", "episodes"))
    steps, count, previous = 0, 0, None
    for row in rows:
        ended = episodes[count : int(row["episodes"])]
        lasted = [int(episode["length"]) for episode in ended]
        assert int(row["env_steps"]) == steps + sum(lasted)
        assert len(ended) == (8 if previous is None else max(8, round(256 / previous)))
        steps, count = int(row["env_steps"]), int(row["episodes"])
        previous = sum(lasted) / len(lasted)
    assert len(rows) >= 3
    assert {episode["lane"] for episode in episodes} == {str(lane) for lane in range(8)}
    assert {episode["sampler"] for episode in episodes} == {"0", "1", "2"}


@pytest.mark.parametrize("algo", ["ppo_kl", "trpo", "a2c"])
def test_the_other_algorithms_learn_from_them_too(tmp_path, algo):
    adapt = ["algo.adapt=adaptive", "algo.baseline=linear"] if algo == "trpo" else []
    shape = ("sampler=serial", "batch_size=256", "sampler.lanes=8", "total_steps=1000")
    quiet = ("logger.progress=quiet", "eval.every=null")
    train(compose([*WHOLE, f"algo={algo}", *shape, *quiet, *adapt]), tmp_path)
    rows = read(tmp_path / "iterations.csv")
    assert len(rows) >= 3
    assert all(float(row["entropy"]) > 0 for row in rows)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("sampler.max_lag=null",), "sampler.collect=episodes changes the length"),
        (("env.backend=envpool",), "EnvPool cannot do"),
        (("sampler.collect=episode",), "did you mean 'episodes'"),
    ],
)
def test_what_cannot_be_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose([*WHOLE, *overrides])


def test_episodes_without_a_limit_are_refused(run):
    with pytest.raises(ConfigError, match=r"set env\.episode_limit"):
        run("sampler.collect=episodes", "env=gym", "env.id=tests.toy:Counter-v0")
