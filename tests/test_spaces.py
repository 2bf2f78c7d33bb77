"""Actions and observations of any shape, size and bounds, in the parts of a run that meet them."""

import re
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

import walle
from tests.test_training import learned
from tests.toy_spaces import ACTIONS, Stamped, Toy
from walle.agent import checkpoint
from walle.config import compose
from walle.envs import EnvSpec, make_lanes
from walle.envs.probe import probe
from walle.envs.single import make_single
from walle.errors import CheckpointError, ConfigError, RolloutError
from walle.policy.export import ActingModule, difference, export
from walle.training import make_algorithm, make_problem, train, warnings

SMALL = ("env=gym", "eval.every=64", "eval.episodes=2", "logger.progress=quiet", "batch_size=32")
SMALL += ("sampler.lanes=4", "algo.epochs=2", "net.policy_hidden=[8]", "net.critic_hidden=[8]")


def settings(env, *overrides):
    name, _, kwargs = env.partition(" ")
    words = [f"+env.kwargs.{word}" for word in kwargs.split()]
    return compose([*SMALL, f"env.id=tests.toy_spaces:{name}", *words, *overrides])


def lanes_of(name, numbers=(0,), **spec):
    return make_lanes(EnvSpec("tests.toy_spaces:Shaped", {"actions": name}, **spec), numbers, 0)


@pytest.mark.parametrize(
    ("name", "drawn", "total"),
    [
        ("box", [-1, 1, 0, 2], 0 + 100 + 11 - 0.5),  # clipped, as the last entry shows
        ("number", [0.5], 2.5),
        ("dials", [1, 2, 0, 4], (2 + 2) + (0 + 1)),
        ("switches", [1, 0, 1, 1], 3),
        ("free", [300.0, -1.5], 298.5),
        ("half", [-3.0, 5.0], 5.0),
        ("ends", [0.25, 0.5], 0.75),
        ("wide", [0.25, 0.5], 0.75),
    ],
)
def test_an_environment_gets_actions_in_its_own_shape_and_bounds(name, drawn, total):
    lanes = lanes_of(name, [0, 1])
    assert lanes.action_space.shape == (len(drawn),)
    lanes.reset()
    rows = np.array([drawn, drawn], lanes.action_space.dtype)
    assert lanes.step(rows).reward.tolist() == pytest.approx([total, total])


@pytest.mark.parametrize("name", ["row of dials", "row of switches", "half"])
@pytest.mark.parametrize("frame_skip", [1, 3])
def test_an_environment_may_change_its_action(name, frame_skip):
    spec = EnvSpec("tests.toy_spaces:Shifts", {"actions": name}, frame_skip=frame_skip)
    spec = replace(spec, action="raw" if name == "half" else "rescale")
    lanes, env = make_lanes(spec, [0, 1], 0), make_single(spec)
    lanes.reset()
    env.reset()
    drawn = np.array([[1, 0], [1, 1]], lanes.action_space.dtype)
    assert lanes.step(drawn).reward.tolist() == [frame_skip, 2 * frame_skip]
    assert drawn.tolist() == [[1, 0], [1, 1]]
    assert env.step(drawn[1])[1] == 2 * frame_skip


