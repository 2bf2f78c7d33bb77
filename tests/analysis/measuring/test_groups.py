from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.synthetic import Job, cell, set_columns, write_sweep
from walle.analysis import speedup
from walle.analysis.measuring import groups, stats
from walle.analysis.measuring.groups import (
    Cell,
    blocks_of,
    changing_together,
    design,
    line_keys,
    numeric_axis,
    resolve_key,
    share_spread,
    sort_key,
)
from walle.analysis.runs import BadInputError, load
from walle.analysis.speedup import speedups
from walle.analysis.writing import sentences


def test_the_sample_is_a_mean_a_run(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(), Job(n=2), Job(n=2, seed=1)]))
    per_run = {"0": np.array([1.0, 3.0]), "1": np.array([4.0, 6.0]), "2": np.array([9.0])}
    one, two = groups.measure(sweep, per_run, "sampler.n")
    assert (one.per_run.tolist(), two.per_run.tolist()) == ([2], [5, 9])
    assert (one.repeats, two.repeats) == ("1 seed", "2 seeds")
    assert two.interval().value == two.mean == 7
    assert two.rate().value == 1 / 7
    assert sentences.repeats_label([one, two]) == "1 to 2 seeds"
    assert sentences.sample(1, [one, two]) == [sentences.warmup_sentence(1)]
    assert "Points of 1 to 2 seeds have no" in sentences.few_repeats([one, two])[0]


def test_runs_without_values_are_left_out(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(), Job(n=2)]))
    (only,) = groups.measure(sweep, {"1": np.ones(3)}, "sampler.n")
    assert (only.by, only.names) == (2, ("1",))


def test_repeated_seeds_are_runs() -> None:
    assert groups.repeats_text(3, 3) == "3 seeds"
    assert groups.repeats_text(3, 2) == "3 runs"


TRUE_S = {1: 8.0, 2: 4.0, 4: 2.0}


@dataclass
class FakeRun:
    name: str
    block: str


@dataclass
class FakeSweep:
    """What `share_spread` reads of a sweep."""

    runs: list[FakeRun]

    def note(self, text: str) -> None:
        pass


def measured(seconds: dict[int, Any], blocks: bool) -> tuple[Any, list[Cell]]:
    """Cells of the seconds of each repeat, at each number of samplers."""
    runs, cells = [], []
    for n, values in seconds.items():
        names = tuple(f"{n}-{i}" for i in range(len(values)))
        runs += [FakeRun(name, str(i) if blocks else "") for i, name in enumerate(names)]
        draws = stats.mean_draws(np.asarray(values, float), stats.generator(), 50)
        cells.append(cell(n, values, draws, names))
    return FakeSweep(runs), cells


def trials(count: int, seeds: int, drift: float, *, noise: float = 0.05, blocks: bool) -> list[Any]:
    """Shared-spread cells of many synthetic sweeps, with a drift of each repeat's machine."""
    rng = np.random.default_rng(seeds)
    found = []
    for _ in range(count):
        machine = np.exp(drift * rng.normal(size=seeds))
        seconds = {
            n: s * machine * np.exp(noise * rng.normal(size=seeds)) for n, s in TRUE_S.items()
        }
        found.append(share_spread(*measured(seconds, blocks)))
    return found


def coverage(cells: list[list[Cell]]) -> tuple[float, float]:
    """How often intervals hold the true speedup, and their mean width in logarithms."""
    points = [(p.n, p.speedup) for each in cells for p in speedups(each)[1:]]
    hits = [s.low <= n <= s.high for n, s in points]
    return float(np.mean(hits)), float(np.mean([np.log(s.high / s.low) for _, s in points]))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_coverage_of_times_and_speedups_without_blocks(seeds: int) -> None:
    found = trials(250, seeds, 0.0, blocks=False)
    own = [c.own[0] <= TRUE_S[int(c.by)] <= c.own[1] for each in found for c in each if c.own]
    assert len(own) == 750
    assert 0.92 < np.mean(own) < 0.98
    assert 0.92 < coverage(found)[0] < 0.985


