from __future__ import annotations

import os
from pathlib import Path

from tests.analysis.synthetic import Job, write_sweep
from walle.analysis.runs import flatten, load, newest


def test_newest_is_the_one_written_to_last(tmp_path: Path) -> None:
    old = write_sweep(tmp_path / "multirun" / "old", [Job()])
    new = write_sweep(tmp_path / "multirun" / "2026-01-02" / "03-04-05", [Job()])
    (new / "manifest.json").unlink()  # as Hydra's own launcher leaves it
    for file in old.rglob("*"):
        os.utime(file, (1e9, 1e9))
    assert newest(tmp_path / "multirun") == new
    for file in new.rglob("*"):
        os.utime(file, (9e8, 9e8))
    assert newest(tmp_path / "multirun") == old


def test_flatten() -> None:
    config = {"sampler": {"n": 2, "max_lag": None}, "net": {"hidden": [64, 64]}, "on": True}
    assert dict(flatten(config)) == {
        "sampler.n": 2,
        "sampler.max_lag": "null",
        "net.hidden": "[64, 64]",
        "on": "true",
    }


def test_overlap_and_cores(tmp_path: Path) -> None:
    jobs = [Job(n=2, max_lag=lag, cores=2) for lag in (0, 1, None)]
    runs = load(write_sweep(tmp_path / "sweep", jobs)).runs
    assert [run.mode for run in runs] == ["lock-step", "overlapped", "free-running"]
    assert [run.oversubscribed for run in runs] == [False, True, True]
