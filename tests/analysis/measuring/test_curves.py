from __future__ import annotations

import numpy as np
import pandas as pd

from walle.analysis.measuring.curves import common_grid, curve, on_grid
from walle.analysis.measuring.possible import of_column


def rows(*runs: list[tuple[float, float]]) -> pd.DataFrame:
    found = [(str(i), x, y) for i, run in enumerate(runs) for x, y in run]
    return pd.DataFrame(found, columns=["run", "x", "y"])


def test_runs_on_a_common_grid() -> None:
    frame = rows([(0, 0), (10, 10)], [(2, 4), (6, 8)])
    grid = common_grid(frame, "x", "y", points=5)
    np.testing.assert_array_equal(grid, [2, 4, 6, 8, 10])
    values = on_grid(frame, "x", "y", grid)
    np.testing.assert_array_equal(values[0], [2, 4, 6, 8, 10])
    np.testing.assert_array_equal(values[1], [4, 6, 8, np.nan, np.nan])


def test_a_curve_says_how_many_runs_it_is_over() -> None:
    frame = rows([(0, 0), (10, 10)], [(2, 4), (6, 8)])
    grid = common_grid(frame, "x", "y", points=5)
    found = curve(grid, on_grid(frame, "x", "y", grid))
    np.testing.assert_array_equal(found.y, [3, 5, 7, 8, 10])
    assert found.runs.tolist() == [2, 2, 2, 1, 1]
    assert found.complete.tolist() == [True, True, True, False, False]
    assert (found.low[:3] < [2, 4, 6]).all()
    assert (found.high[:3] > [4, 6, 8]).all()
    assert np.isnan(found.low[3:]).all()


def test_the_interquartile_mean_ignores_the_outlier() -> None:
    values = np.array([[1.0], [2.0], [3.0], [1000.0]])
    assert curve(np.zeros(1), values, iqm=True).y.tolist() == [2.5]
    assert curve(np.zeros(1), values).y.tolist() == [251.5]


def test_a_band_ends_where_values_are_impossible() -> None:
    """Two seeds with lags of 0 and 2 have a band from far below 0."""
    grid = np.linspace(0, 1, 3)
    values = np.array([[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]])
    assert curve(grid, values).low.max() < -5
    found = curve(grid, values, within=of_column("lag_mean"))
    assert (found.low == 0).all()
    assert found.high.min() > 7


def test_the_values_that_columns_can_have() -> None:
    assert of_column("collect_s") == of_column("learn_share") == (0, np.inf)
    assert of_column("clip_fraction") == (0, 1)
    assert of_column("explained_variance") == (-np.inf, 1)
    assert of_column("return_mean") == (-np.inf, np.inf)
