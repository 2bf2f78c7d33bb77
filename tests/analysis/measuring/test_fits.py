from __future__ import annotations

import numpy as np

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
