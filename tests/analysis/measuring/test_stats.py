"""Intervals of comparisons: numbers by hand, and how often they hold the truth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from walle.analysis.measuring import comparisons, stats
from walle.analysis.measuring.comparisons import Seeded
from walle.analysis.measuring.stats import Estimate, Interval, Sides
from walle.system.format import digits

# Computed with rliable 1.2.0, metrics.aggregate_iqm, in an environment of its own.
RLIABLE_IQM = {
    (10, 5): 0.06790107444483147,
    (7, 6): 0.2559909219414327,
    (25, 2): 0.05125484674061466,
    (4, 4): 0.0041559225293905655,
}
RLIABLE_SMALL = [
    [-0.891, -0.455, -0.992, 0.06],
    [1.34, -0.492, -0.62, 0.49],
    [0.357, 0.105, -0.93, -0.029],
    [0.695, -1.344, -0.458, -1.901],
    [-1.29, -1.842, -0.235, -1.267],
]


@pytest.mark.parametrize("shape", RLIABLE_IQM)
def test_iqm_agrees_with_rliable(shape: tuple[int, int]) -> None:
    scores = np.random.default_rng(sum(shape)).normal(size=shape)
    assert float(stats.iqm(scores)) == pytest.approx(RLIABLE_IQM[shape], abs=1e-12)


def test_iqm_agrees_with_rliable_on_a_literal_matrix() -> None:
    assert float(stats.iqm(RLIABLE_SMALL)) == pytest.approx(-0.5042, abs=1e-12)


def test_iqm_by_hand() -> None:
    assert float(stats.iqm([100, 1, 2, 3, 4, 5, 6, -50])) == (2 + 3 + 4 + 5) / 4
    assert float(stats.iqm([1, 2, 6])) == 3
    np.testing.assert_array_equal(
        stats.iqm([[1, 10], [2, 20], [3, 30], [99, -99]], axis=0), [2.5, 15]
    )


def test_stratified_bootstrap_agrees_with_rliable() -> None:
    """rliable: -0.2340 to 0.2763 from 20,000 resamples of these scores."""
    scores = np.random.default_rng(3).normal(size=(10, 5))
    draws = stats.stratified_draws(scores, stats.iqm, np.random.default_rng(0), draws=4000)
    low, high = np.quantile(draws, [0.025, 0.975])
    assert low == pytest.approx(-0.2340, abs=0.02)
    assert high == pytest.approx(0.2763, abs=0.02)


def test_stratified_bootstrap_keeps_each_tasks_own_scores() -> None:
    scores = np.array([[0.0, 100.0], [1.0, 101.0]])
    draws = stats.stratified_draws(scores, lambda x: x[:, 1].min(), np.random.default_rng(0))
    assert set(draws) == {100.0, 101.0}


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize(("skewed", "least"), [(False, 0.935), (True, 0.87)])
def test_coverage_of_the_mean(n: int, skewed: bool, least: float) -> None:
    """Normal values, and exponential ones, whose mean few values tell less well."""
    rng = np.random.default_rng(n)
    x = rng.exponential(size=(n, 4000)) - 1 if skewed else rng.normal(size=(n, 4000))
    low, high = stats.mean_bounds(x)
    assert least < ((low <= 0) & (high >= 0)).mean() < 0.965
    if n > 2:  # no less than the stretched bootstrap, which other statistics have
        picks = rng.integers(0, n, (400, n))
        low, high = stats.interval_bounds(x[picks, :600].mean(axis=1), n)
        bootstrap = ((low <= 0) & (high >= 0)).mean()
        low, high = stats.mean_bounds(x[:, :600])
        assert ((low <= 0) & (high >= 0)).mean() > bootstrap - 0.02


def test_the_mean_and_its_interval_by_hand() -> None:
    """Student's t is 4.3027 with two degrees of freedom; s = 2, so s / sqrt(3) = 1.1547."""
    found = stats.mean_interval([1.0, 3.0, 5.0])
    assert found == pytest.approx((3, 3 - 4.96826, 3 + 4.96826), abs=1e-4)
    low, high = stats.mean_bounds(np.array([1.0, 3.0, 5.0]), positive=True)
    assert (low, high) == pytest.approx((3 * np.exp(-1.65609), 3 * np.exp(1.65609)), rel=1e-4)
    alone = stats.mean_interval([7.0])
    assert alone.value == 7
    assert np.isnan([alone.low, alone.high]).all()


