"""Runs whose observations hold images: bytes all the way, and learned from."""

import math

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch

import walle
from tests.conftest import read
from tests.test_resume import assert_same_run, killed_run, resume
from tests.test_training import learned
from tests.toy_spaces import Toy
from walle.agent import checkpoint
from walle.algos import REGISTRY, load
from walle.algos.on_policy.base import StepBatch
from walle.config import compose
from walle.errors import ConfigError
from walle.policy.acting import Origin, policy_from
from walle.policy.export import export
from walle.training import make_algorithm, make_problem, rollout_shape, train

LOOK, MIXED = "env.id=tests.toy_images:Look-v0", "env.id=tests.toy_images:Mixed-v0"
SMALL = (
    "net=cnn",
    "net.image_features=16",
    "env=gym",
    "eval.episodes=0",
    "logger.progress=quiet",
    "batch_size=64",
    "sampler.lanes=4",
    "total_steps=192",
)
OWN = {
    "ppo": ("algo.epochs=2", "algo.minibatch_size=32"),
    "a2c": (),
    "dqn": ("algo.learning_starts=64", "algo.minibatch_size=16", "algo.target_interval=4"),
}


def settings(name, *overrides):
    return compose([f"algo={name}", *SMALL, *OWN[name], *overrides])


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """Runs of three rounds on images by PPO and DQN, with one sampler; read only."""
    found = {}
    for name in ("ppo", "dqn"):
        found[name] = tmp_path_factory.mktemp(name)
        train(settings(name, LOOK, "sampler=serial"), found[name])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_learning_from_images_does_not_depend_on_the_number_of_samplers(looked, name, tmp_path):
    train(settings(name, LOOK, "sampler.n=2"), tmp_path)
    assert len(learned(tmp_path)) == 3
    assert learned(tmp_path) == learned(looked[name])


@pytest.mark.slow
def test_mixed_observations_and_several_choices_do_not_depend_on_it_either(tmp_path):
    for n in (1, 3):
        train(settings("a2c", MIXED, f"sampler.n={n}"), tmp_path / str(n))
    assert len(learned(tmp_path / "1")) == 3
    assert learned(tmp_path / "1") == learned(tmp_path / "3")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "task"), [("ppo", MIXED), ("dqn", LOOK)])
def test_a_killed_run_goes_on_bit_for_bit_from_images(name, task, tmp_path):
    more = ("total_steps=384", "eval.every=128", "eval.episodes=2", "checkpoint.every=null")
    overrides = [f"algo={name}", *SMALL, *OWN[name], task, "sampler=serial", *more]
    train(compose(overrides), tmp_path / "whole")
    killed_run(overrides, tmp_path / "resumed")
    resume(overrides, tmp_path / "resumed")
    assert_same_run(tmp_path / "whole", tmp_path / "resumed", samplers=True)


@pytest.mark.slow
def test_compiled_updates_learn_the_same_from_images(looked, tmp_path):
    train(settings("dqn", LOOK, "sampler=serial", "algo.compile=true"), tmp_path)
    compiled, eager = learned(tmp_path), learned(looked["dqn"])
    assert float(compiled[-1]["value_loss"]) > 0
    for name in ("value_loss", "q"):
        found, expected = ([float(row[name]) for row in rows[1:]] for rows in (compiled, eager))
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_images_are_carried_as_bytes(looked):
    config = settings("dqn", LOOK, "sampler=serial")
    problem, probed = make_problem(config)
    algorithm = make_algorithm(config, problem)
    shape = rollout_shape(config, problem, probed, 4)
    assert (shape.obs, shape.obs_dtype) == ((1440,), "uint8")
    assert shape.fields()["obs"] == ((17, 4, 1440), "uint8")
    assert algorithm.replay.rows(0, 0).dtype == torch.uint8
    assert algorithm.replay.width == 2 * 1440 + 3 * 4
    for name in ("ppo", "dqn"):
        state = checkpoint.load(looked[name] / "checkpoints" / "last.pt")
        assert {np.asarray(block["obs"]).dtype for block in state["lanes"]} == {np.dtype("uint8")}
    rows = sum(x.stat().st_size for x in looked["dqn"].glob("checkpoints/**/*.rows"))
    assert rows == 192 * algorithm.replay.width


