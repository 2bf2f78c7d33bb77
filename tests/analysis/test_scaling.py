from __future__ import annotations

import math

import numpy as np
import pytest

from analysis import scaling
from analysis.fits import describe, fit_cells
from analysis.measures import Cell
from analysis.stats import resample_means

N = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def cells(rng: np.random.Generator, law: scaling.Law, noise: float, seeds: int = 5) -> list[Cell]:
    found = []
    for n in N:
        values = law.time(n) * (1 + noise * rng.standard_normal(seeds))
        names = tuple(f"{n}-{i}" for i in range(seeds))
        found.append(Cell("", n, values, resample_means(values, rng, 400), names, seeds, False))
    return found


def test_amdahl_is_recovered_exactly_without_noise() -> None:
    law = scaling.fit(N, 3 * (0.9 / N + 0.1))
    assert law.time_1 == pytest.approx(3)
    assert law.serial == pytest.approx(0.1)
    assert law.coherence == 0
    assert law.limit == pytest.approx(10)


def test_universal_scalability_law_is_recovered_exactly_without_noise() -> None:
    speedup = N / (1 + 0.05 * (N - 1) + 0.002 * N * (N - 1))
    law = scaling.fit(N, 7 / speedup, coherence=True)
    assert law.time_1 == pytest.approx(7)
    assert law.serial == pytest.approx(0.05)
    assert law.coherence == pytest.approx(0.002)
    np.testing.assert_allclose(law.speedup(N), speedup)
    assert law.best_n == pytest.approx(math.sqrt(0.95 / 0.002))


def test_perfect_scaling_has_no_serial_part_and_no_limit() -> None:
    law = scaling.fit(N, 5 / N)
    assert law.serial == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(law.speedup(N), N)


def test_better_than_perfect_is_held_at_perfect() -> None:
    assert scaling.fit(N, 5 / N**1.2).serial == 0


def test_a_base_other_than_one() -> None:
    law = scaling.fit(N[1:], 3 * (0.9 / N[1:] + 0.1))
    assert law.serial == pytest.approx(0.1)
    assert law.speedup(4, base=2) == pytest.approx(0.55 / 0.325)


def test_where_learning_takes_over() -> None:
    law = scaling.Law(time_1=2.0, serial=0.05, coherence=0.0)
    n = law.workers_for(0.5)
    assert law.time(n) == pytest.approx(0.5)
    assert n == pytest.approx(1.9 / 0.4)
    assert law.workers_for(2.0) == 1
    assert law.workers_for(0.1) == math.inf


def test_too_few_worker_counts() -> None:
    with pytest.raises(ValueError, match="2 parameters from 1 worker counts"):
        scaling.fit([2, 2], [1, 1])


def test_serial_fraction_lies_in_its_interval_nine_times_in_ten() -> None:
    rng = np.random.default_rng(0)
    law = scaling.Law(time_1=2.0, serial=0.05, coherence=0.0)
    hits = 0
    for _ in range(200):
        fitted = fit_cells(cells(rng, law, noise=0.03))
        assert fitted is not None
        interval = fitted.interval(lambda found: found.serial)
        hits += interval.low <= 0.05 <= interval.high
    assert hits >= 180


def test_in_words() -> None:
    law = scaling.Law(time_1=2.0, serial=0.05, coherence=0.0)
    found = cells(np.random.default_rng(0), law, noise=0.001)
    amdahl, usl, bottleneck = describe(found, learn_s=0.5)
    assert amdahl.startswith("Amdahl (5 points): serial fraction 5% [")
    assert "at most 20" in amdahl
    assert usl.startswith("Universal scalability law: contention 5%")
    assert "bottleneck from N = 4.7" in bottleneck
    assert "with one sampler already" in describe(found, learn_s=3.0)[-1]
    assert "never" in describe(found, learn_s=0.01)[-1]
    assert describe(found[:1], learn_s=0.5) == ["One point alone: no law of scaling can be fitted."]