def test_draws_of_a_mean_have_its_standard_error() -> None:
    x = np.array([1.0, 3.0, 5.0])
    logs = np.log(stats.mean_draws(x, stats.generator()) / 3)
    assert np.median(logs) == pytest.approx(0, abs=1e-3)
    assert logs.std() == pytest.approx(1.1547 / 3, rel=0.01)
    assert stats.mean_draws(x[:1], stats.generator(), 3).tolist() == [1, 1, 1]
    assert stats.mean_draws(x - 9, stats.generator(), 2).tolist() == [-6, -6]


def test_draws_of_the_normal_are_its_quantiles() -> None:
    draws = stats.normal_draws(stats.generator())
    assert np.std(draws) == pytest.approx(1, abs=0.002)
    assert np.quantile(draws, 0.975) == pytest.approx(1.96, abs=0.005)
    low, high = stats.interval_bounds(draws, np.inf, dof=8)
    assert (low, high) == pytest.approx((-2.306, 2.306), abs=0.005)


@pytest.mark.parametrize(("tasks", "runs"), [(t, r) for t in (2, 6, 10) for r in (2, 3, 10)])
def test_coverage_of_a_mean_over_tasks(tasks: int, runs: int) -> None:
    """Stretched by t(runs - 1), as if no task told of another's spread: 1.00 at 6 x 3."""
    rng = np.random.default_rng([tasks, runs])
    trials, draws = 500, 300
    scores = rng.normal(size=(trials, tasks, runs))
    picks = rng.integers(0, runs, (draws, tasks, runs))
    means = scores[:, np.arange(tasks)[:, None], picks].mean(axis=(2, 3)).T
    low, high = stats.interval_bounds(means, runs, tasks * (runs - 1))
    assert 0.91 < ((low <= 0) & (high >= 0)).mean() < 0.985
    if (tasks, runs) == (6, 3):
        low, high = stats.interval_bounds(means, runs)
        assert ((low <= 0) & (high >= 0)).mean() > 0.99


def test_the_interval_of_normal_draws_is_students() -> None:
    """Mean +- t s / sqrt(n): 4.303 for three values, where the normal has 1.960."""
    n, s = 3, 2.0
    draws = 10 + s * np.sqrt((n - 1) / n) / np.sqrt(n) * np.random.default_rng(0).normal(size=10**6)
    low, high = stats.interval_bounds(draws, n)
    assert low == pytest.approx(10 - 4.303 * s / np.sqrt(n), rel=0.01)
    assert high == pytest.approx(10 + 4.303 * s / np.sqrt(n), rel=0.01)


def test_interval_bounds_of_every_point_are_its_own() -> None:
    draws = np.random.default_rng(0).normal(size=(500, 3))
    low, high = stats.interval_bounds(draws, 8)
    for i in range(3):
        assert (low[i], high[i]) == stats.interval_bounds(draws[:, i], 8)


def test_the_same_numbers_at_every_call() -> None:
    x = np.arange(5.0)
    a = stats.mean_draws(x, stats.generator())
    np.testing.assert_array_equal(a, stats.mean_draws(x, stats.generator()))


@pytest.mark.parametrize(
    "statistic",
    [
        lambda x: stats.mean_interval(x),
        lambda x: stats.interval_bounds(x, 3),
        lambda x: stats.iqm(x),
        lambda x: stats.stratified_draws(x.reshape(4, 2), np.mean, stats.generator(), 5),
    ],
)
def test_single_precision_is_computed_in_double(statistic: Any) -> None:
    x = (1 + np.arange(8) / 3).astype(np.float32)
    np.testing.assert_array_equal(statistic(x), statistic(x.astype(np.float64)))


def test_draws_of_a_count_are_real_numbers() -> None:
    draws = stats.stratified_draws([[1.0], [2.0]], lambda x: x.size, stats.generator(), 3)
    assert draws.tolist() == [2, 2, 2]
    assert draws.dtype == np.float64


def test_an_estimate_fills_three_columns_and_has_no_interval_unless_told() -> None:
    assert stats.Interval(2, 1, 4).columns("speed") == {"speed": 2, "speed_low": 1, "speed_high": 4}
    _, low, high = stats.Interval(2)
    assert np.isnan([low, high]).all()
    assert str(stats.Interval(1234.5, 0.12345, 2)) == "1234 [0.123, 2]"
    assert [digits(x) for x in (999.4, 999.6, -4415.7, 1e15)] == [
        "999",
        "1000",
        "-4416",
        "1e+15",
    ]


T_2 = 4.302653  # Student's t with 2 degrees of freedom, 97.5%


