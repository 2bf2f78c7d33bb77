"""A search from start to end, with Hydra's basic launcher in this process."""

import csv
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from hydra import compose, initialize_config_dir, main
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

CONFIG = """
defaults:
  - _self_
  - group: a
  - override hydra/sweeper: walle_optuna
  - override hydra/launcher: basic
name: null
x: 0.0
n: 1
seed: 0
objective: eval
hydra:
  sweep: {dir: out}
"""


@pytest.fixture
def search(tmp_path, monkeypatch, hydra_restore_singletons, capsys):
    """Runs a search of a parabola in this process; returns what it wrote and said."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "group").mkdir()
    for name in "ab":
        (tmp_path / "group" / f"{name}.yaml").write_text(f"height: {ord(name)}\nwidth: 2\n")
    jobs = []

    def run(*arguments, function=lambda cfg: -((cfg.x - 3) ** 2) + cfg.seed):
        def task(cfg):
            jobs.append((cfg.x, cfg.n, cfg.group.height, cfg.seed))
            return function(cfg)

        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["app", "-m", *arguments])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        code = 0
        jobs.clear()
        try:
            main(version_base="1.3", config_path=str(tmp_path), config_name="config")(task)()
        except SystemExit as end:
            code = end.code
        trials = read_trials(tmp_path / "out")
        return SimpleNamespace(code=code, jobs=list(jobs), trials=trials, said=capsys.readouterr())

    return run


def read_trials(out):
    file = out / "trials.csv"
    return list(csv.DictReader(file.open())) if file.exists() else []


def test_a_search_finds_the_top_and_writes_it(search, tmp_path):
    made = search("x=range(2,5)", "hydra.sweeper.n_trials=6", "hydra.sweeper.sampler=grid")
    assert made.code == 0
    assert sorted(x for x, *_ in made.jobs) == [2, 3, 4]
    assert {trial["state"] for trial in made.trials} == {"complete"}
    best = yaml.safe_load((tmp_path / "out" / "optimization_results.yaml").read_text())
    assert best["name"] == "optuna"
    assert best["best_params"] == {"x": 3}
    assert best["best_value"] == 0
    row = next(trial for trial in made.trials if float(trial["value"]) == 0)
    assert (tmp_path / "out" / row["jobs"] / ".hydra").is_dir()
    assert (tmp_path / "out" / "multirun.yaml").exists()


def test_a_trial_is_the_median_over_seeds(search):
    made = search(
        "x=0,1",
        "hydra.sweeper.n_trials=1",
        "hydra.sweeper.seeds=[7,1,2]",
        "hydra.sweeper.sampler=random",
        function=lambda cfg: {7: 100.0, 1: 5.0, 2: 6.0}[cfg.seed],
    )
    assert [seed for *_, seed in made.jobs] == [7, 1, 2]
    assert made.trials[0]["value"] == "6.0"
    assert made.trials[0]["jobs"] == "0 1 2"


@pytest.mark.slow
def test_a_number_of_seeds_begins_at_seed(search):
    made = search("x=0,1", "seed=5", "hydra.sweeper.n_trials=1", "hydra.sweeper.seeds=2")
    assert [seed for *_, seed in made.jobs] == [5, 6]


@pytest.mark.slow
def test_params_with_one_value_decide_as_on_the_command_line(search, tmp_path):
    fixed = "seed: 11, objective: wall_s"
    (tmp_path / "config.yaml").write_text(f"{CONFIG}  sweeper: {{params: {{{fixed}}}}}\n")
    grid = ("x=1,2", "hydra.sweeper.n_trials=2", "hydra.sweeper.sampler=grid")
    made = search(*grid, "hydra.sweeper.seeds=2", function=lambda cfg: cfg.x)
    assert {seed for *_, seed in made.jobs} == {11, 12}
    best = yaml.safe_load((tmp_path / "out" / "optimization_results.yaml").read_text())
    assert best["best_params"] == {"x": 1}  # the fastest


@pytest.mark.slow
def test_the_best_settings_are_an_experiment(search, tmp_path):
    space = ("group=a,b", "n=3", "x=0,3", "hydra.sweeper.sampler=grid")
    search(*space, "hydra.sweeper.n_trials=4", function=lambda cfg: -cfg.x)
    text = (tmp_path / "out" / "experiment" / "best.yaml").read_text()
    assert text.startswith("# @package _global_\n# Trial ")
    chosen = yaml.safe_load(text)
    assert {key: chosen[key] for key in ("n", "x")} == {"n": 3, "x": 0}
    assert chosen.get("defaults", []) in ([], [{"override /group": "b"}])
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        place = f"hydra.searchpath=[file://{tmp_path / 'out'}]"
        again = compose("config", overrides=[place, "+experiment=best"])
    assert (again.n, again.x) == (3, 0)


@pytest.mark.slow
def test_the_best_settings_may_be_of_the_search_path(search, tmp_path):
    (tmp_path / "mehr é" / "group").mkdir(parents=True)
    (tmp_path / "mehr é" / "group" / "c.yaml").write_text("height: 99\nwidth: 2\n")
    place = f"hydra.searchpath=['file://{tmp_path / 'mehr é'}']"
    made = search(place, "group=c", "x=0,3", "hydra.sweeper.sampler=grid")
    assert made.code == 0
    best = yaml.safe_load((tmp_path / "out" / "experiment" / "best.yaml").read_text())
    assert (best["defaults"], best["x"]) == ([{"override /group": "c"}], 3)


def test_a_search_that_is_interrupted_between_trials_says_so(search, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("walle.tuning.sweep.trial_table", interrupted)
    made = search("x=0,3", "hydra.sweeper.sampler=grid")
    assert made.code == 130
    assert made.said.err == "the search was stopped; start it again to continue\n"


@pytest.mark.slow
def test_a_search_goes_on_where_it_ended(search):
    settings = ("x=interval(0,6)", "hydra.sweeper.sampler=random")
    first = search(*settings, "hydra.sweeper.n_trials=2")
    second = search(*settings, "hydra.sweeper.n_trials=3")
    assert (len(first.jobs), len(second.jobs)) == (2, 1)
    assert [trial["jobs"] for trial in second.trials] == ["0", "1", "2"]
    assert len({x for x, *_ in first.jobs + second.jobs}) == 3
    third = search(*settings, "hydra.sweeper.n_trials=3")
    assert third.jobs == []
    assert third.code == 0


def test_a_search_continues_with_the_first_trial_of_another_choice(search, tmp_path):
    sets_n = "# @package _global_\nn: 7\ngroup: {height: 1, width: 2}\n"
    settings = ("group=a,c", "hydra/launcher=walle", "hydra.launcher.cores=[0]")
    resumed = ("hydra.launcher.preload=[]", "hydra.launcher.resume=true")
    for n_trials in (1, 2):
        (tmp_path / "group" / "c.yaml").write_text(sets_n)
        grid = ("hydra.sweeper.sampler=grid", f"hydra.sweeper.n_trials={n_trials}")
        made = search(*settings, *resumed, *grid)
        assert made.code == 0, made.said.err
    assert sorted(trial["group"] for trial in made.trials) == ["a", "c"]


def test_the_table_counts_evaluations_without_a_pruner(search, tmp_path):
    def function(cfg):
        directory = Path(HydraConfig.get().runtime.output_dir)
        rows = [f"{steps},{cfg.x * steps}\n" for steps in (100, 200, 300)]
        (tmp_path / directory / "eval.csv").write_text("env_steps,return_mean\n" + "".join(rows))
        return cfg.x

    grid = ("hydra.sweeper.sampler=grid", "hydra.sweeper.n_trials=2")
    made = search("x=1,2", *grid, function=function)
    rows = {trial["x"]: (trial["evaluations"], trial["last_evaluation"]) for trial in made.trials}
    assert rows == {"1": ("3", "300.0"), "2": ("3", "600.0")}


def test_a_failed_job_is_a_failed_trial(search):
    def function(cfg):
        if cfg.x > 2:
            raise ValueError("too far")
        return cfg.x

    settings = ("x=2,3", "hydra.sweeper.sampler=grid", "hydra.sweeper.n_trials=2")
    made = search(*settings, function=function)
    assert made.code == 0
    assert sorted(trial["state"] for trial in made.trials) == ["complete", "fail"]
    assert {trial["error"] for trial in made.trials} == {"", "too far"}


def test_a_scalar_of_numpy_is_a_number(search):
    grid = ("x=1,2", "hydra.sweeper.sampler=grid", "hydra.sweeper.n_trials=2")
    made = search(*grid, function=lambda cfg: np.float32(cfg.x))
    assert sorted(trial["value"] for trial in made.trials) == ["1.0", "2.0"]


def test_trials_that_fail_alike_do_not_end_a_search(search):
    def function(cfg):
        if cfg.x > 5:
            raise ValueError("too far")
        return cfg.x

    settings = ("hydra/launcher=walle", "hydra.launcher.cores=[0]", "hydra.launcher.preload=[]")
    batch = ("hydra.sweeper.sampler=grid", "hydra.sweeper.n_trials=5", "hydra.sweeper.n_jobs=5")
    made = search("x=6,7,8,9,1", *settings, *batch, function=function)
    assert sorted(trial["state"] for trial in made.trials) == ["complete", *4 * ["fail"]]


def test_a_search_without_a_complete_trial_says_so(search):
    made = search("x=0,1", "hydra.sweeper.n_trials=2", function=lambda cfg: None)
    assert made.code == 1
    assert "no trial is complete" in made.said.err
    assert "returned None, which is no number" in made.trials[0]["error"]


@pytest.mark.slow
def test_time_ends_a_search_between_trials(search):
    made = search("x=0,1", "hydra.sweeper.n_trials=50", "hydra.sweeper.timeout_s=1e-9")
    assert len(made.jobs) == 1


@pytest.mark.slow
def test_trials_run_in_batches(search):
    made = search("x=interval(0,1)", "hydra.sweeper.n_trials=5", "hydra.sweeper.n_jobs=2")
    assert len(made.jobs) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x=1"], "nothing to search"),
        (["x=0,1", "hydra.sweeper.sampler=tp"], "hydra.sweeper.sampler=tp is unknown; did you"),
        (["x=0,1", "hydra.sweeper.n_trials=0"], "hydra.sweeper.n_trials=0 must be positive"),
        (["seed=0,1"], "hydra.sweeper.seeds=[1,2,3]"),
        (["x=0,1", "seed=4", "hydra.sweeper.seeds=[1]"], "drop one of the two"),
        (["x=0,1", "hydra.sweeper.pruner=median"], "BasicLauncher cannot stop jobs"),
        (["x=0,1", "hydra.sweeper.storage=sqlite:///a.db"], "storage=sqlite:///a.db is a URL"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(search, arguments, message, tmp_path):
    made = search(*arguments)
    assert made.code == 2
    assert message in made.said.err
    assert made.said.err.count("\n") == 1
    assert made.jobs == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("argument", ["y=interval(0,1)", "group.hight=0,1", "group=a,c"])
def test_typos_in_keys_are_refused_before_anything_starts(search, argument, tmp_path):
    with pytest.raises(Exception, match=argument.partition("=")[0].split(".")[-1]):
        search(argument)
    assert not (tmp_path / "out").exists()


DEADLY = """
import os, signal, sys
from contextlib import contextmanager
import hydra
from walle.tuning import sweep