def test_the_normaliser_sees_vectors_only():
    config = settings("ppo", MIXED, "sampler=serial")
    problem, _ = make_problem(config)
    algorithm = make_algorithm(config, problem)
    assert problem.obs_layout.vector == 5
    assert len(algorithm.snapshot().vector) == algorithm.policy.layout.size + 2 * 5
    config = settings("ppo", LOOK, "sampler=serial")
    algorithm = make_algorithm(config, make_problem(config)[0])
    assert len(algorithm.snapshot().vector) == algorithm.policy.layout.size


def test_policy_and_critic_share_the_convolutions():
    config = settings("a2c", LOOK, "sampler=serial", "algo.entropy_weight=0")
    problem, _ = make_problem(config)
    algorithm = make_algorithm(config, problem)
    assert algorithm.critic.layout.size == 16 + 1
    batch = StepBatch(
        torch.randint(0, 256, (8, 1440), dtype=torch.uint8), torch.zeros(8).long(),
        torch.zeros(8), torch.zeros(8), torch.ones(8), torch.zeros(8),
    )  # fmt: skip
    vector = algorithm.vector.clone().requires_grad_()
    algorithm.loss(vector, batch)[0].backward()  # advantages are 0: the critic's loss alone
    policy, _ = algorithm.networks.split(vector.grad)
    assert all(x.any() for name, x in policy.items() if name.startswith("image0"))


def test_a_loaded_policy_acts_on_the_environments_own_images(looked):
    policy = walle.load(looked["ppo"], "last")
    with policy.env() as env:
        obs, _ = env.reset(seed=0)
        assert obs.shape == (36, 40, 1)
        action = policy.act(obs)
        assert action in (3, 4)  # the space begins at 3
        env.step(action)
    batch = np.stack([obs, 255 - obs, obs])
    assert policy.act(batch).shape == (3,)
    assert policy.act(batch)[0] == policy.act(batch)[2] == action
    assert policy.act(obs, deterministic=False) in (3, 4)
    with pytest.raises(ConfigError, match=r"an observation has shapes .* pass one of its"):
        policy.act(np.zeros((3, 3)))


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_policy_of_images_is_evaluated(looked, name):
    found = walle.evaluate(looked[name], episodes=3)
    assert found.lengths == [8, 8, 8]
    assert all(0 <= value <= 8 for value in found.returns)


@pytest.mark.slow
def test_a_policy_of_dictionaries_acts_and_gives_several_choices(tmp_path):
    train(settings("a2c", MIXED, "sampler=serial"), tmp_path)
    policy = walle.load(tmp_path)
    with policy.env() as env:
        obs, _ = env.reset(seed=1)
        action = policy.act(obs)
        assert env.action_space.contains(action)
        batch = {name: np.stack([obs[name]] * 2) for name in obs}
        np.testing.assert_array_equal(policy.act(batch), [action, action])


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_an_exported_policy_takes_the_images_themselves(looked, ending, tmp_path):
    policy = walle.load(looked["dqn"])
    assert export(policy, tmp_path / f"policy.{ending}") <= 1e-5
    if ending == "pt2":
        graph = torch.export.load(tmp_path / "policy.pt2").module()
        images = torch.randint(0, 256, (3, 36, 40, 1), dtype=torch.uint8)
        np.testing.assert_array_equal(graph(images), policy.act(images.numpy()))
    train(settings("a2c", MIXED, "sampler=serial", "total_steps=64"), tmp_path / "mixed")
    assert export(walle.load(tmp_path / "mixed"), tmp_path / f"mixed.{ending}") <= 1e-5
    if ending == "onnx":
        inputs = onnxruntime.InferenceSession(tmp_path / "mixed.onnx").get_inputs()
        assert [(each.name, each.type) for each in inputs] == [
            ("vector", "tensor(float)"),
            ("camera", "tensor(uint8)"),
        ]


