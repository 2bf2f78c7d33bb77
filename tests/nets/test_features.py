import math

import numpy as np
import pytest
import torch

from walle.nets.features import Encoder
from walle.nets.mlp import Layout
from walle.nets.normalize import normalize_into
from walle.nets.policies import CategoricalPolicy, FeaturePolicy, encoder_of
from walle.sampling.actor import Actor
from walle.types import Image, ObsLayout, PolicySnapshot

GREY = ObsLayout(0, (Image((1, 36, 40), True),))
MIXED = ObsLayout(3, (Image((36, 36, 3), False), Image((40, 36), False)))


def drawn(encoder, seed=0):
    return encoder.init(torch.Generator().manual_seed(seed))


def rows_of(layout, count, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (count, layout.width)).astype(np.uint8)
    layout.vectors(rows)[:] = rng.normal(size=(count, layout.vector))
    return rows


def test_it_has_the_size_of_the_network_of_mnih_et_al():
    atari = ObsLayout(0, (Image((84, 84, 4), False),))
    shapes = Encoder(atari, 512).shapes
    convolutions = 32 * (4 * 64 + 1) + 64 * (32 * 16 + 1) + 64 * (64 * 9 + 1)
    assert sum(map(math.prod, shapes.values())) == convolutions + 512 * (7 * 7 * 64 + 1)


def test_it_computes_what_torchs_modules_compute():
    encoder = Encoder(GREY, 20)
    params = drawn(encoder)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 8, 4), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 4, 2),
        torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, 1), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(64 * 1 * 1, 20), torch.nn.ReLU(),
    )  # fmt: skip
    module.load_state_dict(dict(zip(module.state_dict(), params.values(), strict=True)))
    rows = torch.from_numpy(rows_of(GREY, 5))
    expected = module(rows.view(5, 1, 36, 40) / 255)
    torch.testing.assert_close(encoder(params, rows), expected)


def test_initial_weights_are_orthogonal_with_gain_sqrt_2_and_biases_zero():
    params = drawn(Encoder(GREY, 64))
    last = params["image0.1.weight"].flatten(1)
    torch.testing.assert_close(last @ last.T, 2 * torch.eye(64), atol=1e-5, rtol=0)
    assert not any(x.any() for name, x in params.items() if name.endswith("bias"))


def test_where_the_channels_stand_does_not_matter():
    first, last = (
        ObsLayout(0, (Image(s, f),)) for s, f in (((3, 36, 40), True), ((36, 40, 3), False))
    )
    params = drawn(Encoder(first, 8))
    picture = torch.randint(0, 256, (2, 3, 36, 40), dtype=torch.uint8)
    one = Encoder(first, 8)(params, picture.flatten(1))
    other = Encoder(last, 8)(params, picture.permute(0, 2, 3, 1).flatten(1))
    torch.testing.assert_close(one, other)


def test_features_of_a_mixed_row_are_those_of_each_image_and_the_vector():
    encoder = Encoder(MIXED, 8)
    assert encoder.width == 8 + 8 + 3
    params = drawn(encoder)
    rows = torch.from_numpy(rows_of(MIXED, 4))
    vectors, (camera, depth) = encoder.split(rows)
    found = encoder(params, rows)
    assert found.shape == (4, 19)
    torch.testing.assert_close(found[:, 16:], vectors)
    black = encoder.of_parts(params, vectors, [torch.zeros_like(camera), depth])
    assert (black[:, :8] == 0).all()  # biases are zero
    torch.testing.assert_close(black[:, 8:], found[:, 8:])
    torch.testing.assert_close(encoder.in_chunks(params, rows.repeat(100, 1))[-4:], found)


def test_the_gradient_reaches_every_parameter():
    encoder = Encoder(MIXED, 8)
    layout = Layout(encoder.shapes)
    vector = layout.flatten(drawn(encoder)).requires_grad_()
    rows = torch.from_numpy(rows_of(MIXED, 4))
    encoder(layout.unflatten(vector), rows).square().sum().backward()
    reached = layout.unflatten(vector.grad)
    assert all(x.abs().sum() > 0 for x in reached.values())


@pytest.mark.parametrize("layout", [GREY, MIXED])
def test_a_lane_acts_alike_in_whichever_sampler_it_lives(layout):
    encoder = Encoder(layout, 32)
    readout = CategoricalPolicy(encoder.width, 4, (), torch.relu)
    policy = FeaturePolicy(readout, encoder=encoder)
    parameters = policy.init(torch.Generator().manual_seed(1)).numpy()
    mean, inv_std = np.full(layout.vector, 0.5, np.float32), np.full(layout.vector, 2, np.float32)
    snapshot = PolicySnapshot.of([parameters * 3], mean, inv_std)
    rows = rows_of(layout, 21)

    def acts(columns):
        actor = Actor(policy, layout.width, len(columns), 10.0)
        actor.load(snapshot)
        return actor.dist_params(rows[columns]).clone().numpy()

    together = acts(list(range(21)))
    for columns in ([0], [20], [3, 2], list(range(5, 18)), list(range(20, -1, -1))):
        np.testing.assert_array_equal(acts(columns), together[columns])
    params = policy.layout.unflatten(torch.from_numpy(parameters * 3))
    normalized = rows.copy()
    normalize_into(layout.vectors(normalized), layout.vectors(rows), mean, inv_std, 10.0)
    expected = policy.dist(params, encoder(params, torch.from_numpy(normalized)))
    np.testing.assert_allclose(together, expected.numpy(), atol=1e-4)


def test_a_policy_of_vectors_has_no_encoder():
    assert encoder_of(CategoricalPolicy(3, 2, (4,), torch.tanh)) is None
