import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest
import torch

import walle
from tests.conftest import read
from tests.policy.conftest import RUNS
from walle.agent import checkpoint
from walle.agent.evaluation import run_episodes
from walle.envs import make_lanes
from walle.errors import ConfigError
from walle.streams import evaluation_seed


@pytest.fixture
def policy(trained):
    return lambda name, which="last": walle.load(trained(name), which, trust=True)


@pytest.mark.parametrize("name", RUNS)
def test_a_policy_gets_the_returns_of_the_run_s_own_evaluation(policy, trained, name):
    """In lanes, and one observation after the other in its Gymnasium environment."""
    found, rows = policy(name), read(trained(name) / "eval.csv")
    number = len(rows) - 1
    seeds = [evaluation_seed(0, lane, number) for lane in range(2)]
    lanes = make_lanes(found.spec, range(2), 0, "evaluate")
    evaluation = run_episodes(lanes, seeds, found.actor(2).likeliest)
    assert float(rows[-1]["return_mean"]) == np.mean(evaluation.returns)
    assert [alone(found, seed) for seed in seeds] == [
        (pytest.approx(total, rel=1e-6), length)
        for total, length in zip(evaluation.returns, evaluation.lengths, strict=True)
    ]


def alone(policy, seed):
    """The return and the length of the episode that begins with `seed`."""
    env, total, length, ended = policy.env(), 0.0, 0, False
    obs, _ = env.reset(seed=seed)
    state = policy.initial_state()
    while not ended:
        action, state = policy.act(obs, state)
        assert env.action_space.contains(action) or policy.spec.action == "raw"
        obs, reward, terminated, truncated, _ = env.step(action)
        total, length, ended = total + reward, length + 1, terminated or truncated
    env.close()
    return total, length


def test_threads_do_not_get_each_others_actions(policy):
    """As in an executor of ROS with several threads, or in a web server."""
    found, rng = policy("discrete"), np.random.default_rng(0)
    batches = [rng.normal(size=(n, found.obs_dim)) for n in (1, 3, 64, 200)]
    expected = [found.act(batch).tolist() for batch in batches]

    def differing(i):
        return sum(found.act(batches[i]).tolist() != expected[i] for _ in range(300))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(differing, range(4))) == [0] * 4


@pytest.mark.parametrize("name", RUNS)
def test_it_can_be_sent_to_another_process(policy, name):
    found = policy(name)
    env = found.env()
    obs, state = env.reset(seed=0)[0], found.initial_state()
    env.close()
    for each in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        for mine, theirs in zip(each.act(obs, state), found.act(obs, state), strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", ["mujoco", "robot", "discrete", "ppo"])
def test_its_environment_shows_what_a_lane_shows(policy, name):
    found = policy(name)
    env, actor = found.env(), found.actor(1)
    lane = make_lanes(found.spec, [0], 0)
    obs = lane.reset([123])
    single, _ = env.reset(seed=123)
    assert env.observation_space.shape == lane.observation_space.shape == single.shape
    for _ in range(60):
        np.testing.assert_array_equal(single, obs[0])
        step = lane.step(actor.likeliest(np.asarray(obs, np.float32)))
        obs = step.obs
        single, reward, terminated, truncated, _ = env.step(found.act(single))
        assert (reward, terminated, truncated) == (step.reward[0], *(s[0] for s in step[2:4]))
        if step.final_obs is not None:
            np.testing.assert_array_equal(single, step.final_obs[0])
            single, _ = env.reset()
    env.close()


@pytest.mark.parametrize("name", ["sac", "discrete", "mujoco"])
def test_a_row_of_a_batch_has_the_bits_of_the_observation_alone(policy, name):
    found = policy(name)
    obs = np.random.default_rng(0).normal(size=(23, found.obs_dim))
    actions = found.act(obs)
    assert len(actions) == 23
    assert (actions == np.stack([found.act(row) for row in obs])).all()
    if name == "discrete":
        assert isinstance(found.act(obs[0]), np.int64)


def test_a_memory_goes_in_and_out(policy):
    found = policy("memory")
    obs = np.random.default_rng(0).normal(size=(5, 3, 2))
    state, states = found.initial_state(3), found.initial_state()
    for row in obs:
        before = state
        action, state = found.act(row, state)
        assert (before == 0).all() or not np.array_equal(before, state)
        single, states = found.act(row[1], states)
        assert single == action[1]
        np.testing.assert_array_equal(states, state[1])
    assert state.shape == (3, 8)


def test_without_a_memory_the_state_is_empty(policy):
    found = policy("ppo")
    action, state = found.act(np.zeros(3), found.initial_state())
    assert (state.shape, action) == ((0,), found.act(np.zeros(3)))


def test_drawn_actions_are_spread_around_the_likeliest(policy):
    found = policy("ppo")
    obs = np.zeros((4000, 3))
    drawn, likeliest = found.act(obs, deterministic=False), found.act(obs[0])
    low, high = found.spaces.action.low, found.spaces.action.high
    assert (drawn >= low).all()
    assert (drawn <= high).all()
    assert drawn.std() > 0.1
    assert abs(np.median(drawn) - likeliest) < 0.15
    found.rng = np.random.default_rng(0)
    np.testing.assert_array_equal(found.act(obs, deterministic=False), drawn)


def test_raw_actions_have_the_type_of_the_space(policy):
    found = policy("raw")
    found.spaces = found.spaces._replace(action=gym.spaces.Box(-2, 2, (1,), np.float64))
    assert found.act(np.zeros(3)).dtype == np.float64


def test_actions_keep_the_first_number_of_a_discrete_space(policy):
    found = policy("discrete")
    found.spaces = found.spaces._replace(first_action=-1)
    assert set(found.act(np.random.default_rng(0).normal(size=(50, 4)))) <= {-1, 0}


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("ppo", ([0.0, 0.0],), r"has shape \(2,\), and Pendulum-v1 has observations of shape"),
        ("ppo", (np.zeros((0, 3)),), "give one of them or a batch"),
        ("ppo", ({"speed": 1.0},), r"a dict.* gymnasium\.spaces\.flatten\(space, obs\)"),
        ("ppo", (([0.0, 0.0], 1),), r"a tuple.* gymnasium\.spaces\.flatten\(space, obs\)"),
        ("memory", ([0.0, 0.0],), "has a memory: begin an episode with"),
        ("memory", ([0.0, 0.0], np.zeros((1, 8))), r"state has shape \(1, 8\) where \(8,\)"),
    ],
)
def test_wrong_shapes_are_refused(policy, name, arguments, expected):
    with pytest.raises(ConfigError, match=expected):
        policy(name).act(*arguments)


