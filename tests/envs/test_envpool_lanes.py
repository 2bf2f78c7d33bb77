from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import walle
from walle.agent import checkpoint
from walle.config import compose
from walle.envs import EnvSpec, make_lanes
from walle.envs.probe import probe
from walle.envs.single import make_single
from walle.errors import ConfigError
from walle.policy.video import film
from walle.streams import env_seed
from walle.training import train
from walle.types import layout_of

COMMANDS = [
    words[2:]
    for words in map(str.split, (Path(walle.__file__).parents[1] / "docs/collection.md").open())
    if words[:2] == ["walle", "run"] and "env.backend=envpool" in words
]
STEPS = 60
WIDTHS = {  # of the rows
    "FrozenLake-v1": 16,  # Discrete
    "Catch-v0": 50,  # a Box of two dimensions
    "Maze-v0": 245,  # a Dict with a Dict, Discrete and MultiBinary entries
    "MiniGrid-Empty-5x5-v0": 4 + 147 + 96,
    "Cleaner-v0": 219,
    "WalkerWalk-v1": 14 + 1 + 9,
    "CarRacing-v3": 27_648,  # an image
}


def lanes_of(numbers, env_id="InvertedPendulum-v5", **settings):
    pytest.importorskip("envpool")
    return make_lanes(EnvSpec(env_id, backend="envpool", **settings), numbers, seed=3)


def played(numbers, env_id):
    """Observations, and every step with its true successors, of lanes acting at random."""
    lanes = lanes_of(numbers, env_id)
    lanes.action_space.seed(0)
    actions = np.array([[lanes.action_space.sample() for _ in range(5)] for _ in range(STEPS)])
    steps = [lanes.reset().copy()]
    for action in actions[:, numbers]:
        step = lanes.step(action)
        ended = (step.terminated | step.truncated)[:, None]
        final = step.obs if step.final_obs is None else np.where(ended, step.final_obs, step.obs)
        columns = (step.reward[:, None], step.terminated[:, None], step.truncated[:, None])
        steps.append(np.concatenate((step.obs, final, *columns), 1))
    lanes.close()
    return steps


@pytest.mark.parametrize("env_id", ["InvertedPendulum-v5", "Hopper-v5", "Reacher-v5", *WIDTHS])
def test_a_lane_does_the_same_in_a_pool_of_any_size(env_id):
    whole, part = played([0, 1, 2, 3, 4], env_id), played([2, 3], env_id)
    assert whole[-1][:, -2:].shape == (5, 2)
    if env_id not in {"WalkerWalk-v1", "Maze-v0", "CarRacing-v3"}:  # whose episodes are longer
        assert sum(step[:, -2:].any(1).sum() for step in whole[1:]) >= 1
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


@pytest.mark.parametrize(("env_id", "width"), WIDTHS.items())
def test_a_single_environment_has_a_lanes_observations_as_gymnasium_flattens_them(env_id, width):
    lanes = lanes_of([0, 1, 2], env_id, action="raw")
    env = make_single(EnvSpec(env_id, backend="envpool"))  # flattened one by one, by Gymnasium
    assert lanes.observation_space == env.observation_space
    assert lanes.observation_space.shape == (width,)
    obs = [env.reset(seed=env_seed(3, 1))[0]]
    found = [lanes.reset()[1].copy()]
    env.action_space.seed(0)
    for _ in range(STEPS):
        action = env.action_space.sample()
        step = lanes.step(np.stack([action] * 3))
        ended = step.terminated[1] or step.truncated[1]
        found += [np.where(ended, step.obs if step.final_obs is None else step.final_obs, 0)[1]]
        found += [step.obs[1].copy()]
        after, reward, terminated, truncated, _ = env.step(action)
        assert (terminated, truncated) == (step.terminated[1], step.truncated[1])
        assert reward == step.reward[1]
        obs += [after if ended else np.zeros_like(after), env.reset()[0] if ended else after]
    assert all(map(np.array_equal, obs, found))
    lanes.close()
    env.close()