lock, times = sys.argv.pop(1), int(sys.argv.pop(1))
taken, locked_file = [], sweep.locked_file


@contextmanager
def deadly(path, *arguments, **settings):
    with locked_file(path, *arguments, **settings) as file:
        taken.append(path.name)
        if taken.count(lock) == times:
            if lock == sweep.JOURNAL:
                os.pwrite(file, b'{"op_code":4,"wor', os.fstat(file).st_size)
            os.kill(os.getpid(), signal.SIGKILL)
        yield file


sweep.locked_file = deadly
hydra.main(version_base="1.3", config_path=".", config_name="config")(lambda cfg: cfg.x)()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lock", "times"),
    [
        ("study.journal", 6),
        pytest.param("study.journal", 1, marks=pytest.mark.slow),
        pytest.param("study.journal.asking", 2, marks=pytest.mark.slow),
        pytest.param(".search.lock", 1, marks=pytest.mark.slow),
    ],
)
def test_a_search_that_is_killed_while_it_holds_a_lock_goes_on(tmp_path, lock, times):
    (tmp_path / "app.py").write_text(DEADLY)
    (tmp_path / "config.yaml").write_text(CONFIG.replace("  - group: a\n", ""))
    settings = ("-m", "x=interval(0,1)", "hydra.sweeper.sampler=random", "hydra.sweeper.n_trials=3")
    for count, code in ((times, -signal.SIGKILL), (-1, 0)):
        command = [sys.executable, "app.py", lock, str(count), *settings]
        assert subprocess.run(command, cwd=tmp_path, timeout=500, check=False).returncode == code
    assert [trial["state"] for trial in read_trials(tmp_path / "out")] == ["complete"] * 3


@pytest.mark.slow
def test_another_search_in_the_same_directory_is_refused(search):
    search("x=0,1", "hydra.sweeper.n_trials=1")
    made = search("x=0,2", "hydra.sweeper.n_trials=2")
    assert made.code == 2
    assert "holds a study with the search space" in made.said.err


def test_without_optuna_one_line_says_what_to_install(search, monkeypatch):
    from hydra_plugins.walle_optuna import sweeper

    monkeypatch.setattr(sweeper, "find_spec", lambda name: None)
    made = search("x=0,1")
    assert made.code == 2
    needs = "hydra/sweeper=walle_optuna needs Optuna: pip install 'walle[optuna]'"
    assert made.said.err == f"walle: {needs}\n"
