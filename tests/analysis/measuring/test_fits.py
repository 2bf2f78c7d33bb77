from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from walle.analysis.measuring import scaling
from walle.analysis.measuring.cells import Cell
from walle.analysis.measuring.fits import describe, fit_cells
from walle.analysis.measuring.stats import resample_means

N = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def cells(rng: np.random.Generator, law: scaling.Law, noise: float, seeds: int = 5) -> list[Cell]:
    found = []
    for n in N:
        values = law.time(n) * (1 + noise * rng.standard_normal(seeds))
        names = tuple(f"{n}-{i}" for i in range(seeds))
        found.append(Cell("", n, values, resample_means(values, rng, 400), names, seeds, False))
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
        found.append(Cell("", n, np.array([low, high]), draws, ("a", "b"), 2, False))
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
    assert (low, high) == (0, 1)
    # 9.17 is what two values stretch an interval by: sqrt(2) times 12.71 for 1.960
    free = fitted.interval(lambda law: law.serial)
    assert free.high == pytest.approx(0.6 + 9.17 * 0.4, rel=1e-3)


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
        "Amdahl (two points only): serial fraction 60% [0%, 100%], so at most 1.67x.",
        "Learning takes 0.7 s per round: it becomes the bottleneck from N = 4 [1, inf] "
        "samplers on (extrapolated: measured up to N = 2).",
    ]
    _, usl = describe(uncertain([1, 2, 4, 8], coherence=0.01), None)
    assert usl == (
        "Universal scalability law: contention 60% [0%, 100%], coherence 1% [1%, 1%]; "
        "fastest at N = 6.32."
    )


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
