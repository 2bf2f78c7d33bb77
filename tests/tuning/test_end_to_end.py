"""Searches in processes of their own, with walle's launcher: killed, shared, pruned."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launcher.conftest import App
from tests.launcher.workers.test_slurm import pretended as pretended  # the fixture

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
APP = """
import signal, sys, time
from pathlib import Path
import hydra

HEAD = "env_steps,return_mean\\n"


@hydra.main(version_base="1.3", config_path=".", config_name="config")
def main(cfg):
    directory = Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir)
    print(f"job {cfg.job} speaks")
    with open("ran.txt", "a") as file:
        file.write(f"{directory.parent.name}/{directory.name}\\n")
    good = cfg.x < 0.5 or not cfg.behind
    if not good:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit((directory / "saved").write_text("")))
    rows = "".join(f"{step},{10 * step if good else 0}\\n" for step in (1, 2, 3))
    (directory / "eval.csv").write_text(HEAD + rows)
    time.sleep(cfg.sleep_s if good else 60)
    return cfg.x


if __name__ == "__main__":
    main()
"""
CONFIG = """
defaults:
  - override hydra/launcher: walle
  - override hydra/sweeper: walle_optuna
name: null
job: 0
x: 0.0
behind: false
sleep_s: 0
seed: 0
hydra:
  sweep: {dir: "${name}"}
  sweeper: {sampler: random, n_trials: 6}