def test_best_and_last_are_different_policies(trained):
    directory = trained("ppo")
    best, last = (walle.load(directory, which) for which in ("best", "last"))
    file = walle.load(directory / "checkpoints" / "last.pt")
    assert (best.origin.checkpoint.name, last.origin.checkpoint.name) == ("best.pt", "last.pt")
    assert walle.load(directory).origin == best.origin
    np.testing.assert_array_equal(file.snapshot.vector, last.snapshot.vector)
    assert "ppo on Pendulum-v1 after 256 steps" in repr(last)
    expected = checkpoint.load(directory / "checkpoints" / "best.pt")["snapshot"]["vector"]
    assert torch.equal(torch.from_numpy(best.snapshot.vector), expected)


def test_what_cannot_be_loaded_is_explained(trained, tmp_path):
    directory = trained("ppo")
    cases = [
        (directory, "first", "which='first' is unknown"),
        (directory / "nowhere", None, "does not exist"),
        (tmp_path, None, "has no checkpoint; give a run's directory"),
        (directory.parent, None, "of its own, but"),
        (directory / "run.json", None, "damaged or no checkpoint"),
    ]
    killed = tmp_path / "killed"
    killed.mkdir()
    (killed / "run.json").touch()
    cases.append((killed, None, r"has no checkpoint yet: .* resume=.*killed` starts it again$"))
    (tmp_path / "checkpoints").mkdir()
    cases.append((tmp_path, "best", "no evaluation has ended; use which=last"))
    for path, which, expected in cases:
        with pytest.raises(ConfigError, match=expected):
            walle.load(path, which)


def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(trained, tmp_path):
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    content = (trained("discrete") / "checkpoints" / "last.pt").read_bytes()
    (checkpoints / "previous.pt").write_bytes(content)
    (checkpoints / "last.pt").write_bytes(content[:1000])
    with pytest.warns(UserWarning, match=r"using previous\.pt"):
        assert walle.load(tmp_path).act(np.zeros(4)) in (0, 1)


def test_settings_of_the_machine_that_trained_do_not_matter(trained, tmp_path):
    state = checkpoint.load(trained("ppo") / "checkpoints" / "last.pt")
    state["config"] |= {"device": "cuda:7"}
    state["config"]["learner"]["threads"] = 4096
    state["config"]["algo"]["compile"] = "true"
    state["config"]["logger"] = {"name": "gone"}
    checkpoint.save(tmp_path / "c" / "moved.pt", state)
    obs, here = np.zeros(3), walle.load(trained("ppo"), "last")
    assert walle.load(tmp_path / "c" / "moved.pt").act(obs) == here.act(obs)