@pytest.mark.parametrize(("env_id", "gym_id"), [("FrozenLake-v1",) * 2, ("Taxi-v3", "Taxi-v4")])
def test_a_table_of_gymnasium_has_every_move(env_id, gym_id):
    lanes, table = lanes_of(range(8), env_id), gym.make(gym_id).unwrapped.P
    obs, rng = lanes.reset(), np.random.default_rng(0)
    assert set(obs.sum(1)) == {1}
    for _ in range(STEPS):
        before = obs.argmax(1)
        action = rng.integers(lanes.action_space.n, size=8)
        step = lanes.step(action)
        after, obs = (step.obs if step.final_obs is None else step.final_obs), step.obs.copy()
        for i in range(8):
            ended = step.terminated[i] or step.truncated[i]
            move = ((after if ended else obs)[i].argmax(), step.reward[i], step.terminated[i])
            assert move in [tuple(outcome[1:]) for outcome in table[before[i]][action[i]]]


def test_cart_pole_moves_as_gymnasiums():
    lanes, env = lanes_of(range(4), "CartPole-v1"), gym.make("CartPole-v1").unwrapped
    env.reset()
    obs, rng = lanes.reset(), np.random.default_rng(0)
    for _ in range(STEPS):
        before, action = obs.copy(), rng.integers(2, size=4)
        step = lanes.step(action)
        obs = step.obs.copy()
        after = obs if step.final_obs is None else step.final_obs
        for i in range(4):
            env.state, env.steps_beyond_terminated = tuple(before[i].astype(np.float64)), None
            expected, reward, terminated, _, _ = env.step(int(action[i]))
            assert (reward, terminated) == (step.reward[i], step.terminated[i])
            if terminated or not step.truncated[i]:
                row = (after if terminated else obs)[i]
                np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-5)


def test_a_terminal_state_and_a_limit_differ_where_observations_are_discrete():
    lanes = lanes_of(range(16), "FrozenLake-v1", episode_limit=4)
    assert lanes.episode_limit == 4
    lanes.reset()
    rng, holes, cut = np.random.default_rng(0), 0, 0
    for t in range(1, 5):
        step = lanes.step(rng.integers(4, size=16))
        if t < 4:
            assert not step.truncated.any()
            ends = step.terminated
            holes += ends.sum()
            assert step.final_obs is None or set(step.final_obs[ends].argmax(1)) <= {5, 7, 11, 12}
        cut += step.truncated.sum()
    assert holes > 0
    assert cut > 0
    assert lanes_of([0], "Catch-v0").episode_limit is None


def test_observations_of_atari_are_stacked_channels_first():
    lanes = lanes_of([0], "Pong-v5", kwargs={"stack_num": 3, "img_height": 80})
    (image,) = layout_of(lanes.observation_space).images
    assert (image.shape, image.chw) == ((3, 80, 84), (3, 80, 84))
    first = lanes.reset().reshape(3, 80, 84).copy()
    for _ in range(20):
        step = lanes.step(np.array([2]))
    frames = step.obs.reshape(3, 80, 84).copy()
    assert (frames != first).any()
    following = lanes.step(np.array([2])).obs.reshape(3, 80, 84)
    assert np.array_equal(following[:2], frames[1:])  # the newest comes last
    lanes.close()


def catching(sampling, steps):
    words = ("env=gym", "env.backend=envpool", "env.id=Catch-v0", "batch_size=256")
    words += ("sampler.lanes=8", "eval.every=2048", "eval.episodes=5", "logger.progress=quiet")
    more = ("algo.learning_rate=1e-3", "algo.gamma=0.95", f"total_steps={steps}")
    return compose([*words, *more, sampling])


