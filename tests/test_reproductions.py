"""Commands of pages that measure, such as docs/study.md: sweeps, settings, scripts, flags."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from tests.analysis.synthetic import Job, set_columns, write_sweep
from tests.printed import SWEEPS, TEXT, commands
from tests.test_sweep_files import OWN_SIZES, TINY, run, search_path
from walle.config import config_directory, validate

ROOT = Path(__file__).resolve().parents[1]
# Settings in a sentence or a table, such as "the same with `algo.epochs=5`".
PARTS = commands(TEXT, r"((?:[a-z][a-z_.]*=\S+ ?)+)$")
RUNS = commands(TEXT, r"(?:walle run|python -m walle\.run) (?!-cn|NAME)(?:-m )?(.+)")
SCRIPTS = commands(TEXT, r"python (analysis/(?!SCRIPT)\w+\.py.*)")
PLANS = [f"analysis/plan.py {rest}" for rest in commands(TEXT, r"walle plan (.+)")]


def composed(name, overrides=()):
    return validate(merged(name, overrides))


def merged(name, overrides=()):
    directory = str(config_directory() if name == "config" else ROOT / "sweeps")
    with initialize_config_dir(directory, version_base="1.3"):
        search = [] if name == "config" else search_path(ROOT / "sweeps" / f"{name}.yaml")
        return compose(name, overrides=[*search, *first(overrides)])


def first(overrides):
    """The first value of each of them."""
    return [re.sub(r"=(?!\[)([^,]+),.*", r"=\1", each.replace("…", "0")) for each in overrides]


def test_every_sweep_has_its_file():  # tests/test_sweep_files.py composes each
    assert len(SWEEPS) > 8
    names = {command.split()[1] for command in SWEEPS}
    assert {name for name in names if not (ROOT / "sweeps" / f"{name}.yaml").exists()} == set()


@pytest.mark.parametrize("command", [command for command in SWEEPS if "=" in command])
def test_every_changed_sweep_composes_as_printed(command):
    _, name, *overrides = shlex.split(command)
    assert composed(name, overrides).total_steps > 0


@pytest.mark.parametrize("command", RUNS)
def test_every_run_composes_as_printed(command):
    assert composed("config", shlex.split(command)).total_steps > 0


@pytest.mark.slow
@pytest.mark.parametrize("command_line", [each for each in SWEEPS if "=" in each])
def test_every_changed_sweep_runs_at_a_tiny_size(command_line, in_this_process):
    _, name, *overrides = shlex.split(command_line)
    params = OmegaConf.load(ROOT / "sweeps" / f"{name}.yaml").hydra.sweeper.params
    ends = [f"{key}={str(values).split(',')[0]}" for key, values in params.items()]
    chosen = ["-cd", str(ROOT / "sweeps"), "-cn", name]
    small = [*TINY, *OWN_SIZES.get(name, ())]
    assert in_this_process(*chosen, *ends, *first(overrides), *small) == ["completed"]


@pytest.mark.slow
@pytest.mark.parametrize("command_line", RUNS)
def test_every_run_runs_at_a_tiny_size(command_line, in_this_process):
    small = [*TINY]
    if "algo=sac" in command_line:  # which takes nothing but random actions at first
        small += ["algo.learning_starts=320", "algo.updates_per_step=0.1"]
    elif "minibatch_size=1024" in command_line or "sampler.lanes=128" in command_line:
        small += ["batch_size=2048", "total_steps=2048"]
    assert in_this_process("-m", *first(shlex.split(command_line)), *small) == ["completed"]


@pytest.mark.parametrize("part", PARTS)
def test_all_settings_in_sentences_exist(part):
    assert merged("config", shlex.split(part))  # device=cuda exists where no GPU does


@pytest.mark.slow
def test_the_films_are_made_as_printed(tmp_path):
    (command,) = [each for each in SWEEPS if "name=films" in each]
    (film,) = commands(TEXT, r"walle eval (multirun/films/0 .+)")
    sweep = [*shlex.split(command), *TINY, "algo.compile=false"]
    assert run(["-cd", str(ROOT / "sweeps"), *sweep], tmp_path).returncode == 0
    evaluate = [sys.executable, "-m", "walle", "eval", *shlex.split(film)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    made = subprocess.run(evaluate, cwd=tmp_path, env=environment, timeout=500, check=False)
    assert made.returncode == 0
    assert (tmp_path / "hopper.mp4").stat().st_size > 1000


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A sweep over samplers, learners, lags and seeds, with every column that a page draws."""
    jobs = [
        Job(n=n, learners=learners, shards=2, seed=seed, max_lag=lag, iterations=30, trace=True)
        for n in (1, 2)
        for learners in (1, 2)
        for lag in (0, 1)
        for seed in (0, 1)
    ]
    root = write_sweep(tmp_path_factory.mktemp("sweeps") / "s", jobs)
    for number in range(len(jobs)):
        set_columns(root / str(number), max_kl=0.005)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("command", [*SCRIPTS, *PLANS])
def test_every_script_runs_as_printed_and_a_sweep_makes_its_directory(command, sweep, tmp_path):
    script, *words = shlex.split(command)
    directories = [word.split("/")[1:] for word in words if word.startswith("multirun/")]
    known = {*(each.split()[1] for each in SWEEPS), *re.findall(r" name=(\w+)", TEXT)}
    assert {name for name, *_ in directories} <= known
    assert directories
    runs = [str(sweep.joinpath(*job)) for _, *job in directories]
    rest = [word for word in words if not word.startswith("multirun/")]
    main = importlib.import_module(f"walle.analysis.{Path(script).stem}").main
    name = "page.html" if script.endswith("report.py") else "figure.png"
    assert main([*runs, *rest, "-o", str(tmp_path / name)]) == 0
    start = b"<!doctype html>" if name == "page.html" else b"\x89PNG"
    assert (tmp_path / name).read_bytes().startswith(start)
