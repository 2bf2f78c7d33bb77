"""Policies and critics that see different keys: `env.policy_keys` and `env.critic_keys`."""

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch

import walle
from tests.test_resume import COLLECT, QUICK, assert_same_run, killed_run, resume, rows
from tests.test_resume import SMALL as KILLABLE
from tests.test_training import learned
from walle.agent import checkpoint
from walle.config import compose
from walle.envs import EnvSpec, make_lanes
from walle.errors import ConfigError
from walle.policy.export import export
from walle.sampling.actor import Actor
from walle.training import make_algorithm, make_problem, train
from walle.types import ObsLayout

WINDY = ("env=gym", "env.id=tests.toy:Windy-v0")
KEYS = ("env.policy_keys=[target,place]", "env.critic_keys=[wind,place]")
SMALL = (
    *("batch_size=64", "sampler.lanes=4", "total_steps=192", "sampler=serial", "eval.episodes=0"),
    *("logger.progress=quiet", "net.policy_hidden=[16,16]", "net.critic_hidden=[16,16]"),
)
EARLY = ("algo.learning_starts=64", "algo.minibatch_size=16")
WORDS = {
    "a3c": ("sampler=process", "sampler.max_lag=null"),
    **dict.fromkeys(("ddpg", "td3", "sac", "xqc"), EARLY),
    **dict.fromkeys(("ppo", "ppo_kl", "trpo", "a2c"), ()),
}
GRU = ("net=gru", "net.hidden=8", "net.sequence=4", "algo.minibatch_size=32")
OWN_NET = ("net=own", "net.name=tests.algos.test_own_nets:Module")


class Networks:
    """Whole networks, which are refused before they are made."""

    policy = critic = None


def settings(name, *words):
    return compose([f"algo={name}", *WINDY, *SMALL, *WORDS[name], *words])


def made(config):
    problem, _ = make_problem(config)
    return make_algorithm(config, problem), problem


def values(algorithm, obs):
    """The values of observations [N, O], by the function that its kind of algorithm has."""
    if hasattr(algorithm, "normed_critic"):
        state, action = algorithm.state, torch.zeros(len(obs), 2)
        folded = algorithm.normed_critic.fold(state.critic.vector, state.critic_moments)
        return algorithm.values(algorithm.critic.logits(folded, obs, action)[0])
    if algorithm.replay is not None:
        return algorithm.critic(algorithm.state.critic.vector, obs, torch.zeros(len(obs), 2))[0]
    if hasattr(algorithm, "networks"):
        return algorithm.networks.value_function(algorithm.vector)(obs)
    return (algorithm.value if hasattr(algorithm, "value") else algorithm.baseline)(obs)


def columns_of(function, obs):
    """The columns of [1, O] that change the function's result."""
    before = function(obs).clone()
    changed = obs + torch.eye(obs.shape[1])[:, None]
    return [i for i, other in enumerate(changed) if not function(other).equal(before)]


def test_a_row_has_the_policys_own_keys_first_and_the_critics_last():
    spec = EnvSpec(WINDY[1][7:], keys=(["target", "place"], ["wind", "place"]))
    lanes = make_lanes(spec, [0], 0)
    obs, _ = gym.make(spec.id).reset(seed=5)
    expected = np.concatenate([obs[key] for key in ("target", "place", "wind")])
    assert lanes.reset([5]).tolist() == [expected.astype(np.float32).tolist()]
    assert lanes.observation_space.layout == ObsLayout(6, (), policy_only=2, critic_only=1)
    assert lanes.observation_space.dtype == np.float32


@pytest.mark.parametrize("net", [(), OWN_NET], ids=["mlp", "own"])
@pytest.mark.parametrize("name", WORDS)
def test_each_network_depends_on_its_own_keys_alone(name, net):
    algorithm, problem = made(settings(name, *KEYS, *net))
    policy, vector = algorithm.policy, algorithm.policy_vector
    obs = torch.linspace(-1, 1, problem.obs_dim)[None]
    acts = columns_of(lambda x: policy.dist(policy.layout.unflatten(vector), x), obs)
    with torch.no_grad():
        assert acts == [0, 1, 2, 3, 4]
        assert columns_of(lambda x: values(algorithm, x), obs) == [2, 3, 4, 5]


