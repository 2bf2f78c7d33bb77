from __future__ import annotations

import math

import numpy as np
import pytest

from walle.analysis.measuring import scaling

N = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


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
