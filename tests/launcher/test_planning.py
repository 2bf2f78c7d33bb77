from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from walle.errors import ConfigError
from walle.launcher.allocation import Need, Resources, need
from walle.launcher.planning import (
    Job,
    Plan,
    assign_numbers,
    compares_times,
    config_changed,
    distinct,
    in_order,
    plan_lines,
    quoted,
    refuse_other_base,
    side_by_side,
    without_new_keys,
)
from walle.launcher.records import Identity, Manifest
from walle.system.identity import config_hash


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
    "directory",
    [
        "multirun/2026-01-01/12-00-00",
        "/a b/c",
        "it's=1",
        "a,b",
        "été",
        "x#1",
        "[0]",
        "x\\'y",
        "x\\\\",
    ],
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


@pytest.mark.parametrize(
    ("jobs", "needs", "swept", "expected"),
    [
        ([{"sampler": {"n": 1}}, {"sampler": {"n": 2}}], [1, 2], set(), True),
        ([{"sampler": {"n": 2}}, {"sampler": {"n": 2}}], [2, 2], set(), False),
        ([{"sampler": {"n": 2}}], [2], {"sampler.n"}, True),  # the rest of the axis is done
        ([{"learner": {"n": 1}}, {"learner": {"n": 2}}], [2, 2], set(), True),
        ([{"sampler": {"max_lag": 0}}, {"sampler": {"max_lag": 1}}], [1, 2], set(), True),
        ([{"seed": 1}, {"seed": 2}], [1, 1], {"seed"}, False),
        ([{"seed": 1}], [None], set(), False),
    ],
)
def test_a_sweep_over_a_key_of_speed_compares_times(jobs, needs, swept, expected):
    found = [
        Job("", None, Path(), Identity(-1, (), "", {}), Need(need), values=values)
        for values, need in zip(jobs, needs, strict=True)
    ]
    assert compares_times(found, swept) is expected


@pytest.mark.parametrize(
    ("values", "swept", "cores", "fix"),
    [
        ({"sampler": {"n": None}}, {"seed"}, 2, "sampler=serial or sampler.n=1"),
        ({"sampler": {"n": 3}}, {"algo.learning_rate"}, 4, "sampler=serial or sampler.n=1"),
        ({"sampler": {"n": None, "max_lag": 1}}, {"seed"}, 4, "sampler.n=1"),
        (
            {"sampler": {"name": "serial"}, "learner": {"n": 4}},
            {"seed"},
            4,
            "sampler=serial or sampler.n=1, learner.n=1 and learner.threads=1",
        ),
        ({"sampler": {"n": None}}, {"sampler.n"}, 4, None),  # it measures time
        ({"sampler": {"n": 2}}, {"seed"}, 4, None),  # two at a time
        ({"sampler": {"n": None, "max_lag": 1}}, {"seed"}, 2, None),  # each needs both
        ({"sampler": {"n": None}}, {"seed"}, 1, None),
        ({"sampler": {"n": None}, "device": "cuda"}, {"seed"}, 4, None),
    ],
)
def test_how_to_run_jobs_side_by_side(values, swept, cores, fix):
    identity = Identity(-1, (), "", {})
    jobs = [Job("", None, Path(), identity, need(values), values=values)] * 2
    advice = side_by_side(jobs, swept, cores)
    assert (advice and advice.partition(" side by side add ")[2]) == fix
    assert side_by_side(jobs[:1], swept, cores) is None


def test_jobs_that_differ_in_a_setting_of_hydra_are_not_the_same():
    identity = Identity(-1, (), config_hash({"n": 1}), {"n": 1})
    job = Job("", None, Path(), identity, Need(), values={"n": 1})
    own = identity._replace(overrides=("n=1", "hydra.sweep.subdir=a"))
    assert distinct([job, job._replace(identity=own)])[1] == [0, 1]


def job(num=-1, *overrides, **config):
    return Identity(num, overrides, config_hash(config), config)


def test_a_difference_names_both_sides():
    before, after = {"a": 1, "b": None, "c": 0}, {"a": 2, "b": None, "d": "x"}
    lines = str(config_changed(before, after, "the sweep")).splitlines()[1:-1]
    assert lines == ["  a: 1 -> 2", "  c: 0 -> (absent)", '  d: (absent) -> "x"']


def test_new_jobs_get_the_numbers_after_the_known_ones():
    known = [job(0, "n=1", n=1), job(1, "n=2", n=2)]
    wanted = [job(-1, "n=2", n=2), job(-1, "n=4", n=4), job(-1, "n=1", n=1)]
    assert assign_numbers(known, wanted) == [1, 2, 0]