@pytest.mark.slow
def test_the_critic_learns_what_only_it_is_shown(tmp_path):
    """V(wind) has the slope 1 / (1 - γ) = 2, for the wind stays and truncation is no end."""
    config = settings(
        *("ppo", "env.policy_keys=[target]", "env.critic_keys=[wind]", "total_steps=8192"),
        *("algo.gamma=0.5", "batch_size=512", "algo.normalize_rewards=false", "net.log_std=-2"),
        *("algo.normalize_observations=false", "algo.minibatch_size=64", "algo.learning_rate=3e-3"),
    )
    train(config, tmp_path)
    algorithm, problem = made(config)
    algorithm.load_state_dict(checkpoint.load(tmp_path / "checkpoints/last.pt")["algorithm"])
    obs = torch.zeros(2, problem.obs_dim)
    obs[:, 2] = torch.tensor([-0.5, 0.5])
    low, high = values(algorithm, obs).tolist()
    assert high - low == pytest.approx(2, abs=0.3)


@pytest.mark.parametrize("name", ["ppo", "sac", "memory"])
def test_a_loaded_policy_needs_its_own_keys_alone(name, tmp_path):
    memory = name == "memory"
    words = ("ppo", "env.policy_keys=[target,place]", *GRU) if memory else (name, *KEYS)
    config = settings(*words)
    train(config, tmp_path / "run")
    policy = walle.load(tmp_path / "run")
    env = policy.env()
    obs, _ = env.reset(seed=0)
    own = {key: obs[key] for key in ("place", "target")}
    state = policy.initial_state()
    action, _ = policy.act(own, state)
    assert env.action_space.contains(action)
    assert policy.act({**obs, "noise": None}, state)[0].tolist() == action.tolist()
    batch = {key: np.stack([value] * 3) for key, value in own.items()}
    assert policy.act(batch, policy.initial_state(3))[0].tolist() == [action.tolist()] * 3
    with pytest.raises(ConfigError, match="the environment has Dict"):
        policy.act({"wind": obs["wind"]}, state)

    # The samplers and evaluations of the run act on whole rows, with the same bits.
    algorithm, problem = made(config)
    algorithm.load_state_dict(checkpoint.load(policy.origin.checkpoint)["algorithm"])
    actor = Actor(algorithm.policy_factory(), problem.obs_dim, 1, algorithm.obs_clip)
    actor.load(algorithm.snapshot())
    row = problem.observation_space.pack(obs)
    assert actor.likeliest(row[None]).tobytes() == action.tobytes()
    assert walle.evaluate(policy, episodes=2).lengths == [8, 8]
    if name == "ppo":
        export(policy, tmp_path / "policy.onnx")
        session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
        flat = np.concatenate([own["target"], own["place"]], dtype=np.float32)[None]
        exported = session.run(None, {"obs": flat})[0][0]
        np.testing.assert_allclose(exported, action, atol=1e-5)


def test_large_numbers_keep_their_digits(tmp_path):
    """As without keys: float32 would round the place to 128."""
    train(settings("ppo", *KEYS, "+env.kwargs.origin=1.7e9"), tmp_path)
    policy = walle.load(tmp_path)
    assert np.round(policy.spec.offset, -2).tolist() == [0, 0, 1.7e9, 1.7e9, 1.7e9]
    obs, _ = policy.env().reset(seed=0)
    actions = [policy.act({**obs, "place": obs["place"] + shift}) for shift in (0, 1)]
    assert np.abs(actions[1] - actions[0]).max() > 1e-4
    flat = np.concatenate([obs["target"], obs["place"]])
    np.testing.assert_array_equal(policy.act(flat), actions[0])
    export(policy, tmp_path / "policy.pt2")


