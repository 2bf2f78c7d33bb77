import numpy as np
import pytest
import torch

from walle.learning.trust_region import conjugate_gradient, full_step, hessian_product, line_search
from walle.nets.policies import CategoricalPolicy, GaussianPolicy

SEARCH = {"accept_ratio": 0.1, "shrink": 0.5, "tries": 10}


def positive_definite(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return root @ root.T + torch.eye(size, dtype=torch.float64)


def vec(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
def test_conjugate_gradient_solves_a_random_system(seed):
    matrix = positive_definite(20, seed)
    b = torch.randn(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = conjugate_gradient(lambda v: matrix @ v, b, iterations=60, tolerance=1e-24)
    assert (x - torch.linalg.solve(matrix, b)).abs().max() < 1e-8


def test_conjugate_gradient_by_hand():
    # [[4, 1], [1, 3]] x = [1, 2] is solved by [1/11, 7/11], after as many steps as dimensions
    matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    x = conjugate_gradient(lambda v: matrix @ v, vec(1, 2), iterations=2)
    assert x.tolist() == pytest.approx([1 / 11, 7 / 11])


def test_conjugate_gradient_solves_small_systems_as_well_as_large_ones():
    x = conjugate_gradient(lambda v: 2 * v, vec(1e-9, 2e-9), iterations=2)
    assert x.tolist() == pytest.approx([5e-10, 1e-9], abs=0)


def test_conjugate_gradient_of_nothing_is_nothing():
    assert conjugate_gradient(lambda v: v, vec(0, 0), iterations=5).tolist() == [0.0, 0.0]


def test_hessian_product_by_hand():
    # f = x² y: H = [[2 y, 2 x], [2 x, 0]] = [[6, 4], [4, 0]] at (2, 3)
    product = hessian_product(lambda v: v[0] ** 2 * v[1], vec(2, 3), damping=0.5)
    assert product(vec(1, 10)).tolist() == [6 + 40 + 0.5, 4 + 5.0]


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_fisher_is_the_covariance_of_the_score(kind):
    """E[∇ log π ∇ log πᵀ], summed exactly or over many draws, against the Hessian of the KL."""
    generator = torch.Generator().manual_seed(0)
    if kind == "gaussian":
        policy = GaussianPolicy(2, 1, (3,), torch.tanh, -0.5)
    else:
        policy = CategoricalPolicy(2, 3, (3,), torch.tanh)
    vector = 0.5 * torch.randn(policy.layout.size, generator=generator, dtype=torch.float64)
    obs = torch.tensor([[0.3, -0.8]], dtype=torch.float64)
    old = policy.dist(policy.layout.unflatten(vector), obs)

    def kl(v):
        return policy.kl(old, policy.dist(policy.layout.unflatten(v), obs)).mean()

    if kind == "gaussian":  # Gauss-Hermite quadrature is exact for polynomials of the draw
        draws, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(5))
        actions, weights = old[0, :1] + old[0, 1:].exp() * draws[:, None], weights / weights.sum()
    else:
        actions, weights = torch.arange(3), old[0].exp()
    expected = torch.zeros(len(vector), len(vector), dtype=torch.float64)
    for action, weight in zip(actions, weights, strict=True):

        def log_prob(v, action=action):
            return policy.log_prob(policy.dist(policy.layout.unflatten(v), obs), action[None]).sum()

        score = torch.func.grad(log_prob)(vector)
        expected += weight * torch.outer(score, score)
    product = hessian_product(kl, vector, damping=0.0)
    found = torch.stack([product(e) for e in torch.eye(len(vector), dtype=torch.float64)])
    torch.testing.assert_close(found, expected)


def quadratic(size=6):
    """A linear loss g·θ, a KL of ½ θᵀ F θ around 0, and the best loss where the KL is δ."""
    matrix = positive_definite(size)
    gradient = torch.linspace(-1, 1, size, dtype=torch.float64)
    best = -torch.sqrt(2 * 0.01 * gradient @ torch.linalg.solve(matrix, gradient))
    return (lambda v: gradient @ v), (lambda v: 0.5 * v @ matrix @ v), gradient, matrix, best


def test_the_step_reaches_the_known_optimum_and_keeps_the_bound():
    loss, kl, gradient, _, best = quadratic()
    start = torch.zeros(6, dtype=torch.float64)
    product = hessian_product(kl, start, damping=1e-7)
    step, expected = full_step(gradient, product, max_kl=0.01, iterations=20)
    found = line_search(loss, kl, start, step, max_kl=0.01, expected=expected, **SEARCH)
    assert found.fraction == 1.0
    assert found.kl <= 0.01
    assert found.kl == pytest.approx(0.01, rel=1e-4)
    assert found.loss == pytest.approx(float(best), rel=1e-4)
    assert expected == pytest.approx(-float(best), rel=1e-4)


def test_damping_shortens_the_step():
    _, kl, gradient, _, _ = quadratic()
    start = torch.zeros(6, dtype=torch.float64)
    product = hessian_product(kl, start, damping=1.0)
    step, _ = full_step(gradient, product, max_kl=0.01, iterations=20)
    assert 0 < float(kl(step)) < 0.009


def test_the_search_steps_back_until_the_bound_holds():
    # KL(θ) = θ⁴ ≤ 0.01 needs |θ| ≤ 0.316: of 1, 0.5, 0.25 the third
    found = line_search(
        lambda v: v.sum(), lambda v: (v**4).sum(), vec(0), vec(-1), max_kl=0.01, expected=1.0,
        **SEARCH,
    )  # fmt: skip
    assert (found.fraction, found.vector.item()) == (0.25, -0.25)
    assert found.kl == 0.25**4


def test_the_search_steps_back_until_the_loss_falls_as_it_should():
    # loss θ² - θ falls by 0 over a step of 1 and by 0.25 over 0.5, where 0.5 was promised
    found = line_search(
        lambda v: (v**2 - v).sum(), lambda v: 0 * v.sum(), vec(0), vec(1), max_kl=1.0,
        expected=1.0, **SEARCH,
    )  # fmt: skip
    assert found.fraction == 0.5
    assert found.loss == -0.25


def test_a_search_that_fails_gives_the_old_parameters_back():
    start = torch.randn(5, dtype=torch.float32)
    found = line_search(
        lambda v: (v - start).abs().sum(), lambda v: 0 * v.sum(), start, torch.ones(5), max_kl=1.0,
        expected=1.0, **SEARCH,
    )  # fmt: skip
    assert found.vector is start
    assert found.fraction == found.kl == 0.0


def test_no_gradient_no_step():
    _, kl, _, _, _ = quadratic()
    zero = torch.zeros(6, dtype=torch.float64)
    step, expected = full_step(
        zero, hessian_product(kl, zero, damping=0.1), max_kl=0.01, iterations=10
    )
    assert not step.any()
    assert expected == 0.0


def search(loss, kl=lambda v: 0 * v.sum(), *, expected=1.0, **changed):
    """From 0 in one dimension, with a full step of 1."""
    options = {**SEARCH, "max_kl": 1.0, **changed}
    return line_search(loss, kl, vec(0), vec(1), expected=expected, **options)


def test_the_search_tries_the_full_step_first():
    found = search(lambda v: -v.sum(), tries=1)
    assert (found.fraction, found.vector.item(), found.loss) == (1.0, 1.0, -1.0)


def test_a_step_that_just_keeps_its_promises_is_taken():
    # the KL is the bound itself, and the loss falls by all that was promised
    found = search(lambda v: -v.sum(), lambda v: v.sum(), accept_ratio=1.0)
    assert (found.fraction, found.kl) == (1.0, 1.0)


def test_a_step_that_gains_nothing_is_not_taken():
    found = search(lambda v: 0 * v.sum(), expected=0.0)
    assert (found.fraction, found.vector.item()) == (0.0, 0.0)


def test_a_search_that_fails_tells_the_loss_where_it_began():
    assert search(lambda v: 3 + v.sum()).loss == 3.0
