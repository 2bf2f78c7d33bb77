import shutil

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from walle.learning import compiled
from walle.learning import onednn as products
from walle.learning.compiled import compile_function
from walle.learning.onednn import SECOND_SIDE

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
SMALL = ("env=hopper", "batch_size=256", "sampler.lanes=8", "algo.minibatch_size=24")


def test_a_sum_over_many_rows_stays_with_torch():
    """In the gradient of a layer's weights: a sum over twice its inputs is a long one."""

    def gradient(x, g):
        return (g.T @ x,)

    found = {}
    for rows in (256, 511, 512, 1024):
        x, g = torch.zeros(rows, 256), torch.zeros(rows, 256)
        table = {torch.ops.aten.mm.default: products._mm}
        graph = make_fx(gradient, decomposition_table=table)(x, g).graph
        found[rows] = any("walle.linear" in str(node.target) for node in graph.nodes)
    assert found == {256: True, 511: True, 512: False, 1024: False}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("side", [SECOND_SIDE, SECOND_SIDE // 2])
def test_large_products_go_another_way_to_the_same_numbers(side, monkeypatch):
    torch.manual_seed(0)
    x, w, b = torch.randn(200, side), torch.randn(64, side) / side, torch.randn(64)

    def layer(x, w, b):
        def loss(w, x):
            return torch.nn.functional.linear(x, w, b).relu().square().sum()

        return torch.func.grad(loss, argnums=(0, 1))(w, x)

    monkeypatch.setattr(products, "is_quicker", lambda _: True)
    graph = compiled._trace(layer, (x, w, b))
    large = [node for node in graph.graph.nodes if "walle.linear" in str(node.target)]
    assert len(large) == (3 if side == SECOND_SIDE else 0)
    fast = compile_function(layer, (x, w, b))(x, w, b)
    torch.testing.assert_close(fast, list(layer(x, w, b)), atol=1e-3, rtol=1e-4)
