"""The launcher for another Hydra application: that of Hydra's tutorial, with two timeouts."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from walle.launcher.records import read_manifest, resume_text

ROOT = Path(__file__).resolve().parents[2]
APP = """
import os
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def my_app(cfg: DictConfig) -> int:
    print(OmegaConf.to_yaml(cfg))
    print("cores", sorted(os.sched_getaffinity(0)))
    rooms = {name.split(".")[1] for name in sys.modules if name.startswith("walle.")}
    print("rooms", sorted(rooms - {"errors", "launcher", "system", "timing", "tuning"}))
    print("heavy", sorted({"torch", "gymnasium", "pandas"} & sys.modules.keys()))
    if cfg.db.driver == "postgresql" and cfg.db.timeout == 20 and not Path("mended").exists():
        raise ConnectionError("no such host")
    return cfg.db.timeout


if __name__ == "__main__":
    my_app()
"""
FILES = {
    "my_app.py": APP,
    "conf/config.yaml": "defaults:\n  - db: mysql\nhydra:\n  sweep: {dir: out}\n",
    "conf/db/mysql.yaml": "driver: mysql\nuser: omry\ntimeout: 10\n",
    "conf/db/postgresql.yaml": "driver: postgresql\nuser: postgres_user\ntimeout: 10\n",
}


@pytest.fixture
def directory(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(directory, *arguments):
    return subprocess.run(
        [sys.executable, "my_app.py", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def index(directory):
    with (directory / "out" / "index.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_hydras_tutorial_runs_fails_and_resumes(directory):
    sweep = ("-m", "db=mysql,postgresql", "db.timeout=10,20", "hydra/launcher=walle")
    ran = run(directory, *sweep)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    states = ["completed", "completed", "completed", "failed"]
    assert [row["state"] for row in index(directory)] == states
    assert index(directory)[3]["error"] == "ConnectionError: no such host"
    assert [row["return_value"] for row in index(directory)] == ["10", "20", "10", ""]
    for num in range(4):
        log = (directory / "out" / str(num) / "output.log").read_text()
        status = json.loads((directory / "out" / str(num) / "status.json").read_text())
        assert f"cores {status['cores']}" in log
        assert len(status["cores"]) == 1
        assert "rooms []\nheavy []\n" in log

    (directory / "mended").touch()
    arguments = shlex.split(
        resume_text(read_manifest(directory / "out")).removeprefix("To resume: ")
    )
    assert arguments[1] == "my_app.py"
    ran = run(directory, *arguments[2:])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 jobs in out, 3 done already" in ran.stdout
    assert [row["state"] for row in index(directory)] == ["completed"] * 4
    assert [row["attempts"] for row in index(directory)] == ["1", "1", "1", "2"]


def test_a_dry_run_writes_nothing(directory):
    ran = run(
        directory, "-m", "db.timeout=10,20", "hydra/launcher=walle", "hydra.launcher.dry_run=true"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "run   #1 on 1 core(s) in out/1: db.timeout=20" in ran.stdout
    assert not (directory / "out").exists()
