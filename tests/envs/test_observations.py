"""Observations with images lie in rows of bytes."""

import gymnasium as gym
import numpy as np
import pytest

from walle.envs import EnvSpec, make_lanes
from walle.envs.observations import ObservationRows, flatten_batch, has_image, image_of
from walle.envs.probe import probe
from walle.errors import ConfigError, RolloutError
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
        (box(84, 84, 3, dtype=np.float32), None),
        (box(84, 84, 3, high=1), None),
        (box(128), None),
    ],
)
def test_what_counts_as_an_image(space, chw):
    image = image_of(space)
    assert (image and image.chw) == chw
    assert has_image(gym.spaces.Dict(a=gym.spaces.Tuple((space,)))) == (chw is not None)


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


@pytest.mark.parametrize(
    "space", [box(84, 84, 3, dtype=np.float32), box(4, 96, 96, 3), box(40, 40, 40, high=9)]
)
def test_what_looks_like_an_image_is_not_flattened_without_a_word(space, monkeypatch):
    made = gym.make("CartPole-v1")
    made.observation_space = space
    monkeypatch.setattr(gym, "make", lambda *_, **__: made)
    with pytest.raises(ConfigError, match=r"look like images, but .* wrap the environment"):
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