"""


@pytest.fixture
def app(tmp_path):
    app = App(tmp_path)
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "config.yaml").write_text(CONFIG)
    yield app
    for pid in app.processes():
        os.kill(pid, signal.SIGKILL)


def rows(file):
    with file.open() as lines:
        return list(csv.DictReader(lines))


def started(app):
    file = app.directory / "ran.txt"
    return file.read_text().split() if file.exists() else []


def test_a_killed_search_goes_on_and_no_trial_runs_twice(app):
    settings = ("x=interval(0,1)", "name=mine", "sleep_s=0.5", "hydra.sweeper.seeds=2")
    launcher = app.start(*settings)
    app.wait_until(lambda: len(started(app)) >= 5)  # in the middle of the third trial
    launcher.kill()
    launcher.wait()
    app.wait_until(lambda: app.processes() == [])
    code, said = app.run(*settings)
    assert code == 0, said
    assert "1 interrupted trial will resume" in said
    trials = rows(app.directory / "mine" / "trials.csv")
    assert [trial["state"] for trial in trials] == ["complete"] * 6
    jobs = [job for trial in trials for job in trial["jobs"].split()]
    assert len({*jobs}) == 12
    again = len(started(app)) - 12  # jobs that the kill broke off ran again
    assert 0 <= again <= 2
    assert len({trial["x"] for trial in trials}) == 6
    index = rows(app.directory / "mine" / "index.csv")
    assert [row["state"] for row in index] == ["completed"] * 12


def test_two_searches_at_once_share_a_study(app):
    shared = ("x=interval(0,1)", "hydra.sweeper.storage=all.journal", "sleep_s=0.3")
    searches = [app.start(f"name={name}", *shared, "hydra.launcher.cores=[0]") for name in "ab"]
    assert [search.wait(timeout=500) for search in searches] == [0, 0], app.said()
    for name in "ab":
        assert (app.directory / name / "optimization_results.yaml").exists()
    app.run("name=a", *shared)  # nothing is left to do; it writes the whole table
    trials = rows(app.directory / "a" / "trials.csv")
    assert [trial["state"] for trial in trials] == ["complete"] * 6
    assert {trial["launcher"] for trial in trials} == {"a", "b"}
    assert sorted(started(app)) == sorted(trial["jobs"] for trial in trials)
    assert len({trial["x"] for trial in trials}) == 6


def test_a_trial_that_is_behind_is_pruned_and_counts_as_no_failure(app):
    pruner = "hydra.sweeper.pruner={name: threshold, lower: 5}"
    settings = ("x=0.1,0.9", "behind=true", "name=mine", "hydra.sweeper.sampler=grid", pruner)
    code, said = app.run(*settings, "hydra.launcher.max_failures=1")  # within a minute
    assert code == 0, said
    trials = rows(app.directory / "mine" / "trials.csv")
    assert {trial["x"]: trial["state"] for trial in trials} == {"0.1": "complete", "0.9": "pruned"}
    job = next(trial["jobs"] for trial in trials if trial["x"] == "0.9")
    status = json.loads((app.directory / "mine" / job / "status.json").read_text())
    assert status["state"] == "pruned"
    assert "was pruned after evaluation 1 with 0" in status["error"]
    assert (app.directory / "mine" / job / "saved").exists()  # it ended by itself, in good order
    index = rows(app.directory / "mine" / "index.csv")
    assert {row["state"] for row in index if row["job"] == job} == {"pruned"}


def test_settings_of_one_choice_reach_its_jobs_alone(app):
    """They are searched, and a pruner finds the trial of their jobs."""
    (app.directory / "kind").mkdir()
    for kind in "ab":
        (app.directory / "kind" / f"{kind}.yaml").write_text(f"name: {kind}\n")
    config = CONFIG.replace("defaults:", "defaults:\n  - _self_\n  - kind: a")
    (app.directory / "config.yaml").write_text(config)
    own = ("hydra.launcher.own_settings=kind", "kind=a,b", "behind=true")
    search = ("hydra.sweeper.sampler=grid", "hydra.sweeper.pruner={name: threshold, lower: 5}")
    code, said = app.run(*own, "++b.x=0.1,0.9", "name=mine", *search)
    assert code == 0, said
    trials = rows(app.directory / "mine" / "trials.csv")
    assert {(trial["kind"], trial["++b.x"]): trial["state"] for trial in trials} == {
        ("a", "0.1"): "complete",
        ("a", "0.9"): "complete",
        ("b", "0.1"): "complete",
        ("b", "0.9"): "pruned",
    }
    best = (app.directory / "mine" / "experiment" / "best.yaml").read_text()
    assert "override /kind: b" in best
    assert "x: 0.1" in best
    code, said = app.run(own[0], "++b.x=0.1,0.9", "name=other")
    assert code == 2
    assert "b.x=0.1,0.9: no job of this sweep has kind=b; the sweep has kind=a: add b" in said


def test_workers_on_slurm_stop_the_jobs_of_a_pruned_trial_and_start_no_more_of_them(app, pretended):
    settings = ("x=0.1,0.9", "behind=true", "name=mine", "hydra.sweeper.sampler=grid")
    search = ("hydra.sweeper.pruner={name: threshold, lower: 5}", "hydra.sweeper.seeds=2")
    workers = ("hydra.launcher.slurm.workers=1", "hydra.launcher.slurm.heartbeat_s=0.2")
    slurm = ("hydra.launcher.backend=slurm", *workers)
    code, said = app.run(*settings, *search, *slurm, SLURM_CPUS_ON_NODE="1")  # within a minute
    assert code == 0, said
    trials = rows(app.directory / "mine" / "trials.csv")
    assert {trial["x"]: trial["state"] for trial in trials} == {"0.1": "complete", "0.9": "pruned"}
    jobs = next(trial["jobs"].split() for trial in trials if trial["x"] == "0.9")
    for job in jobs:
        status = json.loads((app.directory / "mine" / job / "status.json").read_text())
        assert status["state"] == "pruned"
        assert "was pruned after evaluation 1 with 0" in status["error"]
    first, second = (app.directory / "mine" / job for job in jobs)
    assert (first / "saved").exists()  # it ended by itself, in good order
    assert f"mine/{second.name}" not in started(app)  # it waited for the core
    index = rows(app.directory / "mine" / "index.csv")
    assert {row["state"] for row in index if row["job"] in jobs} == {"pruned"}
    app.wait_until(lambda: app.processes() == [])


def test_a_pruned_run_keeps_its_checkpoint(tmp_path):
    settings = (
        "env=cartpole",
        "sampler=serial",
        "total_steps=2e6",
        "batch_size=256",
        "sampler.lanes=8",
        "eval.every=512",
        "eval.episodes=1",
        "algo.epochs=1",
        "algo.compile=false",
        "logger.progress=quiet",
        "name=pruned",
        "algo.gamma=0.9,0.99",
        "hydra/sweeper=walle_optuna",
        "hydra.sweeper.n_trials=1",
        "hydra.sweeper.pruner={name: threshold, lower: 1000}",
    )
    search = subprocess.run(
        [sys.executable, "-m", "walle.run", "-m", *settings],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert search.returncode == 1, search.stdout + search.stderr
    assert "no trial is complete" in search.stderr
    directory = tmp_path / "multirun" / "pruned"
    assert [row["state"] for row in rows(directory / "index.csv")] == ["pruned"]
    assert [row["state"] for row in rows(directory / "trials.csv")] == ["pruned"]
    assert (directory / "0" / "checkpoints" / "last.pt").exists()
    status = json.loads((directory / "0" / "status.json").read_text())
    assert status["state"] == "pruned"
    assert "Traceback" not in (directory / "0" / "output.log").read_text()
