from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.measuring.test_groups import measured
from tests.analysis.synthetic import Job, cell, set_columns, write_sweep
from walle.analysis.measuring import laws
from walle.analysis.measuring.groups import Cell, share_spread
from walle.analysis.measuring.laws import (
    RoundFit,
    RoundParts,
    Shares,
    describe,
    describe_rounds,
    fit_law_of,
    fit_parts,
    fit_rounds,
    largest_share,
)
from walle.analysis.measuring.stats import generator, mean_draws, normal_draws
from walle.analysis.measuring.wall_clock import iterations_after_warmup
from walle.analysis.runs import load

N = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def test_amdahl_is_recovered_exactly_without_noise() -> None:
    law = laws.fit_law(N, 3 * (0.9 / N + 0.1))
    assert law.time_1 == pytest.approx(3)
    assert law.serial == pytest.approx(0.1)
    assert law.coherence == 0
    assert 1 / law.serial == pytest.approx(10)


def test_universal_scalability_law_is_recovered_exactly_without_noise() -> None:
    speedup = N / (1 + 0.05 * (N - 1) + 0.002 * N * (N - 1))
    law = laws.fit_law(N, 7 / speedup, coherence=True)
    assert law.time_1 == pytest.approx(7)
    assert law.serial == pytest.approx(0.05)
    assert law.coherence == pytest.approx(0.002)
    np.testing.assert_allclose(law.speedup(N), speedup)
    assert law.best_n == pytest.approx(math.sqrt(0.95 / 0.002))


def test_perfect_scaling_has_no_serial_part_and_no_limit() -> None:
    law = laws.fit_law(N, 5 / N)
    assert law.serial == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(law.speedup(N), N)


def test_better_than_perfect_is_held_at_perfect() -> None:
    assert laws.fit_law(N, 5 / N**1.2).serial == 0


def test_a_base_other_than_one() -> None:
    law = laws.fit_law(N[1:], 3 * (0.9 / N[1:] + 0.1))
    assert law.serial == pytest.approx(0.1)
    assert law.speedup(4, base=2) == pytest.approx(0.55 / 0.325)


def test_where_learning_takes_over() -> None:
    law = laws.Law(time_1=2.0, serial=0.05, coherence=0.0)
    n = law.workers_for(0.5)
    assert law.time(n) == pytest.approx(0.5)
    assert n == pytest.approx(1.9 / 0.4)
    assert law.workers_for(2.0) == 1
    assert law.workers_for(0.1) == math.inf


def test_too_few_worker_counts() -> None:
    with pytest.raises(ValueError, match="2 parameters from 1 worker counts"):
        laws.fit_law([2, 2], [1, 1])


N = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def cells(rng: np.random.Generator, law: laws.Law, noise: float, seeds: int = 5) -> list[Cell]:
    found = []
    for n in N:
        values = law.time(n) * (1 + noise * rng.standard_normal(seeds))
        names = tuple(f"{n}-{i}" for i in range(seeds))
        found.append(cell(n, values, mean_draws(values, rng, 400), names))
    return found


@pytest.mark.slow
def test_serial_fraction_lies_in_its_interval_nine_times_in_ten() -> None:
    rng = np.random.default_rng(0)
    law = laws.Law(time_1=2.0, serial=0.05, coherence=0.0)
    hits = 0
    for _ in range(200):
        fitted = fit_law_of(cells(rng, law, noise=0.03))
        assert fitted is not None
        interval = fitted.interval(lambda found: found.serial)
        hits += interval.low <= 0.05 <= interval.high
    assert hits >= 180


def test_in_words() -> None:
    law = laws.Law(time_1=2.0, serial=0.05, coherence=0.0)
    found = cells(np.random.default_rng(0), law, noise=0.001)
    amdahl, usl, bottleneck = describe(found, learn_s=0.5)
    assert amdahl.startswith("Amdahl (5 points): serial fraction 5% [")
    assert "at most 20" in amdahl
    assert usl.startswith("Universal scalability law: contention 5%")
    assert "bottleneck from N = 4.7" in bottleneck
    assert "with one sampler already" in describe(found, learn_s=3.0)[-1]
    assert "never" in describe(found, learn_s=0.01)[-1]
    assert describe(found[:2], learn_s=0.5) == []  # every law goes through two points