def test_intervals_at_two_seeds_are_those_of_all_cells() -> None:
    """Student's t is 12.7 with one degree of freedom and 3.18 with three."""
    sweep, cells = measured({1: [8.0, 8.4], 2: [4.0, 4.2], 4: [2.0, 2.1]}, blocks=False)
    deviation = np.log(1.05) / np.sqrt(2)  # of each pair, so of all
    for shared in share_spread(sweep, cells):
        reach = 3.182 * deviation / np.sqrt(2)
        assert shared.dof == 3
        assert shared.interval() == pytest.approx(
            (shared.mean, shared.mean * np.exp(-reach), shared.mean * np.exp(reach)), rel=1e-3
        )


def test_a_single_run_has_the_spread_of_the_others() -> None:
    sweep, cells = measured({1: [8.0, 8.4], 2: [4.0, 4.2], 4: [2.0]}, blocks=False)
    alone = share_spread(sweep, cells)[2]
    assert alone.dof == 2
    assert alone.interval().high == pytest.approx(
        2 * np.exp(4.30265 * np.log(1.05) / np.sqrt(2)), rel=1e-4
    )
    sweep, cells = measured({1: [8.0, 8.4], 2: [4.0]}, blocks=False)  # t would be 12.7
    assert all(np.isnan(shared.interval().high) for shared in share_spread(sweep, cells))
    assert all(np.isnan(point.speedup.high) for point in speedups(share_spread(sweep, cells)))


@pytest.mark.parametrize("blocks", [False, True])
def test_a_point_whose_runs_differ_far_more_keeps_its_own_interval(blocks: bool) -> None:
    """The interval of the wide point holds its runs, and does not widen that of the others."""
    quiet, wide = np.array([8.0, 8.02, 8.04, 8.01]), [0.28, 0.23, 0.3, 0.24]
    seconds = {n: np.roll(quiet, i) / n for i, n in enumerate((1, 2, 4, 8, 16, 32))}
    *others, last = share_spread(*measured(seconds | {64: wide}, blocks))
    reaches = [np.log(cell.own[1] / cell.own[0]) / 2 for cell in (*others, last) if cell.own]
    assert max(reaches[:-1]) < 0.07
    assert reaches[-1] > 0.17


def test_bartlett_by_hand() -> None:
    """Variances 1 and 4, ten degrees each: 20 ln 2.5 - 10 ln 4 over 1.05 is 4.250, p = 3.9%."""
    assert not stats.one_variance(np.array([10.0, 40.0]), np.array([10.0, 10.0]))
    assert stats.one_variance(np.array([10.0, 35.0]), np.array([10.0, 10.0]))  # p = 6.1%
    assert stats.one_variance(np.array([1.0, 900.0]), np.array([1.0, 1.0]))
    equal = np.array([np.nextafter(0.5, 1), 0.5])  # rounding makes their statistic negative
    assert stats.one_variance(equal, np.array([2.0, 2.0]))


def test_cells_without_repeats_stay() -> None:
    sweep, cells = measured({1: [8.0], 2: [4.0]}, blocks=False)
    assert share_spread(sweep, cells) == cells


SLOW = pytest.mark.slow


@pytest.mark.parametrize("seeds", [3, pytest.param(5, marks=SLOW)])
def test_coverage_with_a_machine_that_drifts(seeds: int) -> None:
    """Repeats differ by 20%, and runs within a block by 2%."""
    paired = trials(250, seeds, 0.2, noise=0.02, blocks=True)
    covered, width = coverage(paired)
    assert 0.92 < covered < 0.99
    assert width < coverage(trials(250, seeds, 0.2, noise=0.02, blocks=False))[1] / 4
    own = [c.own[0] <= TRUE_S[int(c.by)] <= c.own[1] for each in paired for c in each if c.own]
    assert 0.91 < np.mean(own) < 0.99


def test_the_median_over_blocks_by_hand() -> None:
    sweep, cells = measured({1: [8.0, 8.0, 16.0], 2: [4.0, 5.0, 8.0]}, blocks=True)
    found = share_spread(sweep, cells)
    assert [cell.mean for cell in found] == pytest.approx([8.0, 5.0])
    assert [cell.compared for cell in found] == pytest.approx([8.0, 4.0])
    points = speedups(found)
    assert points[1].speedup.value == pytest.approx(2)  # of 2, 1.6 and 2