def test_an_empty_directory_is_numbered_from_where_the_sweeper_says():
    assert assign_numbers([], [job(-1, "n=1", n=1), job(-1, "n=2", n=2)], 5) == [5, 6]


def test_the_same_config_written_otherwise_is_the_same_job():
    known = [job(0, "n=1", n=1, seed=0)]
    assert assign_numbers(known, [job(-1, "n=1", "seed=0", n=1, seed=0)]) == [0]


def test_two_equal_jobs_of_one_launch_get_two_numbers():
    assert assign_numbers([], [job(-1, "n=1", n=1), job(-1, "+n=1", n=1)]) == [0, 1]


def test_a_job_without_a_value_of_a_key_that_came_later_is_the_same_job():
    known = [job(0, "n=1", "k=null", n=1), job(1, "n=1", "k=2", n=1, k=2)]
    again = Job("", None, Path(), job(-1, "n=1", "k=null", n=1, k=None), Need())
    (found,) = without_new_keys(known, [again])
    assert assign_numbers(known, [found.identity]) == [0]


def test_the_first_job_of_a_choice_is_compared_with_no_other_in_a_search():
    known = [job(0, "algo=ppo", "n=1", n=1, algo="ppo", batch=4096, steps=10)]
    first = job(-1, "algo=dqn", "n=1", n=1, algo="dqn", batch=256, steps=10)
    refuse_other_base(known, [first], {"algo", "n"}, ["algo"])
    with pytest.raises(ConfigError, match="batch: 4096 -> 256"):
        refuse_other_base(known, [first], {"algo", "n"})
    same_choice = job(-1, "algo=ppo", "n=2", n=2, algo="ppo", batch=4096, steps=20)
    with pytest.raises(ConfigError, match="steps: 10 -> 20"):
        refuse_other_base(known, [first, same_choice], {"algo", "n"}, ["algo"])


def test_the_same_overrides_with_another_config_are_refused():
    known = [job(3, "env=hopper", env="hopper", gamma=0.99)]
    with pytest.raises(ConfigError, match=r"(?s)job 3 \(env=hopper\).*gamma: 0.99 -> 0.9"):
        assign_numbers(known, [job(-1, "env=hopper", env="hopper", gamma=0.9)])


def test_a_changed_base_is_refused_even_for_new_jobs():
    known = [job(0, n=1, steps=10), job(1, n=2, steps=10)]
    with pytest.raises(ConfigError, match="steps: 10 -> 20"):
        refuse_other_base(known, [job(n=4, steps=20)], {"n"})


@pytest.mark.parametrize(
    ("known", "wanted", "swept"),
    [
        # The axis grows.
        ([job(n=1, a=0), job(n=2, a=0)], [job(n=4, a=0)], {"n"}),
        # One value, then several: the axis is named by the second launch.
        ([job(n=1, a=0)], [job(n=1, a=0), job(n=2, a=0)], {"n"}),
        # A group holds keys of its own.
        (
            [job(**{"env.id": "A", "a": 0})],
            [job(**{"env.id": "B", "env.step_ms": 5, "a": 0})],
            {"env"},
        ),
        # What follows from an axis varies with it.
        ([job(n=1, twice=2), job(n=2, twice=4)], [job(n=4, twice=8)], {"n"}),
    ],
)
def test_more_of_the_same_sweep_is_accepted(known, wanted, swept):
    assert refuse_other_base(known, wanted, swept) is None  # where it refuses, it raises


def test_a_key_that_appeared_is_a_change():
    with pytest.raises(ConfigError, match="extra: \\(absent\\) -> 1"):
        refuse_other_base([job(n=1)], [job(n=1, extra=1)], {"n"})


def test_a_key_without_a_value_that_a_later_version_added_makes_no_other_job():
    known = [job(0, "n=1", n=1, empty=None)]
    configs = [{"n": 1, "empty": None, "new": None, "list": []}, {"n": 2, "empty": None, "map": {}}]
    configs += [{"n": 1, "empty": [], "new": None}, {"n": 1, "empty": None, "new": 0}]
    jobs = [Job("", None, Path(), job(-1, **each), Need()) for each in configs]
    found = [each.identity.config for each in without_new_keys(known, jobs)]
    assert found == [known[0].config, {"n": 2, "empty": None}, {"n": 1, "empty": []}, configs[3]]
    assert without_new_keys(known, jobs)[0].identity.config_hash == known[0].config_hash
    assert without_new_keys([], jobs) == jobs
