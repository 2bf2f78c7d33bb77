from __future__ import annotations

import csv
import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from walle.launcher.records import (
    Identity,
    JobRecord,
    Manifest,
    launcher_locked,
    read_manifest,
    write_manifest,
)
from walle.launcher.workers import slurm
from walle.launcher.workers.claims import Claims
from walle.launcher.workers.submission import Submission
from walle.sweep import job_rows, main
from walle.system.run_files import update_status


@pytest.fixture
def sweep(tmp_path):
    """Two jobs: one half done and running, one not started."""
    config = {"total_steps": 100}
    jobs = tuple(
        JobRecord(Identity(n, (f"seed={n}", "total_steps=100"), "hash", config), str(n), 1)
        for n in (0, 1)
    )
    write_manifest(tmp_path, Manifest(("seed",), {}, jobs, ()))
    update_status(tmp_path / "0", state="running", cores=[2, 3])
    (tmp_path / "0" / "iterations.csv").write_text(
        "iteration,env_steps,wall_s,return_mean\n1,25,10.0,\n2,50,20.0,1.5\n"
    )
    return tmp_path


def test_a_running_sweep(sweep):
    with launcher_locked(sweep):
        running, pending = job_rows(sweep)
    assert (running.state, running.label, running.cores) == ("running", "seed=0", "2-3")
    assert (running.progress.iteration, running.remaining_s) == (2, 20.0)
    assert (pending.num, pending.state, pending.remaining_s) == (1, "pending", None)


def test_a_running_job_without_a_launcher_is_lost(sweep):
    assert [(row.state, row.remaining_s) for row in job_rows(sweep)] == [
        ("lost", None),
        ("pending", None),
    ]


def test_status_prints_the_table_and_the_sum(sweep, capsys):
    assert main(["status", str(sweep)]) == 0
    printed = capsys.readouterr().out
    assert "seed=0" in printed
    assert "1 lost, 1 pending\nTo resume: start the sweep again with" in printed


def test_status_tells_how_to_go_on(sweep, capsys, monkeypatch):
    launch = {"command": "python -m walle.run -m seed=0,1", "directory": "/where"}
    launch["to_resume"] = ["hydra.launcher.resume=true"]
    write_manifest(sweep, read_manifest(sweep)._replace(launches=(launch,)))
    assert main(["status", str(sweep)]) == 0
    end = "To resume: python -m walle.run -m seed=0,1 hydra.launcher.resume=true"
    assert capsys.readouterr().out.endswith(f"{end} (in /where)\n")
    monkeypatch.setattr("os.getcwd", lambda: "/where")
    main(["status", str(sweep)])
    assert capsys.readouterr().out.endswith(f"{end}\n")
    with launcher_locked(sweep):
        main(["status", str(sweep)])
    assert "To resume" not in capsys.readouterr().out


def test_index_is_rebuilt(sweep, capsys):
    assert main(["index", str(sweep)]) == 0
    assert "index.csv: 2 jobs" in capsys.readouterr().out
    with (sweep / "index.csv").open() as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["running", "pending"]


def test_a_sweep_that_may_only_be_read(sweep, capsys, monkeypatch):
    opened = Path.open

    def open_to_read(path, mode="r", *arguments, **settings):
        if {*"wax+"} & {*mode}:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, mode, *arguments, **settings)

    with launcher_locked(sweep):
        monkeypatch.setattr(Path, "open", open_to_read)
        assert main(["status", str(sweep)]) == 0
    assert "1 running, 1 pending" in capsys.readouterr().out
    (sweep / "index.csv").mkdir()
    assert main(["index", str(sweep)]) == 2
    reason = f"cannot write {sweep}/index.csv: Is a directory"
    assert capsys.readouterr().err == f"walle sweep: {reason}\n"


def test_without_a_directory_the_newest_sweep_is_shown(sweep, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 2
    assert "there is no sweep below multirun/" in capsys.readouterr().err
    (tmp_path / "multirun").mkdir()
    shutil.copytree(sweep, tmp_path / "multirun" / "old", ignore=lambda *_: ["multirun"])
    shutil.copytree(sweep, tmp_path / "multirun" / "day" / "new", ignore=lambda *_: ["multirun"])
    os.utime(tmp_path / "multirun" / "old" / "manifest.json", (1, 1))
    assert main(["status"]) == 0
    assert "multirun/day/new: " in capsys.readouterr().out


def test_a_directory_that_is_no_sweep(tmp_path, capsys):
    assert main(["status", str(tmp_path)]) == 2
    assert "holds no manifest.json" in capsys.readouterr().err
    (tmp_path / "manifest.json").write_text(json.dumps([]))
    assert main(["status", str(tmp_path / "manifest.json")]) == 2
    assert "holds no manifest.json" in capsys.readouterr().err
    assert main(["index", str(tmp_path)]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_heartbeats_tell_which_workers_on_ray_live(sweep, capsys):
    directory = sweep / ".workers" / "1"
    claims = Claims(directory, "0-node7-99")
    claims.take(0, 0)
    (directory / "logs").mkdir()
    Submission(directory, ["walle-sweep-0"], [0, 1], "ray", stale_s=90).record()

    def shown():
        assert main(["status", str(sweep)]) == 0
        return capsys.readouterr().out

    assert "none has started yet" in shown()
    (directory / "logs" / "0.log").touch()
    with claims.beating(60):
        assert "running" in shown().splitlines()[1]
        assert "workers on Ray: 1 running" in (living := shown())
        assert "To resume" not in living
        os.utime(directory / "alive" / "0-node7-99", (0, 0))
        assert "lost" in (silent := shown()).splitlines()[1]
        assert "workers on Ray: 0 running, 1 vanished" in silent
        assert "To resume" in silent


def test_a_job_is_lost_when_slurm_no_longer_knows_its_worker(sweep, monkeypatch, capsys):
    claims = Claims(sweep / ".workers" / "1", "12_0-node7-99")
    claims.take(0, 0)
    Submission(sweep / ".workers" / "1", ["12"], [0, 1]).record()
    asked = []

    def queue(states):
        monkeypatch.setattr(slurm, "states", lambda arrays: asked.append(arrays) or states)
        assert main(["status", str(sweep)]) == 0
        return capsys.readouterr().out

    pending = ("PENDING", "Resources")
    shown = queue({"12_0": ("RUNNING", "None"), "12_1": pending})
    assert "running" in shown.splitlines()[1]
    assert "workers in Slurm: 1 running, 1 pending: Resources (12)" in shown
    assert "To resume" not in shown
    shown = queue({})
    assert "lost" in shown.splitlines()[1]
    assert "To resume" in shown
    shown = queue(None)  # from a machine without Slurm
    assert "running" in shown.splitlines()[1]
    assert "Slurm cannot be asked from here" in shown
    assert asked == [["12"]] * 3  # one question a command

    for job in (0, 1):
        claims.take(job, 0)
        claims.end(job, 0, "completed")
    queue({})
    assert len(asked) == 3  # all jobs have ended: there is nothing to ask