def test_blocks_that_two_cells_do_not_share_do_not_narrow_their_ratio() -> None:
    """Of six blocks two count: variances of medians, with c = pi / 2, are 2c/2 for the ratio."""
    rng = np.random.default_rng(0)
    first, second = np.exp(0.1 * rng.normal(size=6)), np.exp(0.1 * rng.normal(size=2))
    sweep, cells = measured({1: 8 * first, 2: 4 * second}, blocks=True)
    base, other = share_spread(sweep, cells)
    whole = np.log(base.draws).var() + np.log(other.draws).var()
    single = np.log(base.draws).var() * 6 / (math.pi / 2)
    assert whole == pytest.approx(single * (math.pi / 2 / 6 + 2 / 2 - 1 / 6), rel=0.02)


def test_runs_that_share_no_block_are_not_paired() -> None:
    sweep, cells = measured({1: [8.0, 8.4], 2: [4.0, 4.2]}, blocks=True)
    assert set(blocks_of(sweep, cells)) == {"1-0", "1-1", "2-0", "2-1"}
    sweep.runs[3] = FakeRun("2-1", "")
    assert blocks_of(sweep, cells) == {}
    sweep.runs[2:] = [FakeRun("2-0", "7"), FakeRun("2-1", "8")]
    assert blocks_of(sweep, cells) == {}


def loaded(order: list[tuple[int, int]], start: float) -> dict[tuple[int, int], float]:
    """Seconds of jobs (n, repeat) that run one after the other, with a load for a third of them.

    The load takes half of one core, and a run waits for its slowest sampler. `start` is where the
    load begins, as a share of the whole time.
    """
    whole = sum(TRUE_S[n] for n, _ in order)
    begin, end = start * whole, (start + 1 / 3) * whole
    now, found = 0.0, {}
    for n, repeat in order:
        overlap = max(0.0, min(end, now + TRUE_S[n]) - max(begin, now))
        found[n, repeat] = TRUE_S[n] + overlap
        now += TRUE_S[n]
    return found


def write_loaded(root: Path, order: list[tuple[int, int]], start: float, blocks: bool) -> Path:
    seconds = loaded(order, start)
    jobs = [Job(n=n, seed=repeat, iterations=4) for n, repeat in seconds]
    write_sweep(root, jobs)
    for number, took in enumerate(seconds.values()):
        set_columns(root / str(number), collect_s=took)
    entries = [
        {"directory": str(i), "num": i} | ({"block": repeat} if blocks else {})
        for i, (_, repeat) in enumerate(seconds)
    ]
    (root / "manifest.json").write_text(json.dumps({"jobs": entries}))
    return root


@pytest.mark.parametrize("start", [0.0, 1 / 3, 2 / 3])
def test_a_load_on_one_core_for_a_third_of_the_time(tmp_path: Path, start: float) -> None:
    """All repeats of n=1 and then those of n=2 take the load for scaling; blocks do not."""
    one_by_one = [(n, repeat) for n in (1, 2) for repeat in range(5)]
    table = speedup.study(load(write_loaded(tmp_path / "a", one_by_one, start, False))).table
    assert abs(table["speedup"].iloc[1] / 2 - 1) > 0.1
    in_blocks = [(n, r) for r in range(5) for n in ((1, 2) if r % 2 else (2, 1))]
    study = speedup.study(load(write_loaded(tmp_path / "b", in_blocks, start, True)))
    assert study.table["speedup"].iloc[1] == pytest.approx(2, rel=0.05)
    row = study.table.iloc[1]
    assert row["speedup_low"] < 2 < row["speedup_high"]
    assert any("measured in 5 blocks" in text for text in study.notes)


PAIRS = (("a2c", 128), ("ppo", 2048))


def test_keys_by_their_name_their_group_or_their_last_part(tasks_sweep: Path) -> None:
    sweep = load(tasks_sweep)
    assert resolve_key(sweep, "sampler.n") == "sampler.n"
    assert resolve_key(sweep, "n") == "sampler.n"
    assert resolve_key(sweep, "env") == "env.id"
    assert resolve_key(sweep, "algo") == "algo.name"