@pytest.fixture(scope="module")
def catches(tmp_path_factory):
    """PPO's runs on Catch, with serial sampling and with one and two samplers; read only."""
    pytest.importorskip("envpool")
    runs = {}
    for sampling in ("sampler=serial", "sampler.n=1", "sampler.n=2"):
        runs[sampling] = tmp_path_factory.mktemp("run") / "run"
        train(catching(sampling, 4096), runs[sampling])
    return runs


def test_a_run_has_the_same_bits_for_every_number_of_samplers(catches):
    states = [checkpoint.load(run / "checkpoints/last.pt") for run in catches.values()]
    vectors = [np.asarray(state["snapshot"]["vector"]) for state in states]
    assert np.array_equal(vectors[0], vectors[1])
    assert np.array_equal(vectors[0], vectors[2])


def test_a_policy_is_loaded_evaluated_filmed_and_acts_in_envpools_own_environment(catches):
    policy = walle.load(catches["sampler=serial"])
    result = walle.evaluate(policy, episodes=20)
    assert set(result.returns) <= {-1.0, 1.0}
    assert set(result.lengths) == {9}
    with policy.env() as env:
        obs, _ = env.reset(seed=1)
        assert env.action_space.contains(policy.act(obs))
    with pytest.raises(ConfigError, match=r"Catch-v0 cannot be drawn: .*not implemented"):
        next(film([policy]).pictures)


def test_a_run_resumes_with_new_episodes(catches):
    run, config = catches["sampler.n=1"], catching("sampler.n=1", 5120)
    train(config, run, resumed=checkpoint.earlier_state(run, print, total_steps=5120))
    assert checkpoint.load(run / "checkpoints/last.pt")["env_steps"] == 5120


@pytest.mark.parametrize(("env_id", "mode"), [("WalkerWalk-v1", "rgb_array"), ("Pong-v5", "human")])
def test_what_envpool_cannot_draw_is_refused(env_id, mode):
    pytest.importorskip("envpool")
    with pytest.raises(ConfigError, match="opens no window and draws no MuJoCo task"):
        make_single(EnvSpec(env_id, backend="envpool"), render_mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_commands_of_the_page_train_and_act(words, tmp_path):
    pytest.importorskip("envpool")
    sizes = ("sampler=serial", "batch_size=64", "sampler.lanes=4", "total_steps=128")
    quiet = ("algo.epochs=1", "eval.episodes=0", "logger.progress=quiet")
    train(compose([*words, *sizes, *quiet]), tmp_path / "run")
    policy = walle.load(tmp_path / "run", "last")
    with policy.env() as env:
        obs, _ = env.reset(seed=0)
        assert env.action_space.contains(policy.act(obs))
    if "env.id=Pong-v5" in words:
        assert obs.shape == (4, 84, 84)
    if words[2] in {"env.id=Pong-v5", "env.id=FrozenLake-v1", "env.id=MiniGrid-Empty-5x5-v0"}:
        assert next(film([policy], most_steps=2).pictures).shape == (360, 480, 3)


def test_the_page_has_commands():
    assert len(COMMANDS) == 3


@pytest.mark.parametrize(
    ("env_id", "settings", "message"),
    [
        ("HalfCheeta-v5", {}, "did you mean 'HalfCheetah-v5'"),
        ("HalfCheetah-v5", {"frame_skip": 2}, r"env.frame_skip=2 .* repeats no actions"),
        ("HalfCheetah-v5", {"kwargs": {"num_envs": 3}}, "walle sets this argument"),
        ("HalfCheetah-v5", {"kwargs": {"reset_noise": 0.1}}, "did you mean 'reset_noise_scale'"),
        ("FrozenLake-v1", {"kwargs": {"env_seed": [1]}}, "walle sets this argument"),
        ("FrozenLake-v1", {"kwargs": {"stack_num": 4}}, "has no such argument"),
        ("Pong-v5", {"kwargs": {"stack_num": 0}}, "stack_num=0 must be a whole number"),
        ("TicTacToe-v1", {}, "2 players"),
        ("Pong-v5", {"time_feature": True}, "time_feature=false"),
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
