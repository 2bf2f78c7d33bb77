import numpy as np
import pytest
import torch

from walle.algos.on_policy.experience import normalized
from walle.types import Image, ObsLayout

MIXED = ObsLayout(3, (Image((40, 36, 3), channels_first=False), Image((36, 40), False)))


def test_only_the_vectors_of_rows_with_images_are_normalised():
    rows = np.random.default_rng(0).integers(0, 256, (3, MIXED.width)).astype(np.uint8)
    vectors = MIXED.vectors(rows)
    vectors[:] = np.arange(9).reshape(3, 3)
    mean, inv_std = np.float32([1, 2, 3]), np.float32([1, 0.5, 100])
    found = normalized(MIXED, [rows[:2], rows[2:]], mean, inv_std, 1.5).numpy()
    np.testing.assert_array_equal(found[:, 12:], rows[:, 12:])
    expected = ((vectors - mean) * inv_std).clip(-1.5, 1.5)
    np.testing.assert_array_equal(MIXED.vectors(found), expected)


@pytest.mark.parametrize("clip", [1.5, None])
def test_many_wide_rows_are_normalised_as_a_few_are(clip):
    rows, mean, inv_std = (
        np.random.default_rng(0).normal(size=shape).astype(np.float32)
        for shape in ((1000, 300), 300, 300)
    )
    found = normalized(ObsLayout(300), [rows], mean, inv_std, clip)
    expected = (rows - mean) * inv_std
    bounded = expected if clip is None else expected.clip(-clip, clip)
    assert torch.equal(found, torch.from_numpy(bounded))
