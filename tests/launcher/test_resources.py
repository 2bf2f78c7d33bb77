from __future__ import annotations

import os

import pytest

from walle.launcher.resources import (
    job_environment,
    parse_cpu_list,
    spread,
    sweep_cores,
    thread_settings,
    visible_gpus,
)


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


def test_every_physical_core_before_any_second_thread():
    siblings = {0: [0, 4], 4: [0, 4], 1: [1, 5], 5: [1, 5]}
    assert spread([0, 1, 4, 5], siblings) == [0, 1, 4, 5]
    siblings = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}
    assert spread([0, 1, 2, 3], siblings) == [0, 2, 1, 3]
    assert spread([1, 2], siblings) == [1, 2]  # a sibling the sweep may not use does not count


def test_the_kernels_lists():
    assert parse_cpu_list("0-2,8\n") == [0, 1, 2, 8]
    assert parse_cpu_list("3") == [3]


def test_only_cores_this_process_has_are_handed_out():
    assert sorted(sweep_cores(None)) == sorted(os.sched_getaffinity(0))
    with pytest.raises(ValueError, match="names \\[100000\\]"):
        sweep_cores([100000])
    with pytest.raises(ValueError, match="none twice"):
        sweep_cores([min(os.sched_getaffinity(0))] * 2)
    with pytest.raises(ValueError, match="at least one core"):
        sweep_cores([])
