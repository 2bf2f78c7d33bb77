from __future__ import annotations

import os

import pytest

from walle.launcher.allocation import (
    Allocator,
    Need,
    Resources,
    job_environment,
    need,
    sweep_cores,
    thread_settings,
    visible_gpus,
)
from walle.system.machine import THREAD_VARIABLES, read_siblings, spread


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
        ({"sampler": {"name": "serial"}, "learner": {"n": None}}, None),
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


def test_cores_take_no_turns_among_jobs_that_run_side_by_side():
    allocator = Allocator([Need(1, turn=1)], [0], Resources([4, 5, 6], []))
    assert [grant.cores for grant in granted(allocator)] == [(4,)]


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


def test_the_sweeps_threads_replace_the_users_and_nothing_binds_them():
    inherited = {"HOME": "/", "OMP_NUM_THREADS": "9", "KMP_AFFINITY": "compact"}
    environ = job_environment(inherited, thread_settings(2))
    assert environ["OMP_NUM_THREADS"] == environ["MKL_NUM_THREADS"] == "2"
    assert environ["OMP_PROC_BIND"] == "false"
    assert environ["HOME"] == "/"
    assert "KMP_AFFINITY" not in environ


def test_gpu_slots():
    assert visible_gpus(["3", "3"], {"CUDA_VISIBLE_DEVICES": "0"}) == ["3", "3"]
    assert visible_gpus(None, {"CUDA_VISIBLE_DEVICES": "0, GPU-ab"}) == ["0", "GPU-ab"]
    assert visible_gpus(None, {"CUDA_VISIBLE_DEVICES": ""}) == []


def test_only_cores_this_process_has_are_handed_out():
    assert sorted(sweep_cores(None)) == sorted(os.sched_getaffinity(0))
    with pytest.raises(ValueError, match="names \\[100000\\]"):
        sweep_cores([100000])
    with pytest.raises(ValueError, match="none twice"):
        sweep_cores([min(os.sched_getaffinity(0))] * 2)
    with pytest.raises(ValueError, match="at least one core"):
        sweep_cores([])


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """Puts a tool of NVIDIA's driver, and nothing else, on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(script):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)

    return write


def test_gpus_are_counted_by_the_driver_if_nothing_else_names_them(nvidia_smi):
    assert visible_gpus(None, {}) == []
    nvidia_smi('[ "$1" = -L ] && echo "GPU 0: H200 (UUID: GPU-1)" && echo "GPU 1: H200"')
    assert visible_gpus(None, {}) == ["0", "1"]
    nvidia_smi('echo "GPU 0: not to be reached"; exit 9')
    assert visible_gpus(None, {}) == []


def test_every_library_of_a_job_has_its_threads_fixed():
    settings = thread_settings(3)
    assert {settings.pop(name) for name in THREAD_VARIABLES} == {"3"}
    assert settings == {"OMP_PROC_BIND": "false", "OMP_DYNAMIC": "false", "MKL_DYNAMIC": "FALSE"}


def test_nothing_binds_a_jobs_threads_to_cores():
    inherited = dict.fromkeys(("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "HOME"), "0")
    assert job_environment(inherited, {}) == {"HOME": "0"}


def test_a_core_that_may_not_be_used_is_named_with_those_that_may():
    usable = sorted(os.sched_getaffinity(0))
    with pytest.raises(ValueError, match="may only run on") as caught:
        sweep_cores([100000, usable[0], 99999])
    assert str(caught.value).startswith("hydra.launcher.cores names [99999, 100000], ")
    cure = "name some of these, or leave it null for all"
    assert str(caught.value).endswith(f"may only run on {usable}: {cure}")


def test_cores_are_handed_out_in_the_order_of_their_siblings():
    usable = sorted(os.sched_getaffinity(0))
    assert sweep_cores(usable[::-1]) == sweep_cores(None) == spread(usable, read_siblings(usable))
