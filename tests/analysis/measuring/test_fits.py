from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.analysis.measuring.test_spread import measured
from walle.analysis.measuring import scaling
from walle.analysis.measuring.cells import Cell
from walle.analysis.measuring.fits import describe, fit_cells
from walle.analysis.measuring.spread import share_spread
from walle.analysis.measuring.stats import generator, mean_draws, normal_draws

N = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def cells(rng: np.random.Generator, law: scaling.Law, noise: float, seeds: int = 5) -> list[Cell]:
    found = []
    for n in N:
        values = law.time(n) * (1 + noise * rng.standard_normal(seeds))
        names = tuple(f"{n}-{i}" for i in range(seeds))
        found.append(Cell("", n, values, mean_draws(values, rng, 400), names, seeds, False))
    return found


@pytest.mark.slow
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
    assert describe(found[:1], learn_s=0.5) == [
        "No law of scaling can be fitted to a single point."
    ]


def exact(law: scaling.Law, workers: Sequence[float] = N, values: int = 3) -> list[Cell]:
    """Cells whose repeats agree on the times of the law."""
    times = {n: law.time(n) * np.ones(values) for n in workers}
    return [Cell("", n, x, np.full(40, x[0]), ("run",), 1, False) for n, x in times.items()]


def uncertain(workers: Sequence[float], coherence: float = 0.0) -> list[Cell]:
    """Two repeats with serial fractions of 20% and 100%: the mean has 60%, with a wide interval."""
    laws = [scaling.Law(1.0, serial, coherence) for serial in (0.2, 0.6, 1.0)]
    found = []
    for n in workers:
        low, mean, high = (float(law.time(n)) for law in laws)
        draws = np.repeat([low, mean, high], [10, 20, 10])
        cell = Cell("", n, np.array([low, high]), draws, ("a", "b"), 2, False, freedom=math.inf)
        found.append(cell)
    return found


def test_amdahls_law_is_fitted_unless_coherence_is_asked_for() -> None:
    cells = exact(scaling.Law(7.0, 0.05, 0.002))
    for fitted, coherence in (
        (fit_cells(cells), 0.0),
        (fit_cells(cells, coherence=True), 0.002),
    ):
        assert fitted is not None
        laws = [fitted.law, *fitted.draws]
        assert [law.coherence for law in laws] == pytest.approx([coherence] * 41)
        assert fitted.cells == cells


def test_two_cells_have_amdahls_law_and_four_have_both() -> None:
    cells = exact(scaling.Law(7.0, 0.05, 0.002))
    assert [len(describe(cells[:n], None)) for n in (2, 3, 4)] == [1, 1, 2]


def test_an_interval_stays_within_its_limits() -> None:
    fitted = fit_cells(uncertain([1, 2]))
    assert fitted is not None
    value, low, high = fitted.interval(lambda law: law.serial, most=1)
    assert value == pytest.approx(0.6)
    assert (low, high) == pytest.approx((0.2, 1))
    free = fitted.interval(lambda law: 2 * law.serial, most=1.5)
    assert free.high == 1.5


def pair(deviation: float, dof: float, *, seconds: tuple[float, float] = (8.0, 3.6)) -> list[Cell]:
    """Two cells, of which the second one is uncertain."""
    second = seconds[1] * np.exp(deviation * normal_draws(generator(), 400))
    return [
        Cell("", 1, np.full(2, 8.0), np.full(400, seconds[0]), ("a", "b"), 2, False, freedom=dof),
        Cell("", 2, np.full(2, seconds[1]), second, ("c", "d"), 2, False, freedom=dof),
    ]


def test_the_seconds_are_stretched_before_the_law_is_fitted() -> None:
    """From 8 s to 3.6 s is better than perfect, so the fraction is 0, and most draws have 0 too.

    At the end of the interval of 3.6 s, 3.6 exp(4.303 x 0.1) = 5.535, it is (2 x 5.535 - 8) / 8.
    Stretching the fraction itself, 0.095 without Student's t, gives 0.209.
    """
    fitted = fit_cells(pair(0.1, dof=2))
    assert fitted is not None
    value, low, high = fitted.interval(lambda law: law.serial, most=1)
    assert (value, low) == (0, 0)
    assert high == pytest.approx((2 * 3.6 * np.exp(0.4303) - 8) / 8, rel=0.02)


