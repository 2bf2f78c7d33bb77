from __future__ import annotations

from hydra_plugins.walle_launcher._machine import (
    job_environment,
    moment,
    oom_kills,
    parse_cpuinfo_mhz,
    thread_settings,
    visible_gpus,
)

CPUINFO = """processor\t: 0
model name\t: Some CPU
cpu MHz\t\t: 2500.500
flags\t\t: a b

processor\t: 1
model name\t: Some CPU
cpu MHz\t\t: 1000.000

"""


def test_frequencies_of_each_processor():
    assert parse_cpuinfo_mhz(CPUINFO) == {0: 2500.5, 1: 1000.0}
    assert parse_cpuinfo_mhz("processor\t: 0\nmodel name\t: hides it\n") == {}


def test_the_machine_now():
    now = moment([0])
    assert now.load >= 0
    assert now.mhz is None or now.mhz > 0
    assert oom_kills() >= 0


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
