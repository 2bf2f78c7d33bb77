from __future__ import annotations

import pytest

from walle.launcher.composing import Composed, compares_times, distinct, in_order
from walle.launcher.identity import Identity, config_hash, flatten


def composed(**values):
    flat = flatten(values)
    return Composed(None, values, Identity(-1, (), config_hash(flat), flat))


GRID = [composed(n=n, seed=seed) for n in (1, 2, 4) for seed in (7, 5)]


def test_given_is_as_given():
    assert in_order(GRID, "given") == [0, 1, 2, 3, 4, 5]


def test_interleaved_takes_one_seed_after_the_other_in_the_order_they_appear():
    assert in_order(GRID, "interleaved") == [0, 2, 4, 1, 3, 5]


def test_interleaved_without_seeds_is_as_given():
    assert in_order([composed(n=n) for n in (4, 2, 1)], "interleaved") == [0, 1, 2]


def test_shuffled_is_a_permutation_and_always_the_same():
    many = [composed(n=n) for n in range(50)]
    order = in_order(many, "shuffled")
    assert sorted(order) == list(range(50))
    assert order != list(range(50))
    assert order == in_order(many, "shuffled")


def test_jobs_that_differ_in_a_setting_of_hydra_are_not_the_same():
    job = composed(n=1)
    own = job.identity._replace(overrides=("n=1", "hydra.sweep.subdir=a"))
    assert distinct([job, job._replace(identity=own)]).places == [0, 1]


@pytest.mark.parametrize(
    ("jobs", "swept", "expected"),
    [
        ([{"sampler": {"n": 1}}, {"sampler": {"n": 2}}], set(), True),
        ([{"sampler": {"n": 2}}, {"sampler": {"n": 2}}], set(), False),
        ([{"sampler": {"n": 2}}], {"sampler.n"}, True),  # the rest of the axis is done already
        ([{"seed": 1}, {"seed": 2}], {"seed"}, False),
    ],
)
def test_a_sweep_over_sampler_n_compares_times(jobs, swept, expected):
    assert compares_times([composed(**job) for job in jobs], swept) is expected
