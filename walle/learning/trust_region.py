"""The natural-gradient step of TRPO: pure functions of one flat parameter vector.

Schulman et al. 2015, "Trust Region Policy Optimization", section 6 and appendix C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, jvp

Product = Callable[[Tensor], Tensor]
Scalar = Callable[[Tensor], Tensor]


def conjugate_gradient(
    product: Product, b: Tensor, iterations: int, tolerance: float = 1e-10
) -> Tensor:
    """Solves A x = b for a symmetric positive definite A (Hestenes & Stiefel 1952).

    Args:
        product: x -> A x, [P] -> [P].
        b: [P].
        iterations: the most iterations; P iterations solve it exactly, except for rounding.
        tolerance: ends earlier, when |b - A x|² is at most `tolerance` |b|².
    """
    x = torch.zeros_like(b)
    residual, direction = b.clone(), b.clone()
    squared = residual @ residual
    enough = tolerance * squared
    for _ in range(iterations):
        if squared <= enough:
            break
        image = product(direction)
        step = squared / (direction @ image)
        x = x + step * direction
        residual = residual - step * image
        before, squared = squared, residual @ residual
        direction = residual + squared / before * direction
    return x


def hessian_product(function: Scalar, vector: Tensor, damping: float) -> Product:
    """The function v -> (H + damping I) v, where H is the Hessian of `function` at `vector` ([P]).

    Forward over reverse differentiation: one tangent is pushed through the gradient, and H is never
    formed. If `function` is the mean KL divergence from the policy at `vector`, H is Fisher's
    information matrix.
    """
    gradient = grad(function)

    def product(v: Tensor) -> Tensor:
        image: Tensor = jvp(gradient, (vector,), (v,))[1]
        return image + damping * v

    return product


class LineSearchResult(NamedTuple):
    """The result of a line search."""

    vector: Tensor  # [P] the new parameters; the old parameters if no step was accepted
    fraction: float  # the accepted fraction of the full step; 0 if no step was accepted
    loss: float  # the loss at `vector`
    kl: float  # the KL divergence at `vector`


def line_search(
    loss: Scalar,
    kl: Scalar,
    vector: Tensor,
    step: Tensor,
    *,
    max_kl: float,
    expected: float,
    accept_ratio: float,
    shrink: float,
    tries: int,
) -> LineSearchResult:
    """Finds the longest of `step`, `shrink` `step`, `shrink`² `step`, ... that is acceptable.

    After an accepted step the KL divergence is at most `max_kl`, and the loss has fallen by at
    least `accept_ratio` of the fall that the gradient predicts for this step.

    Args:
        loss: the loss to minimise, [P] -> [].
        kl: divergence from the policy at `vector`, [P] -> [].
        vector: [P] the first parameters.
        step: [P] the full step.
        max_kl: bound of the divergence.
        expected: fall of the loss over the full step, to first order.
        accept_ratio: the required fraction of the expected fall.
        shrink: factor from one try to the next.
        tries: the most tries.
    """
    before = float(loss(vector))
    fraction = 1.0
    for _ in range(tries):
        candidate = vector + fraction * step
        after, distance = float(loss(candidate)), float(kl(candidate))
        enough = accept_ratio * fraction * expected
        if distance <= max_kl and before - after >= enough and before > after:
            return LineSearchResult(candidate, fraction, after, distance)
        fraction *= shrink
    return LineSearchResult(vector, 0.0, before, 0.0)


def full_step(
    gradient: Tensor, product: Product, *, max_kl: float, iterations: int
) -> tuple[Tensor, float]:
    """The step that minimises the linearised loss subject to a quadratic KL of at most `max_kl`.

    s = -√(2 δ / gᵀ F⁻¹ g) F⁻¹ g (appendix C).

    Args:
        gradient: g [P], the gradient of the loss.
        product: the function v -> F v.
        max_kl: δ.
        iterations: the most iterations of the conjugate gradient.

    Returns:
        s [P] and the fall of the loss over s, to first order; zeros if the gradient is zero.
    """
    direction = conjugate_gradient(product, -gradient, iterations)
    curvature = direction @ product(direction)
    if curvature <= 0:
        return torch.zeros_like(gradient), 0.0
    step = torch.sqrt(2 * max_kl / curvature) * direction
    return step, float(-gradient @ step)