def exact(law: laws.Law, workers: Sequence[float] = N, values: int = 3) -> list[Cell]:
    """Cells whose repeats agree on the times of the law."""
    times = {n: law.time(n) * np.ones(values) for n in workers}
    return [cell(n, x, np.full(40, x[0]), ("run",)) for n, x in times.items()]


def uncertain(workers: Sequence[float], coherence: float = 0.0) -> list[Cell]:
    """Two repeats with serial fractions of 20% and 100%: the mean has 60%, with a wide interval."""
    three = [laws.Law(1.0, serial, coherence) for serial in (0.2, 0.6, 1.0)]
    found = []
    for n in workers:
        low, mean, high = (float(law.time(n)) for law in three)
        draws = np.repeat([low, mean, high], [10, 20, 10])
        found.append(cell(n, [low, high], draws, ("a", "b"), math.inf))
    return found


def test_amdahls_law_is_fitted_unless_coherence_is_asked_for() -> None:
    cells = exact(laws.Law(7.0, 0.05, 0.002))
    for fitted, coherence in (
        (fit_law_of(cells), 0.0),
        (fit_law_of(cells, coherence=True), 0.002),
    ):
        assert fitted is not None
        every = [fitted.value, *fitted.draws]
        assert [law.coherence for law in every] == pytest.approx([coherence] * 41)
        assert fitted.cells == cells


def test_three_cells_have_amdahls_law_and_four_have_both() -> None:
    cells = exact(laws.Law(7.0, 0.05, 0.002))
    assert [len(describe(cells[:n], None)) for n in (2, 3, 4)] == [0, 1, 2]


def test_an_interval_stays_within_its_limits() -> None:
    fitted = fit_law_of(uncertain([1, 2]))
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
        cell(1, np.full(2, 8.0), np.full(400, seconds[0]), ("a", "b"), dof),
        cell(2, np.full(2, seconds[1]), second, ("c", "d"), dof),
    ]