@pytest.mark.parametrize("serial", [0.0, 0.02, 0.97])
def test_coverage_of_the_serial_fraction_near_its_bounds(serial: float) -> None:
    """Stretched after fitting, the interval of 2% holds the truth in 90% of the trials."""
    rng = np.random.default_rng(0)
    times = {n: float(scaling.Law(8.0, serial, 0.0).time(n)) for n in (1, 2)}
    hits = 0
    for _ in range(150):
        seconds = {n: time * np.exp(0.05 * rng.normal(size=2)) for n, time in times.items()}
        shared = share_spread(*measured(seconds, False))
        fitted = fit_cells([replace(cell, draws=cell.draws[:120]) for cell in shared])
        assert fitted is not None
        found = fitted.interval(lambda law: law.serial, most=1)
        hits += found.low <= serial + 1e-9 and serial <= found.high + 1e-9
    assert hits / 150 > 0.92


def test_no_law_is_drawn_at_its_upper_bound() -> None:
    fitted = fit_cells(pair(0.1, dof=2, seconds=(8.0, 9.0)))
    assert fitted is not None
    assert fitted.at_bound
    (said,) = describe(pair(0.1, dof=2, seconds=(8.0, 9.0)), learn_s=0.1)
    assert said.startswith("Amdahl (two points only): more samplers collect no faster here, so")
    assert said.endswith("%, 100%], and no law is drawn.")
    low = (2 * 9 * np.exp(-0.4303) - 8) / 8
    assert fitted.interval(lambda law: law.serial).low == pytest.approx(low, abs=0.01)


def test_both_laws_and_their_best_number_of_samplers_in_words() -> None:
    amdahl, usl = describe(exact(scaling.Law(7.0, 0.05, 0.002)), None)
    assert amdahl.startswith("Amdahl (5 points): serial fraction ")
    # fastest at sqrt(0.95 / 0.002)
    assert usl == (
        "Universal scalability law: contention 5% [5%, 5%], coherence 0.2% [0.2%, 0.2%]; "
        "fastest at N = 21.8 (extrapolated: measured up to N = 16)."
    )


def test_a_law_without_limit_in_words() -> None:
    better_than_perfect = [
        Cell("", n, np.full(3, 5 / n**1.2), np.full(40, 5 / n**1.2), ("run",), 1, False) for n in N
    ]
    amdahl, usl = describe(better_than_perfect, None)
    assert amdahl == "Amdahl (5 points): serial fraction 0% [0%, 0%], so no limit in sight."
    assert usl.endswith("contention 0% [0%, 0%], coherence 0% [0%, 0%]; no peak.")


def test_wide_intervals_in_words() -> None:
    # with a serial fraction of 0.2, 0.6 and 1, 0.7 s are reached by 1.6, 4 and no samplers
    assert describe(uncertain([1, 2]), learn_s=0.7) == [
        "Amdahl (two points only): serial fraction 60% [20%, 100%], so at most 1.67x.",
        "Learning takes 0.7 s per round: it becomes the bottleneck from N = 4 [1.6, inf] "
        "samplers on (extrapolated: measured up to N = 2).",
    ]
    _, usl = describe(uncertain([1, 2, 4, 8], coherence=0.01), None)
    assert usl.startswith("Universal scalability law: contention 60% [")
    assert usl.endswith("; fastest at N = 6.32.")


def test_the_draws_of_two_cells_vary_evenly() -> None:
    """The end of T(1) / T(2) is that of Student's t, without the luck of pairs in a random order.

    Both have the deviation 0.1, so the logarithm of the ratio has 0.1 sqrt(2).
    """
    first, second = pair(0.1, dof=4, seconds=(8.0, 4.8))
    first = replace(first, draws=8 * np.exp(0.1 * normal_draws(generator(), 400)))
    fitted = fit_cells([first, second])
    assert fitted is not None
    found = fitted.interval(lambda law: float(law.speedup(2.0)))
    assert found.low == pytest.approx(8 / 4.8 * np.exp(-2.7764 * 0.1 * np.sqrt(2)), rel=0.01)


@pytest.mark.parametrize(
    ("learn_s", "said"),
    [
        (2.0, "Learning takes 2 s per round: it is the bottleneck with one sampler already."),
        (1.5, "Learning takes 1.5 s per round: it becomes the bottleneck from N = 1.36 "),
        (0.05, "Learning takes 0.05 s per round: less than the serial part of collection, "),
    ],
)
def test_where_learning_becomes_the_bottleneck_in_words(learn_s: float, said: str) -> None:
    # 1.9 s are parallel, 0.1 s serial: 1.9 / (1.5 - 0.1) = 1.36
    assert describe(exact(scaling.Law(2.0, 0.05, 0.0)), learn_s)[-1].startswith(said)


def test_one_value_a_cell_has_no_interval_in_words() -> None:
    amdahl, *_ = describe(exact(scaling.Law(2.0, 0.05, 0.0), values=1), None)
    assert amdahl == (
        "Amdahl (5 points): serial fraction 5%, so at most 20x "
        "(extrapolated: measured up to N = 16)."
    )
