"""The files of sweeps/: each composes, and runs at a tiny size."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict

from hydra_plugins.walle_launcher.launcher import up_to_cores
from tests import printed
from tests.conftest import read
from walle.config import config_directory, validate
from walle.launcher.planning import FastLoader
from walle.tuning.space import read_space

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "sweeps").glob("*.yaml"))
SWEEPS = [file for file in FILES if not file.stem.startswith("tune_")]
# tests/test_reproductions.py runs those that a page prints with other settings.
CHANGED = {command.split()[1] for command in printed.SWEEPS if "=" in command}
SEARCHES = [file for file in FILES if file not in SWEEPS]
TINY = (
    "batch_size=320",
    "total_steps=640",
    "seed=0",
    "eval.episodes=0",
    "hydra.launcher.check_cores=false",
)
OWN_SIZES = {
    # 5,000 steps at random come first
    **dict.fromkeys(("off_policy", "replay"), ("batch_size=64", "total_steps=5056")),
    "reproduce_parallel_trpo": ("batch_size=400", "total_steps=800"),  # 200 lanes
    "parallel_trpo_2016": ("sampler.lanes=8", "batch_size=400", "total_steps=800"),
    "batch_ppo_2017": ("batch_size=300", "total_steps=600"),  # 30 lanes
    **dict.fromkeys(
        ("study_collecting", "study_lag"),
        ("batch_size=256", "total_steps=512"),  # 128 lanes
    ),
    "study_waiting": ("algo.compile=false",),
    **dict.fromkeys(
        ("study_learning", "study_return"),
        ("batch_size=256", "total_steps=512", "algo.minibatch_size=128", "algo.compile=false"),
    ),
}


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    """As many cores as the widest sweep asks for, so that no machine leaves a count out."""
    monkeypatch.setattr("walle.system.machine.usable_cores", lambda *_: list(range(20)))


def test_all_questions_are_there():
    names = {"batch", "lag", "returns", "simulators", "speedup", "tasks", "threads"}
    assert {file.stem for file in SWEEPS} >= names


def search_path(file):
    """Adds conf/ to the search path that a sweep may have: an override replaces the file's own."""
    own = OmegaConf.load(file).hydra.get("searchpath", [])
    return [f"hydra.searchpath={['file://' + str(config_directory()), *own]}"]


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_each_composes_at_the_ends_of_its_axes(file):
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        composed = compose(file.stem, return_hydra_config=True)
        params = OmegaConf.to_container(composed.hydra.sweeper.params, resolve=True)
        assert composed.name == file.stem
        assert composed.hydra.mode.name == "MULTIRUN"
        quick = FastLoader(GlobalHydra.instance().config_loader())
        for end in (0, -1):
            point = [f"{key}={str(values).split(',')[end]}" for key, values in params.items()]
            job = quick.load_sweep_config(composed, point)
            with open_dict(job):
                del job["hydra"]
            validate(job)


@pytest.mark.parametrize("file", SEARCHES, ids=lambda file: file.stem)
def test_each_search_can_run_at_the_ends_of_its_space(file):
    with initialize_config_dir(str(file.parent), version_base="1.3"):
        search = search_path(file)
        composed = compose(file.stem, overrides=search, return_hydra_config=True)
        assert composed.name == file.stem
        assert composed.hydra.sweeper._target_.endswith(".WalleOptuna")
        params = OmegaConf.to_container(composed.hydra.sweeper.params)
        for point in read_space(params, [], OverridesParser.create()).ends():
            validate(
                compose(file.stem, overrides=[*search, *(f"{k}={v}" for k, v in point.items())])
            )


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_no_sampler_of_a_sweep_over_n_has_so_few_lanes_that_python_sets_the_speed(file):
    with initialize_config_dir(str(file.parent), version_base="1.3"):
        search = search_path(file)
        composed = compose(file.stem, overrides=search, return_hydra_config=True)
    counts = composed.hydra.sweeper.params.get("sampler.n")
    if counts is None or file.stem == "study_waiting":  # a step waits
        return
    lanes = composed.sampler.lanes
    assert lanes // max(map(int, counts.split(","))) >= 8
    assert composed.batch_size % lanes == 0


@pytest.mark.parametrize(("cores", "kept"), [(1, "2"), (2, "2"), (5, "2,4"), (64, "2,4,8")])
def test_counts_above_the_cores_are_left_out_but_the_least_stays(cores, kept, monkeypatch):
    monkeypatch.setattr("walle.system.machine.usable_cores", lambda *_: list(range(cores)))
    assert up_to_cores(2, 4, 8) == kept
    assert OmegaConf.create({"n": "${walle.up_to_cores:2,4,8}"}).n == kept


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("wall_e_2018", {1, 2, 5, 8, 10, 20}),
        ("parallel_trpo_2016", set(range(1, 9))),
        ("chainerrl_2018", set()),
    ],
)
def test_experiments_of_the_papers_run_at_their_counts_with_five_seeds(name, theirs):
    params = OmegaConf.load(ROOT / "sweeps" / f"{name}.yaml").hydra.sweeper.params
    counts = set(map(int, params["sampler.n"].split(",")))
    assert counts == theirs | {1, 2, 4, 8, 10, 16, 20}
    assert params.seed == "0,1,2,3,4"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "place"),
    [
        (["name=mine"], r"in multirun/mine,"),
        ([], r"in multirun/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d-\d{6},"),
    ],
)
def test_a_sweep_is_placed_by_its_name_or_by_the_time(overrides, place, tmp_path):
    dry = ["-m", "seed=0,1", "hydra.launcher.dry_run=true", *overrides]
    ran = run(dry, tmp_path)
    assert re.search(place, ran.stdout), ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", [file for file in SWEEPS if file.stem not in CHANGED], ids=lambda file: file.stem
)
def test_each_runs_at_a_tiny_size(file, in_this_process, tmp_path):
    params = OmegaConf.load(file).hydra.sweeper.params
    axis = next(key for key in params if key != "seed")
    first, second = str(params[axis]).split(",")[:2]
    fixed = [override for override in TINY if override.partition("=")[0] != axis]
    others = [f"{key}={str(params[key]).split(',')[0]}" for key in params if key != axis]
    chosen = ["-cd", str(file.parent), "-cn", file.stem]
    own = OWN_SIZES.get(file.stem, ())
    states = in_this_process(*chosen, *others, *fixed, *own, f"{axis}={first},{second}")
    assert states == ["completed", "completed"]
    for job, value in enumerate((first, second)):
        directory = tmp_path / "multirun" / file.stem / str(job)
        assert f"{axis}={value}" in json.loads((directory / "run.json").read_text())["overrides"]
        assert read(directory / "iterations.csv")


def run(arguments, directory):
    """`python -m walle.run` in that directory."""
    return subprocess.run(
        [sys.executable, "-m", "walle.run", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