def test_the_seconds_are_stretched_before_the_law_is_fitted() -> None:
    """From 8 s to 3.6 s is better than perfect, so the fraction is 0, and most draws have 0 too.

    At the end of the interval of 3.6 s, 3.6 exp(4.303 x 0.1) = 5.535, it is (2 x 5.535 - 8) / 8.
    Stretching the fraction itself, 0.095 without Student's t, gives 0.209.
    """
    fitted = fit_law_of(pair(0.1, dof=2))
    assert fitted is not None
    value, low, high = fitted.interval(lambda law: law.serial, most=1)
    assert (value, low) == (0, 0)
    assert high == pytest.approx((2 * 3.6 * np.exp(0.4303) - 8) / 8, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("serial", [0.0, 0.02, 0.97])
def test_coverage_of_the_serial_fraction_near_its_bounds(serial: float) -> None:
    """Stretched after fitting, the interval of 2% holds the truth in 90% of the trials."""
    rng = np.random.default_rng(0)
    times = {n: float(laws.Law(8.0, serial, 0.0).time(n)) for n in (1, 2)}
    hits = 0
    for _ in range(150):
        seconds = {n: time * np.exp(0.05 * rng.normal(size=2)) for n, time in times.items()}
        shared = share_spread(*measured(seconds, False))
        fitted = fit_law_of([replace(cell, draws=cell.draws[:120]) for cell in shared])
        assert fitted is not None
        found = fitted.interval(lambda law: law.serial, most=1)
        hits += found.low <= serial + 1e-9 and serial <= found.high + 1e-9
    assert hits / 150 > 0.92


def test_no_law_is_drawn_at_its_upper_bound() -> None:
    fitted = fit_law_of(pair(0.1, dof=2, seconds=(8.0, 9.0)))
    assert fitted is not None
    assert fitted.value.serial >= 1
    first, second = pair(0.1, dof=2, seconds=(8.0, 9.0))
    (said,) = describe([first, second, replace(second, by=4)], learn_s=0.1)
    assert said.startswith("Amdahl (3 points): more samplers collect no faster here, so")
    assert said.endswith("%, 100%], and no law is drawn.")
    low = (2 * 9 * np.exp(-0.4303) - 8) / 8
    assert fitted.interval(lambda law: law.serial).low == pytest.approx(low, abs=0.01)


def test_both_laws_and_their_best_number_of_samplers_in_words() -> None:
    amdahl, usl = describe(exact(laws.Law(7.0, 0.05, 0.002)), None)
    assert amdahl.startswith("Amdahl (5 points): serial fraction ")
    # fastest at sqrt(0.95 / 0.002)
    assert usl == (
        "Universal scalability law: contention 5% [5%, 5%], coherence 0.2% [0.2%, 0.2%]; "
        "fastest at N = 21.8 (extrapolated: measured up to N = 16)."
    )


def test_a_law_without_limit_in_words() -> None:
    better_than_perfect = [
        cell(n, np.full(3, 5 / n**1.2), np.full(40, 5 / n**1.2), ("run",)) for n in N
    ]
    amdahl, usl = describe(better_than_perfect, None)
    assert amdahl == "Amdahl (5 points): serial fraction 0% [0%, 0%], so no limit in sight."
    assert usl.endswith("contention 0% [0%, 0%], coherence 0% [0%, 0%]; no peak.")


def test_wide_intervals_in_words() -> None:
    # with a serial fraction of 0.2, 0.6 and 1, 0.7 s are reached by 1.6, 4 and no samplers
    assert describe(uncertain([1, 2, 4]), learn_s=0.69) == [
        "Amdahl (3 points): serial fraction 60% [19%, 100%], so at most 1.67x (extrapolated: "
        "measured up to N = 4).",
        "Learning takes 0.69 s per round: it becomes the bottleneck from N = 4.44 [1.63, inf] "
        "samplers on (extrapolated: measured up to N = 4).",
    ]
    _, usl = describe(uncertain([1, 2, 4, 8], coherence=0.01), None)
    assert usl.startswith("Universal scalability law: contention 60% [")
    assert usl.endswith("; fastest at N = 6.32.")


def test_the_limit_is_over_the_fewest_samplers() -> None:
    """T(2) = 0.55 s and 0.1 s are serial: at most 5.5 times as fast as two, not 10 times."""
    cells = [cell(n, np.ones(1) * (0.9 / n + 0.1), np.ones(40), ("run",)) for n in (2, 4, 8)]
    (found,) = describe(cells, None)
    assert "at most 5.5x over N = 2 (extrapolated: measured up to N = 8)." in found


def test_the_draws_of_two_cells_vary_evenly() -> None:
    """The end of T(1) / T(2) is that of Student's t, without the luck of pairs in a random order.

    Both have the deviation 0.1, so the logarithm of the ratio has 0.1 sqrt(2).
    """
    first, second = pair(0.1, dof=4, seconds=(8.0, 4.8))
    first = replace(first, draws=8 * np.exp(0.1 * normal_draws(generator(), 400)))
    fitted = fit_law_of([first, second])
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
    assert describe(exact(laws.Law(2.0, 0.05, 0.0)), learn_s)[-1].startswith(said)


def test_one_value_a_cell_has_no_interval_in_words() -> None:
    amdahl, *_ = describe(exact(laws.Law(2.0, 0.05, 0.0), values=1), None)
    assert amdahl == (
        "Amdahl (5 points): serial fraction 5%, so at most 20x "
        "(extrapolated: measured up to N = 16)."
    )


ONE, TWO, HALF = Shares(1.0, 1.0), Shares(0.5, 1.0), Shares(1.0, 0.5)


def test_seconds_of_a_round_by_hand() -> None:
    """1 s serial, 8 s of collecting, 4 s of learning: 13 s, and 1 + 8/4 + 4/2 = 5 s."""
    parts = RoundParts(1.0, 8.0, 4.0)
    assert sum(parts.with_shares(ONE)) == 13
    assert parts.with_shares(Shares(0.25, 0.5)) == (1.0, 2.0, 2.0)


def test_three_measurements_tell_three_parts_apart() -> None:
    found = fit_parts([ONE, TWO, HALF], [13.0, 9.0, 11.0])
    assert found == pytest.approx((1.0, 8.0, 4.0))


def test_what_was_not_varied_is_in_the_serial_part() -> None:
    assert fit_parts([ONE, TWO], [13.0, 9.0]) == pytest.approx((5.0, 8.0, 0.0))
    assert fit_parts([ONE, HALF], [13.0, 11.0]) == pytest.approx((9.0, 0.0, 4.0))


def test_no_part_is_negative() -> None:
    """Halving the samplers' share saved more than all of it."""
    found = fit_parts([ONE, TWO], [10.0, 4.0])
    assert found.serial == 0
    assert 0 < found.collect < 10


def test_workers_that_only_change_together_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match="3 parts cannot be separated"):
        fit_parts([ONE, Shares(0.5, 0.5), Shares(0.25, 0.25)], [13.0, 7.0, 4.0])


