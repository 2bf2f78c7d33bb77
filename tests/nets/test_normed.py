import math

import pytest
import torch

from walle.nets.mlp import MLP, Layout
from walle.nets.normed import NormedMLPs


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def two(hidden=(4, 3)):
    return [MLP(f"q{k}", (5, *hidden, 2), torch.relu) for k in range(2)]


def random_vector(nets, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(nets.layout.size, generator=generator, dtype=torch.float64)


def test_a_batch_by_hand():
    nets = NormedMLPs([MLP("net", (1, 1, 1), torch.relu)])
    # scale of the input; weight, scale and shift of the hidden layer; weight and bias
    assert list(nets.layout.shapes) == [
        *("net.0.scale", "net.0.weight"),
        *("net.1.scale", "net.1.shift", "net.1.weight", "net.1.bias"),
    ]
    vector = double([2.0, 3.0, 0.5, 0.25, 4.0, -1.0])
    output, moments = nets.train(vector, double([[1.0], [3.0]]))
    # the inputs have mean 2 and variance 1; normalised they are -+ s with mean 0, variance s²
    s = 2 / math.sqrt(1 + 1e-3)
    # three times that has mean 0 and variance 9 s²
    upper = 0.5 * 3 * s / math.sqrt(9 * s * s + 1e-3) + 0.25
    torch.testing.assert_close(output, double([[[-1.0], [4 * upper - 1]]]))
    assert nets.train(vector, double([[1.0], [3.0]]), rows=slice(1, 2))[0].equal(output[:, 1:])
    torch.testing.assert_close(moments, double([[[2.0, 0.0], [1.0, 9 * s * s]]]))


@pytest.mark.parametrize("hidden", [(4, 3), (4,), ()])
def test_constant_moments_fold_into_the_weights(hidden):
    mlps = two(hidden)
    nets = NormedMLPs(mlps)
    vector, x = random_vector(nets), torch.randn(6, 5, dtype=torch.float64)
    output, moments = nets.train(vector, x[:, :2], x[:, 2:])
    assert moments.shape == (2, 2, 5 + sum(hidden))
    folded = Layout({name: shape for mlp in mlps for name, shape in mlp.shapes.items()})
    params = folded.unflatten(nets.fold(vector, moments))
    for mlp, expected in zip(mlps, output, strict=True):
        torch.testing.assert_close(mlp(params, x), expected)


def test_the_gradient_flows_through_the_moments():
    nets = NormedMLPs([MLP("net", (5, 4, 3, 2), torch.tanh)])
    vector, x = random_vector(nets).requires_grad_(), torch.randn(6, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda v: nets.train(v, x)[0], vector)
    assert not nets.train(vector, x)[1].requires_grad


def test_rows_without_outputs_are_constants():
    nets = NormedMLPs([MLP("net", (2, 3, 1), torch.tanh)])
    vector, x = random_vector(nets), torch.randn(6, 2, dtype=torch.float64)

    def normal(z):
        return (z - z.mean(0)) * (z.var(0, correction=0) + 1e-3).rsqrt()

    def output(v):
        own, other = nets.layout.unflatten(v), nets.layout.unflatten(vector)
        parts = ((own, slice(4)), (other, slice(4, None)))
        z = [normal(x)[rows] * p["net.0.scale"] @ p["net.0.weight"].T for p, rows in parts]
        h = torch.tanh(normal(torch.cat(z))[:4] * own["net.1.scale"] + own["net.1.shift"])
        return h @ own["net.1.weight"].T + own["net.1.bias"]

    expected, found = (
        torch.func.grad(lambda v, f=f: f(v).square().sum())(vector)
        for f in (output, lambda v: nets.train(v, x, rows=slice(4))[0])
    )
    torch.testing.assert_close(found, expected)


def test_weights_are_projected_to_unit_norm_and_nothing_else():
    nets = NormedMLPs(two())
    vector = random_vector(nets)
    before, after = (nets.layout.unflatten(x) for x in (vector, nets.project(vector)))
    for name, x in after.items():
        if not name.endswith("weight"):
            assert x.equal(before[name])
            continue
        length = before[name].square().sum(-1, keepdim=True).sqrt()
        torch.testing.assert_close(x, before[name] / length)


def test_initial_weights_are_orthogonal_and_of_unit_norm():
    nets = NormedMLPs(two())
    params = nets.layout.unflatten(nets.init(torch.Generator().manual_seed(0)))
    for name, x in params.items():
        if name.endswith("weight"):
            torch.testing.assert_close(x @ x.T, torch.eye(len(x)))
        else:
            assert (x == name.endswith("scale")).all()
    assert not params["q0.0.weight"].equal(params["q1.0.weight"])
    assert nets.initial_moments().tolist() == [[[0.0] * 12, [1.0] * 12]] * 2
