"""Normalisation in C++ gives the numbers of NumPy and the bits of PyTorch."""

import math
import shutil

import numpy as np
import pytest
import torch

from walle.algos.on_policy.experience import normalized
from walle.learning.native.normalize import NativeNormalizer
from walle.nets.normalize import batch_moments
from walle.types import ObsLayout

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.mark.parametrize("shape", [(1, 3), (1000, 17), (37, 348)])
def test_the_moments_are_those_of_numpy(shape):
    samples = np.random.default_rng(0).normal(5, 2, shape).astype(np.float32)
    found, expected = NativeNormalizer().moments(samples), batch_moments(samples)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("clip", [1.5, None])
@pytest.mark.parametrize("rows", [(100, 7), (5, 0), (16, 16)])
@pytest.mark.parametrize("width", [1, 3, 17])
def test_observations_are_normalised_to_the_bits_of_torch(clip, rows, width):
    draw = np.random.default_rng(0).normal
    parts = [draw(5, 2, (count, width)).astype(np.float32) for count in rows]
    parts[0][1, 0] = math.nan
    moments = [draw(1, 0.1, width).astype(np.float32) for _ in ("mean", "inv_std")]
    expected = normalized(ObsLayout(width), parts, *moments, clip)
    found = NativeNormalizer().normalized(parts, *moments, clip)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("mean", "inv_std", "width"), [(2, 2, 3), (6, 6, 3), (3, 2, 3), (3, 6, 3)])
def test_moments_of_another_length_are_refused(mean, inv_std, width):
    rows, moments = np.zeros((5, width), np.float32), (np.zeros(mean), np.ones(inv_std))
    with pytest.raises(ValueError, match=r"expected the shape \[N, \d\], got"):
        NativeNormalizer().normalized([rows], *moments, None)


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4)])
def test_samples_that_are_no_rows_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected the shape \[N, \d\], got"):
        NativeNormalizer().moments(np.zeros(shape, np.float32))
