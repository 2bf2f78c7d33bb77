from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from walle.launcher.allocation import Need, Resources
from walle.launcher.composing import Composed, Job
from walle.launcher.identity import Identity
from walle.launcher.planning import (
    Plan,
    in_order,
    in_repeats,
    measures_time,
    plan_lines,
    quoted,
    repeat_numbers,
)
from walle.launcher.records import Manifest


def test_a_plan_in_words():
    jobs = [
        Job(f"seed={n}", None, Path(f"out/{n}"), Identity(n, (), "", {}), Need(cores))
        for n, cores in enumerate([1, 2, 3, None])
    ]
    plan = Plan(jobs, {0: 1.5}, [2, 1, 3], [1], Manifest((), {}, (), ()), exclusive=False)
    assert plan_lines(plan, Resources([0, 1], []), Path("out"), "on cores 0-1") == [
        "4 jobs in out, side by side where cores allow, on cores 0-1",
        "skip  #0 (done, returned 1.5): seed=0",
        "run   #2 on 3 core(s) (oversubscribed) in out/2: seed=2",
        "run   #1 from its checkpoint on 2 core(s) in out/1: seed=1",
        "run   #3 on all cores in out/3: seed=3",
    ]


def test_a_plan_in_blocks():
    jobs = [
        Job(f"seed={n}", None, Path(f"out/{n}"), Identity(n, (), "", {}), Need(1), block=n)
        for n in range(2)
    ]
    manifest = Manifest((), {"repeat": "seed"}, (), ())
    plan = Plan(jobs, {}, [0, 1], [], manifest, exclusive=True)
    assert plan_lines(plan, Resources([0], []), Path("out"), "on cores 0")[0] == (
        "2 jobs in out, one at a time, on cores 0, in 2 blocks, each a value of seed in "
        "an order of its own"
    )


@pytest.mark.parametrize(
    "directory", ["multirun/2026-01-01/12-00-00", "/a b/c", "it's=1", "a,b", "été", "x#1", "[0]"]
)
def test_a_directory_is_quoted_for_hydra(directory):
    (override,) = OverridesParser.create().parse_overrides([f"key={quoted(directory)}"])
    assert not override.is_sweep_override()
    assert override.value() == directory


REPEATS = [0, 1, 0, 1, 0, 1]  # sampler.n=1,2,4 seed=7,5


def test_given_is_as_given():
    assert in_order(REPEATS, "given") == [0, 1, 2, 3, 4, 5]


def test_interleaved_takes_one_repeat_after_the_other():
    assert in_order(REPEATS, "interleaved") == [0, 2, 4, 1, 3, 5]
    assert in_order([0, 0, 0], "interleaved") == [0, 1, 2]


def test_shuffled_is_a_permutation_and_always_the_same():
    order = in_order([0] * 50, "shuffled")
    assert sorted(order) == list(range(50))
    assert order != list(range(50))
    assert order == in_order([0] * 50, "shuffled")


def test_every_block_has_all_values_once_in_an_order_of_its_own():
    repeats = [seed for _ in range(8) for seed in range(5)]  # 8 values, 5 seeds
    order = in_order(repeats, "blocks")
    blocks = [order[8 * block : 8 * block + 8] for block in range(5)]
    assert [[repeats[job] for job in block] for block in blocks] == [[n] * 8 for n in range(5)]
    values = [[job // 5 for job in block] for block in blocks]
    assert all(sorted(block) == list(range(8)) for block in values)
    assert all(one != other for one, other in pairwise(values))
    assert in_order(repeats, "blocks") == order


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("exclusive", [True, False])
def test_cores_take_turns_among_the_repeats_of_jobs_that_run_one_at_a_time(blocks, exclusive):
    jobs = [
        Job(f"sampler.n={n}", None, Path(str(n)), Identity(n, (), "", {}), Need(n)) for n in (1, 2)
    ]
    found = in_repeats(jobs, [3, 0], blocks=blocks, exclusive=exclusive)
    assert [job.need for job in found] == [Need(1, turn=3 if exclusive else 0), Need(2)]
    assert [job.block for job in found] == ([3, 0] if blocks else [None, None])


def test_repeats_are_numbered_as_they_appear_and_keep_their_numbers():
    configs = [{"seed": 7}, {"seed": 5}, {"seed": 7}]
    assert repeat_numbers(configs, "seed", {}) == [0, 1, 0]
    assert repeat_numbers([{"seed": 9}, *configs], "seed", {"7": 0, "5": 1}) == [2, 0, 1, 0]
    assert repeat_numbers(configs, "part", {}) == [0, 0, 0]


@pytest.mark.parametrize(
    ("jobs", "needs", "swept", "expected"),
    [
        ([{"sampler": {"n": 1}}, {"sampler": {"n": 2}}], [1, 2], set(), True),
        ([{"sampler": {"n": 2}}, {"sampler": {"n": 2}}], [2, 2], set(), False),
        ([{"sampler": {"n": 2}}], [2], {"sampler.n"}, True),  # the rest of the axis is done
        ([{"learner": {"n": 1}}, {"learner": {"n": 2}}], [2, 2], set(), True),
        ([{"sampler": {"max_lag": 0}}, {"sampler": {"max_lag": 1}}], [1, 2], set(), True),
        ([{"seed": 1}, {"seed": 2}], [1, 1], {"seed"}, False),
        ([{"seed": 1}, {"seed": 2}], [None, None], {"seed"}, True),  # they run alone anyway
        ([{"seed": 1}], [None], set(), False),
    ],
)
def test_a_sweep_over_a_key_of_speed_measures_time(jobs, needs, swept, expected):
    found = [Composed(None, job, Identity(-1, (), "", {})) for job in jobs]
    assert measures_time(found, needs, swept) is expected
