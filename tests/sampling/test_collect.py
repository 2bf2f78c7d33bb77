import numpy as np
import pytest
import torch

from walle.envs import EnvSpec, make_lanes
from walle.errors import RolloutError
from walle.nets.policies import CategoricalPolicy, GaussianPolicy
from walle.sampling.actor import Actor
from walle.sampling.collect import LaneSampler
from walle.sampling.slots import RolloutShape, Slot
from walle.timing import SAMPLER_SECTIONS, Timer
from walle.types import PolicySnapshot

COUNTER = EnvSpec("tests.toy:Counter-v0")
STEPS = 5


def gaussian():
    return GaussianPolicy(2, 1, (16, 16), torch.tanh, 0.0)


def snapshot(policy, obs_dim=2, version=3):
    vector = policy.init(torch.Generator().manual_seed(0)).numpy()
    norm = np.concatenate((np.full(obs_dim, 0.1), np.full(obs_dim, 2.0)))
    return PolicySnapshot(version, np.concatenate((vector, norm), dtype=np.float32))


def make_slot(lanes, discrete=False, obs_dim=2, steps=STEPS):
    shape = RolloutShape(
        steps,
        lanes,
        (obs_dim,),
        "float32",
        () if discrete else (1,),
        "int64" if discrete else "float32",
    )
    return Slot.empty(shape)


def make_sampler(policy, numbers, spec=COUNTER, obs_dim=2):
    actor = Actor(policy, obs_dim, len(numbers), 10.0)
    return LaneSampler(make_lanes(spec, numbers, seed=7), actor, numbers, seed=7)


def collect(numbers, policy=None, spec=COUNTER, rounds=1, discrete=False, obs_dim=2):
    policy = policy or gaussian()
    sampler = make_sampler(policy, numbers, spec, obs_dim)
    timer = Timer(SAMPLER_SECTIONS)
    rollouts = []
    for round_ in range(rounds):
        slot = make_slot(len(numbers), discrete, obs_dim)
        sampler.fill(slot.rollout, snapshot(policy, obs_dim), round_, timer)
        rollouts.append(slot.rollout)
    sampler.lanes.close()
    return rollouts


def test_every_step_is_where_it_belongs():
    (rollout,) = collect([0, 1])
    # an episode lasts 3 steps: t = 0 1 2 | 0 1 2
    assert rollout.obs[:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert rollout.terminated[:, 0].tolist() == [False, False, True, False, False]
    assert rollout.final_obs[2, 0, 0] == 3
    assert rollout.successors()[:, 0, 0].tolist() == [1, 2, 3, 1, 2]
    assert rollout.policy_version.tolist() == [3, 3]
    assert rollout.lane.tolist() == [0, 1]


def test_actions_are_kept_as_drawn_and_rescaled_for_the_environment():
    (rollout,) = collect([0])
    low, high = -2.0, 4.0
    expected = np.clip(1 + 3 * rollout.action[..., 0], low, high)
    np.testing.assert_allclose(rollout.reward, expected, rtol=1e-6)


def test_a_rollout_begins_where_the_last_one_stopped():
    first, second = collect([0, 1], rounds=2)
    assert np.array_equal(first.obs[-1], second.obs[0])


def test_log_prob_is_that_of_the_action_under_the_snapshot():
    policy = gaussian()
    (rollout,) = collect([0, 1], policy)
    params = policy.layout.unflatten(torch.from_numpy(snapshot(policy).vector[:-4]))
    obs = ((torch.from_numpy(rollout.obs[:-1]) - 0.1) * 2.0).clamp(-10, 10)
    log_prob = policy.log_prob(policy.dist(params, obs), torch.from_numpy(rollout.action))
    np.testing.assert_allclose(rollout.log_prob, log_prob, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "discrete", "obs_dim"),
    [
        (COUNTER, False, 2),
        (EnvSpec("CartPole-v1"), True, 4),
    ],
)
def test_a_lane_does_the_same_in_whichever_sampler_it_lives(spec, discrete, obs_dim):
    def policy():
        if discrete:
            return CategoricalPolicy(obs_dim, 2, (64, 64), torch.tanh)
        return GaussianPolicy(obs_dim, 1, (64, 64), torch.tanh, 0.0)

    def rollouts(numbers):
        return collect(numbers, policy(), spec, 3, discrete, obs_dim)

    together = rollouts(list(range(7)))
    for part in (range(1), range(1, 4), range(4, 7)):
        for whole, alone in zip(together, rollouts(list(part)), strict=True):
            columns = list(part)
            assert np.array_equal(whole.obs[:, columns], alone.obs)
            assert np.array_equal(whole.action[:, columns], alone.action)
            assert np.array_equal(whole.log_prob[:, columns], alone.log_prob)


def test_a_nan_reward_names_the_lane_and_the_step():
    spec = EnvSpec("tests.toy:Counter-v0", {"nan_at": 3})
    with pytest.raises(RolloutError, match=r"reward of nan in lane 4 at step 2"):
        collect([4, 5], spec=spec)


def test_a_nan_observation_is_named_although_the_environment_refuses_the_action_after_it():
    spec = EnvSpec("tests.toy:Counter-v0", {"blind_at": 1})
    with pytest.raises(RolloutError, match=r"observation of \[nan nan\] in lane 4 at step 1"):
        collect([4, 5], spec=spec)


def test_an_observation_of_another_shape_names_the_lane_and_the_step():
    spec = EnvSpec("tests.toy:Counter-v0", {"grow_at": 4})
    with pytest.raises(RolloutError, match=r"shape \(1,\) in lane 4 at step 4.*shape \(2,\)"):
        collect([4, 5], spec=spec)


def test_sections_account_for_the_work():
    policy = gaussian()
    sampler = make_sampler(policy, [0])
    timer = Timer(SAMPLER_SECTIONS)
    sampler.fill(make_slot(1).rollout, snapshot(policy), 0, timer)
    seconds = timer.take()
    assert seconds["act"] > 0
    assert seconds["env_step"] > 0