@pytest.mark.parametrize(
    ("name", "low", "high", "drawn", "applied"),
    [
        ("free", -2, 4, [1, -0.5], [4, -0.5]),
        ("free", [-2, -1], [4, 9], [0, 1], [1, 9]),
        ("half", None, 8, [-1, 0.5], [0, 6]),
        ("half", 2, 8, [-1, 0.5], [2, 6.5]),
        ("wide", -1e200, 1e200, [0.5, -1], [5e199, -1e200]),
        ("ends", -1, 1, [0.5, -3], [0.5, -1]),
    ],
)
def test_bounds_of_the_settings_rescale_actions(name, low, high, drawn, applied):
    lanes = lanes_of(name, action_low=low, action_high=high)
    assert (lanes.action_space.low == -1).all()
    assert (lanes.action_space.high == 1).all()
    lanes.reset()
    action = np.array([drawn], lanes.action_space.dtype)
    assert lanes.step(action).reward[0] == pytest.approx(sum(applied))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"action_low": [1, 2, 3]}, "give a number, or for a Box a flat list"),
        ({"action_low": 2, "action_high": 2}, r"action_low=2 and .*give a number, or"),
        ({"action_low": -1, "action": "raw"}, r"env.action=raw.*give a number"),
    ],
)
def test_bounds_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        lanes_of("free", **settings)
    with pytest.raises(ConfigError, match=r"env.action_low=0 .* actions MultiDiscrete.*give a"):
        lanes_of("dials", action_low=0)
    for wrong in ("wide", True, [0, False], [[-1, -1]], [1, "x"], [1, float("nan")]):
        with pytest.raises(ConfigError, match="give a number, or for a Box a flat list"):
            lanes_of("free", action_low=wrong)


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_off_policy_algorithms_ask_for_bounds(name):
    words = [w for w in SMALL if "epochs" not in w] + ["env.id=tests.toy_spaces:Shaped"]
    words += [f"algo={name}", "algo.learning_starts=32", "total_steps=64"]
    for kind in ("ends", "free"):
        config = compose([*words, f"+env.kwargs.actions={kind}"])
        with pytest.raises(ConfigError, match=r"from \[-inf -inf\] to .* env.action_low and"):
            make_algorithm(config, make_problem(config)[0])
    config = compose([*words, "+env.kwargs.actions=ends", "env.action_low=-1", "env.action_high=1"])
    make_algorithm(config, make_problem(config)[0])


def test_unbounded_noise_is_said_once():
    config = settings("Shaped actions=ends")
    (line,) = warnings(config, 8, EnvSpec("Toy"), lanes_of("ends").action_space)
    assert line.startswith("Toy has unbounded actions, and so is the noise")
    assert not list(warnings(config, 8, EnvSpec("Toy"), lanes_of("box").action_space))


@pytest.mark.parametrize("name", ["box", "number", "dials", "switches"])
def test_a_loaded_policy_acts_in_the_environments_shape(name, tmp_path):
    train(settings(f"Shaped actions={name}", "sampler=serial", "total_steps=64"), tmp_path)
    policy, space = walle.load(tmp_path), ACTIONS[name]
    with policy.env() as env:
        obs, _ = env.reset(seed=0)
        assert env.action_space.contains(policy.act(obs))
        env.step(policy.act(obs, deterministic=False))
    assert policy.act(np.zeros((3, 2))).shape == (3, *space.shape)
    assert walle.evaluate(policy, episodes=2).lengths == [8, 8]
    module = ActingModule(policy)
    inputs = module.inputs(np.zeros((3, 2), np.float32), policy.initial_state(3))
    with torch.no_grad():
        np.testing.assert_allclose(module(*inputs.values()), policy.act(np.zeros((3, 2))), 1e-5)
    assert export(policy, tmp_path / "p.pt2") <= 1e-5


STAMPED = EnvSpec("tests.toy_spaces:Stamped")


@pytest.mark.parametrize("of", ["row", "ticks", "camera", "rounded"])
def test_an_offset_is_found_where_float32_would_lose_changes(of):
    found = probe(replace(STAMPED, kwargs={"of": of}), 0).env
    if of == "rounded":  # the environment has lost them itself
        assert found.offset is None
        return
    assert found.offset == pytest.approx((1.7e9, 0), abs=64)
    lanes = make_lanes(found, [0], 0)
    vectors = probe_vectors(lanes)
    assert set(np.diff(vectors[:, 0])) == {-1, 1}


def probe_vectors(lanes):
    layout = walle.types.layout_of(lanes.observation_space)
    obs = [np.array(lanes.reset())]
    obs += [np.array(lanes.step(np.zeros(lanes.action_space.shape)[None]).obs) for _ in range(9)]
    return np.concatenate([layout.vectors(np.asarray(x, layout.dtype)) for x in obs])


