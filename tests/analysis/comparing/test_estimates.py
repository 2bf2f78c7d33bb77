"""Intervals of comparisons: numbers by hand, and how often they hold the truth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from walle.analysis.comparing import estimates
from walle.analysis.comparing.estimates import Estimate, Seeded, Sides
from walle.analysis.measuring.stats import Interval

T_2 = 4.302653  # Student's t with 2 degrees of freedom, 97.5%


def two(a: list[float], b: list[float], *, paired: bool = False) -> Sides:
    return Sides(np.array(a), np.array(b), paired)


def test_the_difference_of_independent_runs_is_welchs() -> None:
    found = estimates.difference(two([1.0, 2.0, 3.0], [2.0, 6.0]))
    # Means 2 and 4, variances 1 and 8, so 1/3 + 8/2 and (13/3)^2 / ((1/3)^2/2 + 4^2/1).
    assert found.value == 2.0
    assert found.variance == pytest.approx(13 / 3)
    assert found.dof == pytest.approx((13 / 3) ** 2 / (1 / 18 + 16))


def test_the_difference_of_pairs_is_students() -> None:
    found = estimates.difference(two([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], paired=True))
    assert found == (2.0, pytest.approx(1 / 3), 2)  # differences 1, 2, 3
    half = T_2 / math.sqrt(3)
    assert found.interval() == pytest.approx((2.0, 2 - half, 2 + half))


def test_the_ratio_is_of_the_means_with_relative_deviations() -> None:
    found = estimates.log_ratio(two([1.0, 3.0], [8.0, 8.0]))
    assert math.exp(found.value) == pytest.approx(4.0)
    assert found.variance == pytest.approx(0.5 / 2)  # A over its mean: 0.5 and 1.5
    assert found.dof == 1


def test_pooled_ratios_share_the_variance_of_all_tasks() -> None:
    tasks = [two([0.9, 1.1], [2.0, 2.0]), two([10.0, 10.0], [29.0, 31.0])]
    first, second = estimates.pooled_log_ratios(tasks)
    one = (2 * 0.1**2 + 2 * (1 / 30) ** 2) / 4
    assert first == pytest.approx((math.log(2), one, 4))
    assert second == pytest.approx((math.log(3), one, 4))
    both = estimates.overall([first, second], pooled=True)
    assert both == pytest.approx((math.log(6) / 2, one / 2, 4))


def test_pooled_ratios_of_pairs() -> None:
    (found,) = estimates.pooled_log_ratios([two([1.0, 3.0], [3.0, 9.0], paired=True)])
    assert found == pytest.approx((math.log(3), 0.0, 1))


def test_over_tasks_variances_add_and_satterthwaite_counts() -> None:
    found = estimates.overall([Estimate(1.0, 4.0, 2.0), Estimate(3.0, 12.0, 4.0)])
    assert found == pytest.approx((2.0, 4.0, 4.0**2 / (1.0 / 2 + 9.0 / 4)))


def test_probability_of_improvement_counts_all_pairs_and_half_of_the_ties() -> None:
    both = two([1.0, 2.0], [2.0, 3.0, 0.0])  # 2: wins, ties; 3: wins twice; 0: loses twice
    assert estimates.improvement([both]).value == pytest.approx(3.5 / 6)
    assert estimates.improvement([both], higher=False).value == pytest.approx(2.5 / 6)
    other = two([0.0, 0.0], [1.0, 1.0])
    assert estimates.improvement([both, other]).value == pytest.approx((3.5 / 6 + 1) / 2)


def test_the_interval_of_a_probability_holds_what_is_t_deviations_away() -> None:
    both = two([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    value, low, high = estimates.improvement([both])
    assert (value, high) == (1.0, 1.0)
    grows = (1 - low) / (2 - low) + low / (1 + low)  # Newcombe 2006, method 5; (3 + 3) / 2 - 1 = 2
    deviation = math.sqrt(low * (1 - low) * (1 + 2 * grows) / 9)
    assert 1 - low == pytest.approx(2.776445 * deviation)
    swapped = estimates.improvement([Sides(both.b, both.a)])
    assert swapped == pytest.approx((0.0, 0.0, 1 - low))


def test_a_single_run_has_no_interval() -> None:
    alone = two([1.0], [3.0])
    assert estimates.difference(alone).value == 2.0
    for interval in (estimates.difference(alone).interval(), estimates.improvement([alone])):
        assert math.isnan(interval.low)
        assert math.isnan(interval.high)
    (found,) = estimates.pooled_log_ratios([alone])
    assert math.isnan(found.interval(math.exp).low)


def test_identical_sides() -> None:
    both = two([1.0, 2.0], [1.0, 2.0], paired=True)
    assert both.identical
    assert estimates.difference(both).interval() == (0.0, 0.0, 0.0)
    assert estimates.improvement([both]).value == 0.5
    assert math.isnan(estimates.improvement([both]).low)
    assert not two([1.0, 2.0], [1.0, 2.0]).identical


def test_seeds_are_paired_where_both_sides_have_them() -> None:
    a: Seeded = {(0, 0): 1.0, (1, 0): 2.0}
    b: Seeded = {(1, 0): 20.0, (0, 0): 10.0}
    found = estimates.sides(a, b, shared=True)
    assert found.paired
    assert found.b.tolist() == [10.0, 20.0]
    assert not estimates.sides(a, b, shared=False).paired
    assert not estimates.sides(a, {(0, 0): 1.0}, shared=True).paired


def test_the_same_runs_again_count_once() -> None:
    a: Seeded = {(0, 0): 1.0, (1, 0): 2.0}
    b: Seeded = {(0, 0): 5.0}
    more: Seeded = {(0, 0): 5.0, (2, 0): 6.0}
    assert estimates.merged([(a, b), (a, more)]) == {0: (a, more)}
    other: Seeded = {(0, 0): 1.5, (1, 0): 2.0}
    apart: Seeded = {(0, 0): 7.0}
    assert estimates.merged([(a, b), (other, apart)]) == {0: (a, b), 1: (other, apart)}


def test_one_side_that_is_the_same_again_counts_once() -> None:
    a: Seeded = {(0, 0): 1.0, (1, 0): 2.0}
    other: Seeded = {(0, 0): 1.5, (1, 0): 2.5}
    b: Seeded = {(0, 0): 5.0, (1, 0): 6.0}
    both = {(0, 0): 1.0, (1, 0): 2.0, (0, 1): 1.5, (1, 1): 2.5}
    assert estimates.merged([(a, b), (other, b), (a, b)]) == {0: (both, b)}


def test_times_of_one_seed_are_averaged_over_the_numbers_of_samplers() -> None:
    pairs: list[tuple[Seeded, Seeded]] = [
        ({(0, 0): 1.0, (1, 0): 5.0}, {(0, 0): 2.0}),
        ({(0, 0): 3.0}, {(0, 0): 4.0}),
    ]
    assert estimates.averaged(pairs) == ({(0, 0): 2.0, (1, 0): 5.0}, {(0, 0): 3.0})


def share_that_holds(
    truth: float, draw: Callable[[np.random.Generator], Interval], times: int = 600
) -> float:
    rng = np.random.default_rng(0)
    found = [draw(rng) for _ in range(times)]
    return sum(i.low <= truth <= i.high for i in found) / times


QUICKEST = ((1, 3), (3, 2))


@pytest.mark.parametrize(
    ("tasks", "runs"),
    [
        pytest.param(*each, marks=() if each in QUICKEST else pytest.mark.slow)
        for each in itertools.product((1, 3, 6), (2, 3, 5))
    ],
)
def test_intervals_hold_the_truth(tasks: int, runs: int) -> None:
    """95% of 600 draws, with three standard deviations of such a share to spare."""

    def drawn(rng: np.random.Generator) -> list[Sides]:
        normal = rng.standard_normal((tasks, 2, runs))
        return [Sides(100 + 10 * a, 130 + 20 * b) for a, b in normal]

    def speeds(rng: np.random.Generator) -> list[Sides]:
        factors = np.exp(0.1 * rng.standard_normal((tasks, 2, runs)))
        return [Sides(100 * a, 130 * b) for a, b in factors]

    def pairs(rng: np.random.Generator) -> list[Sides]:
        shared = 20 * rng.standard_normal((tasks, runs))
        noise = rng.standard_normal((tasks, 2, runs))
        return [Sides(s + a, 3 + s + b, True) for s, (a, b) in zip(shared, noise, strict=True)]

    def of_difference(sides: list[Sides]) -> Interval:
        return estimates.overall([estimates.difference(both) for both in sides]).interval()

    def of_ratio(sides: list[Sides]) -> Interval:
        ratios = estimates.pooled_log_ratios(sides)
        return estimates.overall(ratios, pooled=True).interval(math.exp)

    least = 0.95 - 3 * math.sqrt(0.95 * 0.05 / 600)
    better = 0.5 * (1 + math.erf(30 / math.sqrt(10**2 + 20**2) / math.sqrt(2)))
    assert share_that_holds(30.0, lambda rng: of_difference(drawn(rng))) > least
    assert share_that_holds(3.0, lambda rng: of_difference(pairs(rng))) > least
    assert share_that_holds(1.3, lambda rng: of_ratio(speeds(rng))) > least
    assert share_that_holds(better, lambda rng: estimates.improvement(drawn(rng)), 200) > 0.9


def test_improvement_on_reported_returns_by_hand() -> None:
    """One of ours at the mean, one a deviation above: (0.5 + 0.8413) / 2; tasks count equally."""
    one = (np.array([10.0, 12.0]), estimates.Reported(10.0, 2.0, 10))
    other = (np.array([-50.0, -50.0]), estimates.Reported(10.0, 2.0, 10))
    assert estimates.improvement_on_reported([one]).value == pytest.approx(0.67067, abs=1e-5)
    both = estimates.improvement_on_reported([one, other])
    assert both.value == pytest.approx(0.33534, abs=1e-5)
    assert both.low < both.value < both.high
    alone = estimates.improvement_on_reported([(np.array([12.0]), one[1])])
    assert math.isnan(alone.low)
    equal = (np.array([10.0, 10.0, 12.0, 9.0]), estimates.Reported(10.0, 0.0, 10))
    assert estimates.improvement_on_reported([equal]).value == 0.5  # (0.5 + 0.5 + 1 + 0) / 4


def test_its_interval_holds_the_true_probability() -> None:
    """Ours are drawn from N(1, 1), and theirs from N(0, 1): ours are above with 0.7602."""

    def reported(rng: np.random.Generator) -> tuple[np.ndarray, estimates.Reported]:
        theirs = rng.normal(0, 1, 10)
        return rng.normal(1, 1, 10), estimates.Reported(theirs.mean(), theirs.std(ddof=1), 10)

    true = 0.7602
    assert (
        share_that_holds(true, lambda rng: estimates.improvement_on_reported([reported(rng)]), 300)
        > 0.93
    )
