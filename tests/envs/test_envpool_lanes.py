import numpy as np
import pytest

from walle.envs import EnvSpec, make_lanes
from walle.envs.probe import probe
from walle.errors import ConfigError

STEPS = 60


def lanes_of(numbers, env_id="InvertedPendulum-v5", **settings):
    pytest.importorskip("envpool")
    return make_lanes(EnvSpec(env_id, backend="envpool", **settings), numbers, seed=3)


def played(numbers, env_id):
    """Observations, and every step with its true successors, of lanes acting at random."""
    lanes = lanes_of(numbers, env_id)
    width = lanes.action_space.shape[0]
    actions = np.random.default_rng(0).uniform(-1, 1, (STEPS, 5, width)).astype(np.float32)
    steps = [lanes.reset().copy()]
    for action in actions[:, numbers]:
        step = lanes.step(action)
        ended = (step.terminated | step.truncated)[:, None]
        final = step.obs if step.final_obs is None else np.where(ended, step.final_obs, step.obs)
        columns = (step.reward[:, None], step.terminated[:, None], step.truncated[:, None])
        steps.append(np.concatenate((step.obs, final, *columns), 1))
    lanes.close()
    return steps


@pytest.mark.parametrize("env_id", ["InvertedPendulum-v5", "Hopper-v5", "Reacher-v5"])
def test_a_lane_does_the_same_in_a_pool_of_any_size(env_id):
    whole, part = played([0, 1, 2, 3, 4], env_id), played([2, 3], env_id)
    assert whole[-1][:, -2:].shape == (5, 2)
    assert sum(step[:, -2:].any(1).sum() for step in whole[1:]) >= 5  # episodes do end
    for together, alone in zip(whole, part, strict=True):
        assert np.array_equal(together[2:4], alone)


def test_a_fallen_pole_is_the_true_successor_and_an_upright_one_follows():
    lanes = lanes_of([0])
    lanes.reset()
    for _ in range(50):
        step = lanes.step(np.ones((1, 1), np.float32))
        if step.terminated[0]:
            break
    assert not step.truncated[0]
    assert abs(step.final_obs[0, 1]) > 0.2
    assert np.abs(step.obs[0]).max() <= 0.01 + 1e-9  # reset_noise_scale
    following = lanes.step(np.ones((1, 1), np.float32))
    assert following.reward[0] == 1  # a step of the new episode, not one spent on resetting
    lanes.close()


def test_a_time_limit_truncates():
    lanes = lanes_of([0, 1], "HalfCheetah-v5", episode_limit=3)
    assert lanes.episode_limit == 3
    lanes.reset()
    flags = [lanes.step(np.zeros((2, 6), np.float32)) for _ in range(4)]
    assert [step.truncated.tolist() for step in flags] == [[False] * 2] * 2 + [[True] * 2] + [
        [False] * 2
    ]
    assert not any(step.terminated.any() for step in flags)


def test_lanes_differ_from_each_other_and_training_from_evaluation():
    pytest.importorskip("envpool")
    spec = EnvSpec("HalfCheetah-v5", backend="envpool")
    train = make_lanes(spec, [0, 1], seed=3).reset()
    evaluation = make_lanes(spec, [0, 1], seed=3, role="evaluate").reset()
    assert len(np.unique(np.concatenate((train, evaluation))[:, 3])) == 4


def test_discrete_actions():
    lanes = lanes_of([0, 1], "CartPole-v1")
    lanes.reset()
    assert lanes.step(np.array([0, 1])).reward.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("env_id", "settings", "message"),
    [
        ("HalfCheeta-v5", {}, "did you mean 'HalfCheetah-v5'"),
        ("HalfCheetah-v5", {"frame_skip": 2}, r"env.frame_skip=2 .* repeats no actions"),
        ("HalfCheetah-v5", {"kwargs": {"num_envs": 3}}, "walle sets this argument"),
        ("HalfCheetah-v5", {"kwargs": {"reset_noise": 0.1}}, "did you mean 'reset_noise_scale'"),
        ("Pong-v5", {}, "one-dimensional Box observations"),
    ],
)
def test_what_cannot_be_done_is_refused(env_id, settings, message):
    with pytest.raises(ConfigError, match=message):
        lanes_of([0], env_id, **settings)


def test_without_envpool_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "envpool", None)
    with pytest.raises(ConfigError, match=r"install walle\[envpool\]"):
        make_lanes(EnvSpec("HalfCheetah-v5", backend="envpool"), [0], seed=0)


def test_numbers_of_an_info_are_those_of_each_lane():
    lanes = lanes_of([0, 1, 2], "Hopper-v5", info=("x_velocity", "none"))
    lanes.reset()
    info = lanes.step(np.zeros((3, 3), np.float32)).info
    assert np.isfinite(info[:, 0]).all()
    assert len(set(info[:, 0])) == 3
    assert np.isnan(info[:, 1]).all()
    assert lanes_of([0], "Hopper-v5").step(np.zeros((1, 3), np.float32)).info is None


def test_a_trial_says_which_numbers_an_info_has():
    pytest.importorskip("envpool")
    spec = EnvSpec("Hopper-v5", backend="envpool", info=("x_velocity", "none"))
    found = probe(spec, seed=0)
    assert (found.env.info, found.unseen) == (("x_velocity", "none"), ("none",))
    with pytest.raises(ConfigError, match=r"env.reset_options=\{'a': 1\}: .* EnvPool take none"):
        probe(EnvSpec("Hopper-v5", backend="envpool", reset_options={"a": 1}), seed=0)