def test_an_unknown_key_names_the_nearest(tasks_sweep: Path) -> None:
    with pytest.raises(BadInputError, match=r"did you mean 'sampler.n'"):
        resolve_key(load(tasks_sweep), "sampler.m")


def test_an_ambiguous_key_names_all_that_fit(tmp_path: Path) -> None:
    """Where both or neither vary; else the one that varies is meant."""
    with pytest.raises(BadInputError, match=r"choose one of: learner\.n, sampler\.n"):
        resolve_key(load(write_sweep(tmp_path / "sweep", [Job()])), "n")


def test_one_name_for_keys_that_change_together(tasks_sweep: Path) -> None:
    """env.id and env.max_steps both differ between the tasks; one of them is enough."""
    sweep = load(tasks_sweep)
    assert sweep.varying == ["env.id", "env.max_steps", "sampler.n"]
    assert line_keys(sweep, "sampler.n") == ["env.id"]
    assert line_keys(sweep, "env.id") == ["sampler.n"]


def test_runs_ordered_by_line_and_value(tmp_path: Path) -> None:
    jobs = [Job(n=n, env=env) for n in (16, 2, 8) for env in ("Walker2d-v5", "Ant-v5")]
    rows = design(load(write_sweep(tmp_path / "sweep", jobs)), "sampler.n")
    assert rows["line"].tolist() == ["Ant-v5"] * 3 + ["Walker2d-v5"] * 3
    assert rows["by"].tolist() == [2, 8, 16] * 2
    assert rows["run"].tolist() == ["3", "5", "1", "2", "4", "0"]


def test_a_line_is_named_by_its_key_unless_the_value_says_it(tmp_path: Path) -> None:
    jobs = [Job(n=n, max_lag=lag) for n in (1, 2) for lag in (0, None)]
    rows = design(load(write_sweep(tmp_path / "sweep", jobs)), "sampler.n")
    assert set(rows["line"]) == {"max_lag 0", "max_lag null"}


def test_numbers_sort_before_words() -> None:
    assert sorted(["null", 10, 9.5, "a"], key=sort_key) == [9.5, 10, "a", "null"]


def test_workers_are_counted_from_one(tmp_path: Path) -> None:
    sweep = load(write_sweep(tmp_path / "s", [Job(max_lag=0), Job(max_lag=1)]))
    with pytest.raises(BadInputError, match=r"numbers above 0, sampler.max_lag is 0"):
        numeric_axis(sweep, "max_lag")
    assert numeric_axis(sweep, "sampler.n") == "sampler.n"


def test_keys_that_change_together_are_told(tmp_path: Path) -> None:
    """A learning rate of each algorithm hides the algorithm; `algo.name` tells of its group."""
    jobs = [Job(n=n, algo=algo, batch_size=size) for n in (1, 2) for algo, size in PAIRS]
    sweep = load(write_sweep(tmp_path / "s", jobs))
    assert changing_together(sweep, "batch_size") == {"batch_size": ["algo.name", "total_steps"]}
    assert changing_together(sweep, "sampler.n") == {"algo.name": ["batch_size", "total_steps"]}
    assert sentences.also_differ(sweep, "batch_size") == [
        "With batch_size also differ: algo.name (a2c, ppo), total_steps (3840, 61440)."
    ]
    same = load(write_sweep(tmp_path / "t", [Job(), Job(n=2)]))
    assert sentences.also_differ(same, "sampler.n") == []


def test_the_default_axis_of_a_speedup_is_a_number_of_workers(tmp_path: Path) -> None:
    jobs = [Job(algo=algo, batch_size=size) for algo, size in PAIRS]
    sweep = load(write_sweep(tmp_path / "s", jobs))
    assert numeric_axis(sweep, None) == "sampler.n"  # the only line key is the algorithm
    with pytest.raises(BadInputError, match=r"have sampler.n=1.*: what varies is algo.name"):
        speedup.study(sweep)
    sizes = load(write_sweep(tmp_path / "t", [Job(batch_size=size) for size in (100, 200)]))
    assert numeric_axis(sizes, "batch_size") == "batch_size"
    with pytest.raises(BadInputError, match=r"have sampler.n=1.*: what varies is batch_size"):
        speedup.study(sizes)