@pytest.mark.slow
def test_images_may_be_called_like_a_value_in_the_graph(monkeypatch, tmp_path):
    keys = ["centre", "conv2d", "left"]
    image = np.zeros((36, 36), np.uint8)
    spaces = {key: gym.spaces.Box(0, 255, (36, 36), np.uint8) for key in keys}
    monkeypatch.setattr(Toy, "observation_space", gym.spaces.Dict(spaces))
    monkeypatch.setattr(Toy, "observe", lambda _: dict.fromkeys(keys, image))
    config = settings("a2c", "env.id=tests.toy_spaces:Toy")
    problem, environment = make_problem(config)
    origin = Origin(tmp_path, "a2c", 0, 0)
    policy = policy_from(make_algorithm(config, problem), environment.env, environment.lane, origin)
    assert export(policy, tmp_path / "p.onnx") <= 1e-5
    inputs = onnxruntime.InferenceSession(tmp_path / "p.onnx").get_inputs()
    assert [each.name for each in inputs] == keys


@pytest.mark.parametrize("name", [n for n in REGISTRY if not load(n).capabilities.images])
def test_algorithms_without_images_say_so(name):
    with pytest.raises(ConfigError, match=rf"algo={name} cannot run with net=cnn.*algo=ppo or a2c"):
        compose([f"algo={name}", "net=cnn"])


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_images_without_convolutions_are_refused_with_the_cure(name):
    config = compose([f"algo={name}", "env=gym", LOOK])
    if name == "sac":
        config = compose(["algo=dqn", "env=gym", LOOK])
    with pytest.raises(ConfigError, match=r"have images \(36x40x1\).* vectors only; use net=cnn"):
        make_algorithm(config, make_problem(config)[0])


def test_convolutions_without_images_are_refused_with_the_cure():
    config = compose(["env=cartpole", "net=cnn"])
    with pytest.raises(ConfigError, match=r"net=cnn needs images, .* use net=mlp"):
        make_algorithm(config, make_problem(config)[0])


def test_cartpole_in_pictures_chooses_its_net_for_every_algorithm():
    for name in ("ppo", "a2c", "dqn"):
        assert compose([f"algo={name}", "env=cartpole_pixels"]).net.name == "cnn"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn"])
def test_images_are_learned_from(name, tmp_path):
    own = {
        "ppo": ("algo.epochs=4", "total_steps=4096", "algo.learning_rate=1e-3"),
        "a2c": ("total_steps=16384", "algo.learning_rate=1e-3"),
        "dqn": ("total_steps=2048", "algo.updates_per_step=0.5", "algo.learning_rate=1e-3"),
    }
    config = settings(name, LOOK, "batch_size=128", "sampler.lanes=16", "algo.gamma=0", *own[name])
    train(config, tmp_path)
    found = walle.evaluate(tmp_path, episodes=20, which="last")
    assert np.mean(found.returns) > 7.5  # 4 by chance, 8 at most
    assert math.isfinite(float(read(tmp_path / "iterations.csv")[-1]["return_mean"]))


REAL = (
    "env.id=tests.envs.test_observations:Pixels",
    "+env.kwargs={shape:[36,37,1],dtype:float32,high:1}",
    "env.episode_limit=20",
)


@pytest.mark.slow
def test_images_of_numbers_are_learned_from_loaded_and_exported(tmp_path):
    train(settings("dqn", *REAL, "sampler=serial"), tmp_path / "run")
    policy = walle.load(tmp_path / "run")
    obs, _ = policy.env().reset(seed=0)
    assert (obs.shape, obs.dtype, obs.max() <= 1) == ((36, 37, 1), np.float32, True)
    policy.act(obs)
    export(policy, tmp_path / "policy.pt2")
    config = compose(["algo=dqn", "env=gym", *REAL, "sampler=serial"])
    problem, _ = make_problem(config)
    with pytest.raises(ConfigError, match=r"images \(36x37x1\), .* use net=cnn"):
        make_algorithm(config, problem)


def test_small_images_need_seven_pixels():
    shapes = {"[10,10,4]": "bool", "[7,7,3]": "uint8", "[6,7,3]": "uint8"}
    for shape, dtype in shapes.items():
        high = 1 if dtype == "bool" else 255
        kwargs = f"+env.kwargs={{shape:{shape},dtype:{dtype},high:{high}}}"
        config = settings("ppo", REAL[0], kwargs, "sampler=serial")
        problem, _ = make_problem(config)
        if shape == "[6,7,3]":
            with pytest.raises(ConfigError, match="7 pixels a side at least; use net=mlp"):
                make_algorithm(config, problem)
        else:
            make_algorithm(config, problem)