@pytest.mark.parametrize("scale", [60_000.0, 2.0**23])
def test_harmless_numbers_keep_their_bits(scale, monkeypatch):
    monkeypatch.setattr(Stamped, "START", scale)
    assert (probe(STAMPED, 0).env.offset is None) == (scale < 2**16)
    assert probe(replace(STAMPED, kwargs={"of": "ticks"}), 0).env.offset is None


@pytest.mark.slow
def test_the_offset_belongs_to_the_run(tmp_path, monkeypatch):
    """Any `sampler.n` and a resume give equal bits, though the clock has moved on."""
    words = ("Stamped", "total_steps=128")
    for name, sampler in (("serial", "sampler=serial"), ("two", "sampler.n=2")):
        train(settings(*words, sampler), tmp_path / name)
    train(
        settings("Stamped", "total_steps=64", "sampler.n=1", "schedule_steps=128"), tmp_path / "cut"
    )
    state = checkpoint.earlier_state(tmp_path / "cut", print)
    for key in ("action_low", "action_high"):  # which earlier versions lack
        del state["config"]["env"][key]
    start = make_problem

    def later(config):
        problem, found = start(config)
        assert found.env.offset[0] >= 1.7e9
        return problem, found._replace(env=replace(found.env, offset=(5e9, 0.0)))

    monkeypatch.setattr("walle.training.make_problem", later)
    train(settings(*words, "sampler.n=1", "schedule_steps=128"), tmp_path / "cut", resumed=state)
    assert learned(tmp_path / "serial") == learned(tmp_path / "two") == learned(tmp_path / "cut")
    file = tmp_path / "cut" / "checkpoints" / "last.pt"
    damaged = checkpoint.load(file) | {"offset": torch.zeros(3, dtype=torch.float64)}
    checkpoint.save(file, damaged)
    with pytest.raises(CheckpointError, match=r"offset is float64 \[3\], and .* float64 \[2\]"):
        walle.load(file)


@pytest.mark.parametrize("of", ["row", "camera"])
def test_a_loaded_policy_and_its_graph_subtract_the_offset(of, tmp_path):
    net = ("net=cnn", "net.image_features=4") if of == "camera" else ()
    drop = [w for w in SMALL if not w.startswith("net.")]
    words = [*drop, *net, "env.id=tests.toy_spaces:Stamped", f"+env.kwargs.of={of}"]
    train(compose([*words, "sampler=serial", "total_steps=32", "eval.every=32"]), tmp_path)
    policy = walle.load(tmp_path)
    with policy.env() as env:
        obs, _ = env.reset(seed=0)
        later, *_ = env.step(policy.act(obs))
    assert not np.array_equal(dist(policy, obs), dist(policy, later))
    blind = walle.Policy(
        policy.network, policy.snapshot, policy.obs_clip, replace(policy.spec, offset=None),
        walle.load(tmp_path).spaces, policy.origin,
    )  # fmt: skip
    assert not np.array_equal(dist(policy, obs), dist(blind, obs))
    assert walle.evaluate(policy, 2).lengths == [8, 8]
    if of == "row":
        raw = np.stack([obs, later])
        alone = np.stack([policy.act(x) for x in raw])
        np.testing.assert_array_equal(policy.act(raw), alone)
    assert export(policy, tmp_path / "p.pt2") <= 1e-5


def dist(policy, obs):
    return policy._actor.dist_params(policy._checked(obs)[0]).detach().clone().numpy()


@pytest.mark.slow
@pytest.mark.parametrize("of", ["row", "ticks"])
def test_the_last_digit_of_a_large_number_is_learned(of, tmp_path):
    words = [w for w in SMALL if w.startswith(("env", "logger"))]
    config = compose(
        [*words, "env.id=tests.toy_spaces:Stamped", f"+env.kwargs.of={of}", "eval.episodes=0",
         "total_steps=20480", "sampler=serial"]
    )  # fmt: skip
    train(config, tmp_path)
    assert walle.evaluate(tmp_path, episodes=10).mean.value > 7.5  # of 8


