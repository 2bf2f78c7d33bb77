from __future__ import annotations

import pytest

from walle.launcher.allocation import Allocator, Need, need
from walle.launcher.resources import Resources


@pytest.mark.parametrize(
    ("config", "cores"),
    [
        ({}, 1),
        ({"sampler": "a string", "learner": 7}, 1),
        ({"sampler": {"name": "process", "n": 4, "max_lag": 0}}, 4),
        ({"sampler": {"name": "process", "n": 4, "max_lag": 1}}, 5),
        ({"sampler": {"name": "process", "n": 4, "max_lag": None}}, 5),
        ({"sampler": {"name": "process", "n": None, "max_lag": 1}}, None),
        ({"sampler": {"name": "serial", "n": None, "max_lag": 0}}, 1),
        ({"sampler": {"name": "process", "n": 4, "max_lag": 0}, "learner": {"n": 3}}, 4),
        ({"sampler": {"name": "process", "n": 4, "max_lag": 1}, "learner": {"n": 3}}, 7),
        ({"sampler": {"name": "process", "n": 2, "max_lag": 0}, "learner": {"threads": 4}}, 4),
        ({"sampler": {"name": "process", "n": 2, "max_lag": 1}, "learner": {"threads": 4}}, 6),
        ({"sampler": {"name": "serial"}, "learner": {"n": 2, "threads": 2}}, 4),
    ],
)
def test_a_jobs_cores_follow_from_its_config(config, cores):
    assert need(config) == Need(cores, 0)


@pytest.mark.parametrize(
    ("config", "gpus"),
    [
        ({"device": "cuda"}, 1),
        ({"device": "cuda:1"}, 1),
        ({"device": "cpu"}, 0),
        ({"device": "cuda", "learner": {"n": 2}}, 2),
    ],
)
def test_a_jobs_gpus_follow_from_its_device(config, gpus):
    assert need(config).gpus == gpus


def granted(allocator):
    """Everything that may start now."""
    found = []
    while (grant := allocator.next()) is not None:
        found.append(grant)
    return found


def test_jobs_side_by_side_get_disjoint_cores():
    allocator = Allocator([Need(2), Need(1), Need(2)], [0, 1, 2], Resources([0, 1, 2, 3], []))
    first, second = granted(allocator)
    assert (first.cores, second.cores) == ((0, 1), (2,))
    assert allocator.waiting == 1
    allocator.release(0)
    (third,) = granted(allocator)
    assert third.cores == (0, 1)


def test_a_small_job_never_overtakes_a_large_one():
    allocator = Allocator([Need(1), Need(2), Need(1)], [0, 1, 2], Resources([0, 1], []))
    assert [grant.job for grant in granted(allocator)] == [0]
    allocator.release(0)
    assert [grant.job for grant in granted(allocator)] == [1]


def test_a_job_that_needs_more_than_there_is_runs_alone_on_all():
    allocator = Allocator([Need(1), Need(9), Need(1)], [0, 1, 2], Resources([0, 1], []))
    assert [grant.job for grant in granted(allocator)] == [0]
    allocator.release(0)
    (large,) = granted(allocator)
    assert large.oversubscribed
    assert large.cores == (0, 1)
    allocator.release(1)
    (small,) = granted(allocator)
    assert not small.oversubscribed


def test_a_job_for_all_cores_is_not_oversubscribed():
    (grant,) = granted(Allocator([Need(None)], [0], Resources([4, 5, 6], [])))
    assert grant.cores == (4, 5, 6)
    assert not grant.oversubscribed


def test_exclusive_is_one_at_a_time_on_no_more_than_needed():
    allocator = Allocator([Need(1), Need(1)], [1, 0], Resources([0, 1], []), exclusive=True)
    (only,) = granted(allocator)
    assert (only.job, only.cores) == (1, (0,))


@pytest.mark.parametrize(
    ("count", "turns"),
    [
        (1, [(4,), (5,), (6,), (4,)]),
        (2, [(4, 5), (4, 6), (5, 6), (4, 5)]),
        (3, [(4, 5, 6)] * 4),
    ],
)
def test_every_core_takes_its_turn(count, turns):
    needs = [Need(count, turn=turn) for turn in range(4)]
    allocator = Allocator(needs, [0, 1, 2, 3], Resources([4, 5, 6], []), exclusive=True)
    for job, cores in enumerate(turns):
        (grant,) = granted(allocator)
        assert (grant.job, grant.cores) == (job, cores)
        allocator.release(job)


def test_gpu_slots_are_handed_out_and_taken_back():
    allocator = Allocator([Need(1, 1)] * 3, [0, 1, 2], Resources([0, 1, 2], ["a", "b"]))
    assert [grant.gpus for grant in granted(allocator)] == [("a",), ("b",)]
    allocator.release(1)
    assert [grant.gpus for grant in granted(allocator)] == [("b",)]


def test_a_slot_named_twice_is_shared():
    allocator = Allocator([Need(1, 1)] * 2, [0, 1], Resources([0, 1], ["7", "7"]))
    assert [grant.gpus for grant in granted(allocator)] == [("7",), ("7",)]


def test_a_job_is_tried_again_at_once_and_none_starts_after_a_stop():
    allocator = Allocator([Need(1)] * 2, [0, 1], Resources([0], []))
    assert allocator.next() is not None
    allocator.release(0)
    allocator.requeue(0)
    assert allocator.waiting == 2
    assert allocator.next().job == 0
    allocator.release(0)
    allocator.requeue(0)
    allocator.stop()
    assert allocator.next() is None


def test_a_job_of_another_application_needs_one_core():
    assert Need() == Need(1, 0)
    # a count of zero means something else to that application
    assert need({"sampler": {"n": 0, "max_lag": 1}}) == Need(2, 0)


@pytest.mark.parametrize(
    "sampler", [{"name": "serial"}, {"n": None}, {"n": 2, "max_lag": 1}, {"n": 2, "max_lag": 0}]
)
def test_a_job_needs_a_gpu_for_each_learner_however_it_collects(sampler):
    assert need({"device": "cuda", "sampler": sampler, "learner": {"n": 3}}).gpus == 3


def test_an_allocator_tells_whether_it_was_stopped():
    allocator = Allocator([Need(1)], [0], Resources([0], []))
    assert allocator.stopped is False
    allocator.stop()
    assert allocator.stopped is True
