"""Observations with images lie in rows of bytes."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from walle.envs import EnvSpec, make_lanes
from walle.envs.gymnasium_lanes import flattened
from walle.envs.observations import ObservationRows, entries, flatten_batch, image_of, images_in
from walle.envs.probe import probe
from walle.errors import ConfigError, RolloutError
from walle.nets.features import Convolutions, Encoder
from walle.types import Image, ObsLayout, layout_of

LOOK, MIXED = "tests.toy_images:Look-v0", "tests.toy_images:Mixed-v0"


def box(*shape, dtype=np.uint8, high=255):
    return gym.spaces.Box(0, high, shape, dtype)


@pytest.mark.parametrize(
    ("space", "chw"),
    [
        (box(84, 96, 3), (3, 84, 96)),
        (box(4, 84, 96), (4, 84, 96)),
        (box(40, 60), (1, 40, 60)),
        (box(36, 36, 1), (1, 36, 36)),
        (box(84, 35, 3), None),  # too small for the convolutions: a vector
        (box(7, 7, 3), None),
        (box(84, 84, 3, dtype=np.float32, high=1), (3, 84, 84)),
        (box(84, 84, 3, high=254), (3, 84, 84)),
        (box(40, 50, dtype=np.float32), None),  # a table of numbers: a vector
        (box(4, 84, 84, 3), None),
        (gym.spaces.Box(-np.inf, np.inf, (84, 84, 3)), None),
        (box(128), None),
    ],
)
def test_what_counts_as_an_image(space, chw):
    image = image_of(space)
    assert (image and image.chw) == chw
    assert any(images_in(gym.spaces.Dict(a=gym.spaces.Tuple((space,))))) == (chw is not None)


def test_a_row_has_vectors_first_then_images_in_the_order_of_the_space():
    space = gym.spaces.Dict(
        {"b": box(36, 37), "a": gym.spaces.Discrete(3), "c": gym.spaces.Box(-1, 1, (2,))}
    )
    rows = ObservationRows(space, "toy")
    assert rows.layout == ObsLayout(5, (Image((36, 37), False),))
    assert rows.shape == (20 + 36 * 37,)
    camera = np.arange(36 * 37).astype(np.uint8).reshape(36, 37)
    row = rows.pack({"a": 2, "b": camera, "c": np.array([0.25, -0.5], np.float32)})
    assert row.dtype == np.uint8
    np.testing.assert_array_equal(rows.layout.vectors(row), [0, 0, 1, 0.25, -0.5])
    np.testing.assert_array_equal(row[20:], camera.ravel())


def test_rows_end_at_a_multiple_of_four_bytes():
    rows = ObservationRows(box(37, 37), "toy")
    assert rows.shape == (1372,)
    row = rows.pack(np.full((37, 37), 7, np.uint8))
    assert row[:1369].tolist() == [7] * 1369
    assert row[1369:].tolist() == [0] * 3


@pytest.mark.parametrize("layout", ["hwc", "chw", "hw"])
def test_lanes_carry_bytes(layout):
    lanes = make_lanes(EnvSpec(LOOK, {"layout": layout}), [0, 1], 3)
    assert layout_of(lanes.observation_space).images[0].chw == (1, 36, 40)
    assert lanes.action_space == gym.spaces.Discrete(2)
    obs = lanes.reset()
    step = lanes.step(np.array([0, 1]))
    assert obs.dtype == step.obs.dtype == np.uint8
    assert obs.shape == (2, 1440)
    lanes.close()


def test_a_batch_of_dictionaries_gives_the_rows_of_each():
    space = gym.spaces.Dict(v=gym.spaces.Box(-1, 1, (2,)), i=box(36, 36, 3))
    rows = ObservationRows(space, "toy")
    space.seed(0)
    each = [space.sample() for _ in range(3)]
    batch = {name: np.stack([obs[name] for obs in each]) for name in ("v", "i")}
    found, single = rows.rows(batch)
    assert not single
    np.testing.assert_array_equal(found, [rows.pack(obs) for obs in each])
    one, single = rows.rows(each[1])
    assert single
    np.testing.assert_array_equal(one[0], found[1])
    np.testing.assert_array_equal(rows.rows(found)[0], found)
    for wrong in ({"v": np.zeros(2)}, {"v": np.zeros(2), "i": np.zeros((3, 3))}, np.zeros(4)):
        with pytest.raises(ConfigError, match=r"an observation has .* pass one of its"):
            rows.rows(wrong)


@pytest.mark.parametrize("space", [gym.spaces.Box(-np.inf, np.inf, (84, 84, 3)), box(4, 96, 96, 3)])
def test_what_looks_like_an_image_is_not_flattened_without_a_word(space, monkeypatch):
    made = gym.make("CartPole-v1")
    made.observation_space = space
    monkeypatch.setattr(gym, "make", lambda *_, **__: made)
    with pytest.raises(ConfigError, match=r"look like images, but .* env.wrappers"):
        make_lanes(EnvSpec("CartPole-v1", backend="gymnasium"), [0], 0)


def test_a_number_that_is_not_finite_is_named_though_it_lies_in_bytes():
    lanes = make_lanes(EnvSpec(MIXED, {"nan_at": 1}), [4], 0)
    lanes.reset()
    with pytest.raises(RolloutError, match=r"an observation with nan; .*clip or mask") as raised:
        lanes.step(np.zeros((1, 2), np.int64))
    assert "in lane 4 at step 1" in raised.value.__notes__[0]


def test_an_image_of_another_shape_is_refused():
    rows = ObservationRows(box(36, 36), "toy")
    with pytest.raises(RolloutError, match=r"an image of shape \(36, 35\) and type uint8, but"):
        rows.pack(np.zeros((36, 35), np.uint8))
    with pytest.raises(RolloutError, match=r"type float64"):
        rows.pack(np.zeros((36, 36)))


@pytest.mark.parametrize("image", [False, True])
def test_a_part_of_another_shape_is_refused(image):
    """NumPy would repeat a single entry, and a transposed matrix has as many entries."""
    parts = {"pose": Box(-1, 1, (2, 3), np.float64), "level": Box(-1, 1, (1,), np.float64)}
    parts["dials"] = MultiDiscrete([3, 4])
    space = Dict({"cam": box(36, 36), **parts} if image else parts)
    env = gym.Env()
    env.observation_space = space
    env.action_space = Discrete(2)
    made = flattened(env, EnvSpec("toy", saving="none"))
    whole = space.sample()
    assert len(made.observation({**whole, "level": 0.5})) == made.observation_space.shape[0]
    flat = made.observation({**whole, "pose": whole["pose"].reshape(-1)})
    assert np.array_equal(flat, made.observation(whole))
    wrong = [("pose", whole["pose"].T), ("pose", np.zeros(1)), ("pose", np.zeros((2, 3, 2)))]
    for key, value in (*wrong, ("dials", 2), ("dials", np.array([1]))):
        with pytest.raises(RolloutError, match=r"of shape .*, but its space has shape"):
            made.observation({**whole, key: value})


def test_keys_of_a_dict_may_be_numbers():
    space = Dict({0: Box(-1, 1, (2,), np.float64), 1: Box(-1, 1, (3,), np.float64)})
    assert ObservationRows(space, "toy", keys=([1], ["0", 1])).layout[:1] == (5,)
    with pytest.raises(ConfigError, match=r"toy has no key '2'; choose one of: 0, 1"):
        ObservationRows(space, "toy", keys=([2], None))


def test_a_clock_beside_images_is_refused():
    with pytest.raises(ConfigError, match=r"time_feature=true .* images; use env.time_feature=fal"):
        make_lanes(EnvSpec(LOOK, time_feature=True), [0], 0)


@pytest.mark.parametrize("env", [EnvSpec(LOOK), EnvSpec(MIXED, {"actions": "switches"})])
@pytest.mark.parametrize("saving", ["pickle", "replay"])
def test_lanes_with_images_go_on_from_a_saved_state(env, saving):
    found = probe(env, 0)
    assert found.unsaved == ""
    assert found.env.saving == "pickle"
    from dataclasses import replace

    env = replace(env, saving=saving)
    one, other = make_lanes(env, [0], 0), make_lanes(env, [0], 9)
    one.reset()
    one.action_space.seed(0)
    actions = [np.asarray(one.action_space.sample(), np.int64)[None] for _ in range(12)]
    for action in actions[:5]:
        one.step(action)
    other.restore(one.state())
    for action in actions[5:]:
        ours, theirs = one.step(action), other.step(action)
        np.testing.assert_array_equal(ours.obs, theirs.obs)
        np.testing.assert_array_equal(ours.reward, theirs.reward)


class Pixels(gym.Env):
    """Random pixels of any type."""

    def __init__(self, shape=(84, 84), dtype="uint8", low=0, high=255):
        self.observation_space = gym.spaces.Box(low, high, tuple(shape), np.dtype(dtype).type)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(action), False, False, {}


@pytest.mark.parametrize(
    ("kwargs", "scale", "convolutions"),
    [
        ({"shape": (84, 84, 3), "dtype": "float32", "high": 1}, 1, 64 * 7 * 7),
        ({"shape": (36, 84, 4), "dtype": "float64", "low": -1, "high": 1}, 1, 64 * 1 * 7),
        ({"high": 254}, 254, 64 * 7 * 7),
        ({"shape": (35, 35, 3)}, 255, 64 * 6 * 6),
        ({"shape": (16, 20, 3), "high": 15, "dtype": "int32"}, 15, 64 * 1 * 2),
        ({"shape": (10, 10, 4), "dtype": "bool", "high": 1}, 1, 64 * 4 * 4),
        ({"shape": (10, 10, 10), "dtype": "bool", "high": 1}, 1, 64 * 4 * 4),
        ({"shape": (7, 7, 3)}, 255, 64),
    ],
)
def test_a_net_of_convolutions_sees_images_of_any_type_and_size_between_0_and_1(
    kwargs, scale, convolutions
):
    spec = EnvSpec(f"{__name__}:Pixels", kwargs, small_images=True)
    lanes, alone = make_lanes(spec, [0, 1], 3), Pixels(**kwargs)
    obs, _ = alone.reset(seed=11)
    row = torch.from_numpy(lanes.reset([11, 12]))
    encoder = Encoder(layout_of(lanes.observation_space), 8)
    (image,) = encoder.obs_layout.images
    assert image.scale == scale
    assert image.channels_first is False
    (pixels,) = encoder.split(row)[1]
    np.testing.assert_array_equal(pixels[0], obs.astype(image.dtype))
    assert encoder._parts[0].outputs == convolutions
    params = encoder.init(torch.Generator().manual_seed(0))
    scaled = {**params, "image0.0.weight": params["image0.0.weight"] / scale}
    whole = encoder._parts[0](params, pixels)
    by_hand = Convolutions("image0", image._replace(scale=1.0))(scaled, pixels)
    torch.testing.assert_close(whole, by_hand, rtol=1e-4, atol=1e-4)
    step = lanes.step(np.zeros(2, np.int64))
    np.testing.assert_array_equal(
        encoder.split(torch.from_numpy(step.obs))[1][0][0],
        alone.step(0)[0].astype(image.dtype),
    )


def test_small_images_are_vectors_without_convolutions_and_beside_a_larger_one():
    assert images_in(box(10, 10, 4)) == [None]
    both = gym.spaces.Dict(a=box(40, 40, 3), b=box(10, 10, 4))
    assert ObservationRows(both, "toy").layout == ObsLayout(400, (Image((40, 40, 3), False),))
    lanes = make_lanes(EnvSpec(f"{__name__}:Pixels", {"shape": (10, 10, 4)}), [0], 0)
    assert lanes.reset().shape == (1, 400)


def test_real_pixels_lie_at_any_byte_and_must_be_finite():
    rows = ObservationRows(
        gym.spaces.Tuple((box(37, 37), box(36, 36, 2, dtype=np.float32, high=2))), "toy"
    )
    depth = np.linspace(0, 2, 36 * 36 * 2, dtype=np.float32).reshape(36, 36, 2)
    row = rows.pack((np.ones((37, 37), np.uint8), depth))
    encoder = Encoder(rows.layout, 4)
    for several in (row[None], np.stack([row, row])):
        np.testing.assert_array_equal(encoder.split(torch.from_numpy(several))[1][1][-1], depth)
    depth[3, 4, 1] = np.inf
    with pytest.raises(RolloutError, match="an observation with inf"):
        rows.pack((np.ones((37, 37), np.uint8), depth))


def test_a_batch_is_flattened_as_gymnasium_flattens_each_observation():
    inner = {"b": gym.spaces.Discrete(3, start=-1), "a": gym.spaces.Box(-1.0, 1.0, (2, 2))}
    parts = {"flags": gym.spaces.MultiBinary((2, 3)), "in": gym.spaces.Dict(inner)}
    space = gym.spaces.Dict({**parts, "scalar": gym.spaces.Box(0.0, 1.0, ())})
    space.seed(0)
    single = [space.sample() for _ in range(4)]
    batch = {name: np.stack([obs[name] for obs in single]) for name in ("flags", "scalar")}
    batch["in"] = {name: np.stack([obs["in"][name] for obs in single]) for name in inner}
    expected = [gym.spaces.flatten(space, obs) for obs in single]
    assert np.array_equal(flatten_batch(space, batch), expected)
    states = flatten_batch(gym.spaces.Discrete(4, start=2), np.array([2, 5]))
    assert states.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize("obs", [{"a": np.zeros(2)}, np.zeros(2), None])
def test_an_observation_without_a_key_of_its_space_says_so(obs):
    space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,)), b=gym.spaces.Box(-1, 1, (1,)))
    with pytest.raises(RolloutError, match=r"key '[ab]', and an observation lacks it: .*; return"):
        list(entries(space, obs))


def test_images_have_their_keys():
    inner = gym.spaces.Dict(left=box(36, 36, 3), speed=gym.spaces.Discrete(2))
    space = gym.spaces.Dict(robot=inner, top=gym.spaces.Tuple((box(40, 40), box(3))))
    assert ObservationRows(space, "toy").image_keys == ["robot.left", "top.0"]
    assert ObservationRows(box(36, 36, 3), "toy").image_keys == [""]