def test_a_policy_sees_images_and_its_critic_a_vector_beside_them(tmp_path):
    small = [w for w in SMALL if "hidden" not in w]
    words = ["net=cnn", "net.image_features=4", "env=gym", "env.id=tests.toy_images:Mixed-v0"]
    config = compose([*small, *words, "env.policy_keys=[gear,camera]", "algo.epochs=1"])
    train(config, tmp_path)
    policy = walle.load(tmp_path)
    obs, _ = policy.env().reset(seed=0)
    assert policy.act({"gear": 1, "camera": obs["camera"]}).shape == (2,)
    assert policy.obs_layout.vector == 3
    assert made(config)[1].obs_layout[2:] == (0, 2)


REFUSED = {
    "unknown": (
        ("env.policy_keys=[targt]",),
        r"Windy-v0 has no key 'targt'; did you mean 'target'",
    ),
    "none": (("env.critic_keys=[]",), r"env.critic_keys=\[\] names no key; use null for all"),
    "clock": ((*KEYS, "env.time_feature=true"), "env.time_feature=true with tests.toy:Windy-v0"),
    "box": (
        (*KEYS, "env.id=tests.toy:Wide-v0"),
        r"a Dict, and Wide-v0 has .*Box.*flatten: false",
    ),
    "mujoco": ((*KEYS, "env.id=Hopper-v5"), "choose keys of a Dict, and Hopper-v5 has .*Box"),
    "dqn": (("algo=dqn", *EARLY, *KEYS), "env.critic_keys with algo=dqn, .* use algo=ppo or"),
    "memory": ((*GRU, *KEYS), "net=gru is shared: env.critic_keys must have all keys"),
    "networks": ((*KEYS, "net=own", "net.name=tests.test_critic_keys:Networks"), "use net=mlp"),
    "image": (
        *(("env.id=tests.toy_images:Mixed-v0", "net=cnn", "env.policy_keys=[gear]"),),
        "has images: env.critic_keys must have all of env.policy_keys, and these all images",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_chosen_is_refused(case):
    words, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        made(settings("ppo", *words))


@pytest.mark.parametrize("name", ["a2c", "ddpg", "ppo_kl", "trpo"])
def test_cpp_gives_the_numbers_of_eager_steps(name, tmp_path):
    for mode in ("auto", "false"):
        train(settings(name, *KEYS, f"algo.compile={mode}"), tmp_path / mode)
    for ours, theirs in zip(learned(tmp_path / "auto"), learned(tmp_path / "false"), strict=True):
        numbers = [{k: float(v) for k, v in row.items() if v} for row in (ours, theirs)]
        assert numbers[0] == pytest.approx(numbers[1], rel=2e-3, abs=2e-4, nan_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ppo", (*KEYS, "algo.compile=auto")),
        ("ppo", (*KEYS, "algo.compile=false")),
        ("ppo", (KEYS[0], "algo.compile=false", *COLLECT["gru"])),
        ("sac", (*KEYS, "algo.compile=auto")),
        ("sac", (*KEYS, "algo.compile=false")),
    ],
)
def test_neither_samplers_nor_learners_nor_a_resume_change_bits(name, words, tmp_path):
    small = [w for w in (*KILLABLE, *QUICK[name]) if "episode_limit" not in w and "comp" not in w]
    words = [f"algo={name}", *WINDY, *small, "learner.shards=2", *words]
    train(compose([*words, "sampler=serial"]), tmp_path / "serial")
    for n in (1, 2):
        train(compose([*words, f"sampler.n={n}", f"learner.n={n}"]), tmp_path / str(n))
        assert rows(tmp_path / str(n), False) == rows(tmp_path / "serial", False)
    killed_run([*words, "sampler=serial"], tmp_path / "killed")
    resume([*words, "sampler=serial"], tmp_path / "killed")
    assert_same_run(tmp_path / "serial", tmp_path / "killed", samplers=True)