@pytest.mark.parametrize(
    ("pieces", "workers", "share"), [(8, 4, 1 / 4), (8, 3, 3 / 8), (2, 16, 1 / 2), (64, 1, 1.0)]
)
def test_the_largest_share(pieces: int, workers: int, share: float) -> None:
    assert largest_share(pieces, workers) == share


BOTH = [(1, 1), (2, 1), (1, 2), (2, 2)]


def jobs(*workers: tuple[int, int], **changes: object) -> list[Job]:
    """Runs without noise: 2 s of collecting, 0.5 s of learning and 0.02 s else."""
    same = {"serial": 0.0, "noise": 0.0, "shards": 2, "iterations": 4, **changes}
    return [Job(n=n, learners=k, **same) for n, k in workers]  # type: ignore[arg-type]


def fitted(root: Path, *found: Job) -> list[RoundFit]:
    sweep = load(write_sweep(root, list(found)))
    return fit_rounds(sweep, iterations_after_warmup(sweep, 1))


def test_the_parts_of_a_sweep_over_samplers_and_learners(tmp_path: Path) -> None:
    (fit,) = fitted(tmp_path, *jobs(*BOTH))
    assert fit.fit.value == pytest.approx((0.02, 2.0, 0.5))
    assert sorted(fit.workers) == sorted(BOTH)
    assert fit.varied == (True, True)


def test_seconds_for_a_thousand_steps_where_rounds_differ(tmp_path: Path) -> None:
    workers = [(1, 1), (2, 1), (4, 1)]
    found = fitted(tmp_path, *jobs(*workers), *jobs(*workers, batch_size=4096))
    assert [fit.fit.value.collect for fit in found] == pytest.approx([2 / 2.048, 2 / 4.096])
    assert {fit.line for fit in found} == {"batch_size 2048", "batch_size 4096"}


def test_evaluations_and_checkpoints_are_no_part_of_a_round(tmp_path: Path) -> None:
    root = write_sweep(tmp_path, jobs(*BOTH))
    for path in (root / "0", root / "3"):
        rows = load(path).iterations
        set_columns(path, iteration_s=rows["iteration_s"].to_numpy() + 3.0)
        set_columns(path, "timing", evaluate_s=1.0, checkpoint_s=2.0)
    sweep = load(root)
    (fit,) = fit_rounds(sweep, iterations_after_warmup(sweep, 1))
    assert fit.fit.value == pytest.approx((0.02, 2.0, 0.5))


def test_what_does_not_vary_is_serial_and_said(tmp_path: Path) -> None:
    (fit,) = fitted(tmp_path, *jobs((1, 1), (2, 1), (4, 1)))
    assert fit.fit.value == pytest.approx((0.52, 2.0, 0.0))
    whole, more = describe_rounds(fit, "round of 2,048 steps")
    assert whole.startswith("Whole rounds (3 points), per round of 2,048 steps: 2,000 ms are ")
    assert "divided by the samplers; 520 ms are serial; at most 4.85x; " in whole
    assert whole.endswith("learning is in the serial part, as learner.n does not vary.")
    assert "walle plan" in more
    (fit,) = fitted(tmp_path / "learners", *jobs((1, 1), (1, 2), (1, 4), shards=4))
    assert fit.fit.value == pytest.approx((2.02, 0.0, 0.5))
    assert "collecting is in the serial part" in describe_rounds(fit, "round")[0]


@pytest.mark.parametrize(
    "found",
    [
        jobs((1, 1), (2, 1), max_lag=1),  # learning overlaps collecting
        jobs((1, 1), (2, 2)),  # which of the two it was cannot be told
        jobs((2, 1)),
        jobs((1, 1), (2, 1)),  # two parts go through any two points
    ],
)
def test_runs_without_parts(tmp_path: Path, found: list[Job]) -> None:
    assert fitted(tmp_path, *found) == []