def two(a: list[float], b: list[float], *, paired: bool = False) -> Sides:
    return Sides(np.array(a), np.array(b), paired)


def test_the_difference_of_independent_runs_is_welchs() -> None:
    found = stats.difference(two([1.0, 2.0, 3.0], [2.0, 6.0]))
    # Means 2 and 4, variances 1 and 8, so 1/3 + 8/2 and (13/3)^2 / ((1/3)^2/2 + 4^2/1).
    assert found.value == 2.0
    assert found.variance == pytest.approx(13 / 3)
    assert found.dof == pytest.approx((13 / 3) ** 2 / (1 / 18 + 16))


def test_the_difference_of_pairs_is_students() -> None:
    found = stats.difference(two([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], paired=True))
    assert found == (2.0, pytest.approx(1 / 3), 2)  # differences 1, 2, 3
    half = T_2 / math.sqrt(3)
    assert found.interval() == pytest.approx((2.0, 2 - half, 2 + half))


def test_the_ratio_is_of_the_means_with_relative_deviations() -> None:
    found = stats.log_ratio(two([1.0, 3.0], [8.0, 8.0]))
    assert math.exp(found.value) == pytest.approx(4.0)
    assert found.variance == pytest.approx(0.5 / 2)  # A over its mean: 0.5 and 1.5
    assert found.dof == 1


def test_estimates_of_one_variance_keep_its_degrees() -> None:
    both = stats.overall([Estimate(1.0, 4.0, 3.0), Estimate(3.0, 12.0, 3.0)], pooled=True)
    assert both == pytest.approx((2.0, 4.0, 3.0))


def test_without_spread_only_equal_runs_of_two_seeds_have_an_interval() -> None:
    assert stats.difference(two([3.0, 4.0], [3.0, 4.0], paired=True)).interval() == (0, 0, 0)
    assert math.isnan(stats.difference(two([3.0, 4.0], [2.0, 3.0], paired=True)).interval().low)
    sure = stats.difference(two([3.0, 4.0, 5.0], [2.0, 3.0, 4.0], paired=True))
    assert sure.interval() == (-1, -1, -1)


def test_over_tasks_variances_add_and_satterthwaite_counts() -> None:
    found = stats.overall([Estimate(1.0, 4.0, 2.0), Estimate(3.0, 12.0, 4.0)])
    assert found == pytest.approx((2.0, 4.0, 4.0**2 / (1.0 / 2 + 9.0 / 4)))


def test_probability_of_improvement_counts_all_pairs_and_half_of_the_ties() -> None:
    both = two([1.0, 2.0], [2.0, 3.0, 0.0])  # 2: wins, ties; 3: wins twice; 0: loses twice
    assert stats.improvement([both]).value == pytest.approx(3.5 / 6)
    assert stats.improvement([both], higher=False).value == pytest.approx(2.5 / 6)
    other = two([0.0, 0.0], [1.0, 1.0])
    assert stats.improvement([both, other]).value == pytest.approx((3.5 / 6 + 1) / 2)


