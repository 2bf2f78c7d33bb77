from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from walle.analysis.measuring import stats

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


def mean_interval(x: npt.ArrayLike, rng: np.random.Generator, draws: int) -> stats.Interval:
    x = np.asarray(x, float)
    return stats.Interval(
        float(x.mean()), *stats.interval_bounds(stats.resample_means(x, rng, draws), x.size)
    )


@pytest.mark.parametrize("n", [3, 5, 10, 30])
def test_coverage_of_the_bootstrap_interval_on_normal_data(n: int) -> None:
    rng = np.random.default_rng(n)
    trials, hits = 2000, 0
    for _ in range(trials):
        interval = mean_interval(rng.normal(3, 2, n), rng, draws=800)
        hits += interval.low <= 3 <= interval.high
    assert hits / trials == pytest.approx(0.95, abs=0.02)


def correlated(values: int, series: int, r: float) -> npt.NDArray[np.float64]:
    """[values, series] of a first-order process with variance 1 and autocorrelation r."""
    noise = np.random.default_rng(values).normal(size=(values, series))
    found = [noise[0]]
    for row in noise[1:]:
        found.append(r * found[-1] + np.sqrt(1 - r**2) * row)
    return np.array(found)


@pytest.mark.parametrize(("r", "values"), [(0.0, 30), (0.5, 100), (0.8, 100), (0.8, 300)])
def test_coverage_of_the_mean_of_a_correlated_series(r: float, values: int) -> None:
    """By the number of values the interval covers 47% at r = 0.8."""
    series = correlated(values, 400, r).T
    sizes = [stats.effective_size(x) for x in series]
    reach = [
        stats.student(size - 1) * x.std() / np.sqrt(size - 1)
        for x, size in zip(series, sizes, strict=True)
    ]
    assert 0.915 < (np.abs(series.mean(axis=1)) <= reach).mean() < 0.985
    naive = stats.student(values - 1) * series.std(axis=1, ddof=1) / np.sqrt(values)
    covered = (np.abs(series.mean(axis=1)) <= naive).mean()
    assert (covered < 0.6) == (r == 0.8)


def test_the_effective_size_by_hand() -> None:
    assert stats.effective_size([1.0, 1.0, 1.0, 1.0, 1.0]) == 5
    assert stats.effective_size([3.0]) == 2
    assert stats.effective_size(np.arange(50.0)) == 2  # a drift tells of nothing but itself
    alternating = np.tile([1.0, -1.0], 20)
    assert stats.effective_size(alternating) == 40


def test_draws_of_the_normal_are_its_quantiles() -> None:
    draws = stats.normal_draws(stats.generator())
    assert np.std(draws) == pytest.approx(1, abs=0.002)
    assert np.quantile(draws, 0.975) == pytest.approx(1.96, abs=0.005)
    low, high = stats.interval_bounds(draws, np.inf, dof=8)
    assert (low, high) == pytest.approx((-2.306, 2.306), abs=0.005)


@pytest.mark.parametrize(("tasks", "runs"), [(t, r) for t in (1, 2, 6, 10) for r in (2, 3, 10)])
def test_coverage_of_a_mean_over_tasks(tasks: int, runs: int) -> None:
    """Stretched by t(runs - 1), as if no task told of another's spread: 1.00 at 6 x 3."""
    rng = np.random.default_rng([tasks, runs])
    trials, draws = 500, 300
    scores = rng.normal(size=(trials, tasks, runs))
    picks = rng.integers(0, runs, (draws, tasks, runs))
    means = scores[:, np.arange(tasks)[:, None], picks].mean(axis=(2, 3)).T
    low, high = stats.band_bounds(means, runs, tasks * (runs - 1))
    assert 0.91 < ((low <= 0) & (high >= 0)).mean() < 0.985
    if (tasks, runs) == (6, 3):
        low, high = stats.band_bounds(means, runs)
        assert ((low <= 0) & (high >= 0)).mean() > 0.99


def test_one_value_has_no_interval() -> None:
    alone = mean_interval([7.0], np.random.default_rng(0), draws=10)
    assert alone.value == 7
    assert np.isnan(alone.low)
    assert np.isnan(alone.high)


def test_the_interval_of_normal_draws_is_students() -> None:
    """Mean +- t s / sqrt(n): 4.303 for three values, where the normal has 1.960."""
    n, s = 3, 2.0
    draws = 10 + s * np.sqrt((n - 1) / n) / np.sqrt(n) * np.random.default_rng(0).normal(size=10**6)
    low, high = stats.interval_bounds(draws, n)
    assert low == pytest.approx(10 - 4.303 * s / np.sqrt(n), rel=0.01)
    assert high == pytest.approx(10 + 4.303 * s / np.sqrt(n), rel=0.01)


def test_the_interval_of_a_time_stays_above_zero() -> None:
    draws = stats.resample_means([1.0, 3.0], np.random.default_rng(0))
    assert stats.interval_bounds(draws, 2)[0] < 0
    low, high = stats.interval_bounds(draws, 2, positive=True)
    assert 0 < low < 1
    assert high > 3


def test_band_bounds_are_the_interval_bounds_of_every_point() -> None:
    draws = np.random.default_rng(0).normal(size=(500, 3))
    low, high = stats.band_bounds(draws, 8)
    for i in range(3):
        assert (low[i], high[i]) == stats.interval_bounds(draws[:, i], 8)


def test_the_same_numbers_at_every_call() -> None:
    x = np.arange(5.0)
    a = stats.resample_means(x, stats.generator())
    np.testing.assert_array_equal(a, stats.resample_means(x, stats.generator()))


def test_resample_means_of_equal_values() -> None:
    np.testing.assert_array_equal(
        stats.resample_means([2.0, 2.0, 2.0], np.random.default_rng(0), 10), np.full(10, 2.0)
    )


def test_the_numbers_of_a_figure_stay_the_same_from_version_to_version() -> None:
    draws = stats.resample_means([0.0, 1.0, 10.0], stats.generator())
    assert draws.shape == (2000,)
    # the generator's first draws of 0, 1 or 2: 2 1 1, 0 0 0, 0 0 0
    np.testing.assert_allclose(draws[:3], [12 / 3, 0, 0])


@pytest.mark.parametrize(
    "statistic",
    [
        lambda x: stats.resample_means(x, stats.generator(), 5),
        lambda x: stats.interval_bounds(x, 3),
        lambda x: stats.interval_bounds(x, 3, positive=True),
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
    assert str(stats.Interval(1234.5, 0.12345, 2)) == "1.23e+03 [0.123, 2]"


def test_the_interval_of_a_ratio_is_the_interval_of_its_logarithm() -> None:
    draws = np.random.default_rng(0).normal(size=500)
    expected = np.exp(stats.interval_bounds(draws, 3))
    found = stats.interval_bounds(np.exp(draws), 3, positive=True)
    np.testing.assert_allclose(found, expected)