GIVES = "tests.toy_spaces:Gives"


def test_a_reward_and_ends_of_one_entry_are_numbers():
    lanes = make_lanes(EnvSpec(GIVES, {"how": "array"}, frame_skip=2), [0], 0)
    lanes.reset()
    steps = [lanes.step(np.zeros((1, 1), np.float32)) for _ in range(4)]
    assert [float(step.reward[0]) for step in steps] == [1.0] * 4
    assert steps[-1].truncated[0]
    assert not steps[-1].terminated[0]


def test_a_reward_that_is_no_number_is_refused_with_the_environment():
    with pytest.raises(ConfigError, match=rf"env.id={GIVES} .* a reward of None.*return a real"):
        probe(EnvSpec(GIVES, {"how": "none"}), 0)
    lanes = make_lanes(EnvSpec(GIVES, {"how": "none"}), [3], 0)
    lanes.reset()
    with pytest.raises(RolloutError, match="a reward of None") as raised:
        lanes.step(np.zeros((1, 1), np.float32))
    assert re.search("raised by Gives.* in lane 3 at step 1", raised.value.__notes__[0])


def test_an_exception_without_a_message_shows_the_line_that_raised_it():
    with pytest.raises(ConfigError, match=r"AssertionError: assert self\.t < 1 \(.*toy_spaces\.py"):
        probe(EnvSpec(GIVES, {"how": "assertion"}), 0)


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_a_missing_space_is_named(name):
    with pytest.raises(
        ConfigError, match=rf"lacks its {name}, which is None: set self.{name} in __init__"
    ):
        make_lanes(EnvSpec("tests.toy_spaces:Without", {"name": name}), [0], 0)


class Mission(gym.Space):
    """A space of the environment's own, which Gymnasium cannot flatten."""


BOX, TEXT = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Text(9)
IMAGE = gym.spaces.Box(0, 255, (36, 36), np.uint8)


@pytest.mark.parametrize(
    ("space", "entry", "kept"),
    [
        (gym.spaces.Dict(a=BOX, mission=Mission(), z=BOX), "mission (Mission)", "[a, z]"),
        (gym.spaces.Dict(image=IMAGE, mission=TEXT), "mission (Text)", "[image]"),
        (gym.spaces.Dict(a=BOX, b=gym.spaces.Dict(t=TEXT)), "b.t (Text)", "[a]"),
        (gym.spaces.Tuple((gym.spaces.Sequence(BOX), BOX)), "0 (Sequence)", "[1]"),
        (gym.spaces.Graph(BOX, None), "numbers: Graph(", None),
        (TEXT, "numbers: Text(", None),
        (gym.spaces.Dict(a=BOX, o=gym.spaces.OneOf((BOX, IMAGE))), "o (OneOf)", "[a]"),
    ],
)
def test_what_cannot_be_flattened_is_named_with_the_wrapper(space, entry, kept, monkeypatch):
    monkeypatch.setattr(Toy, "observation_space", space)
    fix = f"{{name: FilterObservation, filter_keys: {kept}}}" if kept else "{name: module:Wrapper}"
    with pytest.raises(ConfigError) as raised:
        make_lanes(EnvSpec("tests.toy_spaces:Toy"), [0], 0)
    assert entry in str(raised.value)
    assert str(raised.value).endswith(f"env.wrappers=[{fix}]")


def test_an_exported_offset_is_part_of_the_graph(tmp_path):
    train(
        settings("Stamped of=ticks", "sampler=serial", "total_steps=32", "eval.episodes=0"),
        tmp_path,
    )
    policy = walle.load(tmp_path)
    module = ActingModule(policy)

    def graph(obs, state):
        with torch.no_grad():
            return module(*module.inputs(obs, state).values()).numpy(), state

    assert difference(policy, graph) <= 1e-5