def test_the_interval_of_a_probability_holds_what_is_t_deviations_away() -> None:
    both = two([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    value, low, high = stats.improvement([both])
    assert (value, high) == (1.0, 1.0)
    grows = (1 - low) / (2 - low) + low / (1 + low)  # Newcombe 2006, method 5; (3 + 3) / 2 - 1 = 2
    deviation = math.sqrt(low * (1 - low) * (1 + 2 * grows) / 9)
    assert 1 - low == pytest.approx(2.776445 * deviation)
    swapped = stats.improvement([Sides(both.b, both.a)])
    assert swapped == pytest.approx((0.0, 0.0, 1 - low))


def test_a_single_run_has_no_interval() -> None:
    alone = two([1.0], [3.0])
    assert stats.difference(alone).value == 2.0
    for interval in (stats.difference(alone).interval(), stats.improvement([alone])):
        assert math.isnan(interval.low)
        assert math.isnan(interval.high)
    assert math.isnan(stats.log_ratio(alone).interval(math.exp).low)


def test_identical_sides() -> None:
    both = two([1.0, 2.0], [1.0, 2.0], paired=True)
    assert both.identical
    assert stats.difference(both).interval() == (0.0, 0.0, 0.0)
    assert stats.improvement([both]).value == 0.5
    assert math.isnan(stats.improvement([both]).low)
    assert not two([1.0, 2.0], [1.0, 2.0]).identical


def test_seeds_are_paired_where_both_sides_have_them() -> None:
    a: Seeded = {(0, 0): 1.0, (1, 0): 2.0}
    b: Seeded = {(1, 0): 20.0, (0, 0): 10.0}
    found = comparisons.sides(a, b, shared=True)
    assert found.paired
    assert found.b.tolist() == [10.0, 20.0]
    assert not comparisons.sides(a, b, shared=False).paired
    assert not comparisons.sides(a, {(0, 0): 1.0}, shared=True).paired


def test_the_same_runs_again_count_once() -> None:
    a: Seeded = {(0, 0): 1.0, (1, 0): 2.0}
    b: Seeded = {(0, 0): 5.0}
    more: Seeded = {(0, 0): 5.0, (2, 0): 6.0}
    assert comparisons.merged([(a, b), (a, more)]) == {0: (a, more)}
    other: Seeded = {(0, 0): 1.5, (1, 0): 2.0}
    apart: Seeded = {(0, 0): 7.0}
    assert comparisons.merged([(a, b), (other, apart)]) == {0: (a, b), 1: (other, apart)}


def test_one_side_that_is_the_same_again_counts_once() -> None:
    a: Seeded = {(0, 0): 1.0, (1, 0): 2.0}
    other: Seeded = {(0, 0): 1.5, (1, 0): 2.5}
    b: Seeded = {(0, 0): 5.0, (1, 0): 6.0}
    both = {(0, 0): 1.0, (1, 0): 2.0, (0, 1): 1.5, (1, 1): 2.5}
    assert comparisons.merged([(a, b), (other, b), (a, b)]) == {0: (both, b)}


def test_times_of_one_seed_are_averaged_over_the_numbers_of_samplers() -> None:
    pairs: list[tuple[Seeded, Seeded]] = [
        ({(0, 0): 1.0, (1, 0): 5.0}, {(0, 0): 2.0}),
        ({(0, 0): 3.0}, {(0, 0): 4.0}),
    ]
    assert tuple(map(comparisons._means, zip(*pairs, strict=True))) == (
        {(0, 0): 2.0, (1, 0): 5.0},
        {(0, 0): 3.0},
    )


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
        return stats.overall([stats.difference(both) for both in sides]).interval()

    def of_ratio(sides: list[Sides]) -> Interval:
        return stats.overall([stats.log_ratio(both) for both in sides]).interval(math.exp)

    least = 0.95 - 3 * math.sqrt(0.95 * 0.05 / 600)
    better = 0.5 * (1 + math.erf(30 / math.sqrt(10**2 + 20**2) / math.sqrt(2)))
    assert share_that_holds(30.0, lambda rng: of_difference(drawn(rng))) > least
    if tasks * (runs - 1) > 1:
        assert share_that_holds(3.0, lambda rng: of_difference(pairs(rng))) > least
    else:  # one degree of freedom
        assert np.isnan(of_difference(pairs(np.random.default_rng(0))).low)
    assert share_that_holds(1.3, lambda rng: of_ratio(speeds(rng))) > least
    assert share_that_holds(better, lambda rng: stats.improvement(drawn(rng)), 200) > 0.9


def test_improvement_on_reported_returns_by_hand() -> None:
    """One of ours at the mean, one a deviation above: (0.5 + 0.8413) / 2; tasks count equally."""
    one = (np.array([10.0, 12.0]), 10.0, 2.0, 10)
    other = (np.array([-50.0, -50.0]), 10.0, 2.0, 10)
    assert stats.improvement_on_reported([one]).value == pytest.approx(0.67067, abs=1e-5)
    both = stats.improvement_on_reported([one, other])
    assert both.value == pytest.approx(0.33534, abs=1e-5)
    assert both.low < both.value < both.high
    alone = stats.improvement_on_reported([(np.array([12.0]), *one[1:])])
    assert math.isnan(alone.low)
    equal = (np.array([10.0, 10.0, 12.0, 9.0]), 10.0, 0.0, 10)
    assert stats.improvement_on_reported([equal]).value == 0.5  # (0.5 + 0.5 + 1 + 0) / 4


def test_its_interval_holds_the_true_probability() -> None:
    """Ours are drawn from N(1, 1), and theirs from N(0, 1): ours are above with 0.7602."""

    def reported(rng: np.random.Generator) -> tuple[np.ndarray, float, float, int]:
        theirs = rng.normal(0, 1, 10)
        return rng.normal(1, 1, 10), theirs.mean(), theirs.std(ddof=1), 10

    true = 0.7602
    assert (
        share_that_holds(true, lambda rng: stats.improvement_on_reported([reported(rng)]), 300)
        > 0.93
    )
