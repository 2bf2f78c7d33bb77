import shutil

import pytest
import torch

from walle.learning.fixed_batch import FixedBatch

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
SMALL = ("env=hopper", "batch_size=256", "sampler.lanes=8", "algo.minibatch_size=24")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("rows", "expected"), [(1, 0), (256, 0), (700, 0), (1100, 20_000)])
def test_blocks_of_any_number_of_rows(rows, expected):
    torch.manual_seed(0)
    vector, x = torch.randn(5), torch.randn(rows, 5)
    blocks = FixedBatch(lambda v, x: (x * v).sum(-1), vector, 5, expected)
    torch.testing.assert_close(blocks(vector, x), (x * vector).sum(-1))
