"""The recipes in conf/experiment/: they compose, say where their numbers come from, are listed."""

import re
from pathlib import Path

import pytest

from walle.config import compose
from walle.config.files import help_text, recipes

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "conf" / "experiment").glob("*.yaml"))
NAMES = [file.stem for file in FILES]
ANY_TASK = "small_minibatches"
TASKS = sorted((ROOT / "conf" / "env").glob("*.yaml"))
MUJOCO = [file.stem for file in TASKS if "-v5" in file.read_text()]


@pytest.mark.parametrize("name", [name for name in NAMES if name != ANY_TASK])
def test_a_recipe_composes_for_the_algorithm_and_the_task_in_its_name(name):
    config = compose([f"+experiment={name}", "seed=4"])
    assert config.seed == 4
    algorithm, env, *_ = name.split("_")
    assert (config.algo.name, config.env.name) == (algorithm, env)


@pytest.mark.parametrize("env", MUJOCO)
def test_a_recipe_for_any_task_composes_with_each_of_mujoco(env):
    """Such as InvertedDoublePendulum, whose entropy bonus has no place where the noise is given."""
    assert compose([f"+experiment={ANY_TASK}", f"env={env}"]).algo.minibatch_size == 64


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_a_recipe_says_what_it_is_for_and_quotes_numbers_of_the_results(file):
    """Every number of a recipe that names a page of the docs stands there."""
    text = file.read_text()
    assert recipes()[file.stem].endswith(".")
    comments = " ".join(line for line in text.splitlines() if line.startswith("#"))
    pages = [
        f"docs/{page}.md"
        for page in ("learning", "results", "scaling", "notes/results", "notes/scaling")
    ]
    named = [page for page in pages if page in comments]
    assert named or "sweeps of docs/study.md use them" in comments
    results = " ".join((ROOT / page).read_text() for page in named)
    if named:
        numbers = re.findall(r"-?\d[\d,]*\d ± [\d,]+", comments)
        assert [number for number in numbers if number not in results] == []


def test_the_help_lists_the_recipes_and_those_beside_the_user(tmp_path, monkeypatch, capsys):
    own = tmp_path / "conf" / "experiment"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("# @package _global_\n# Is mine better?\nseed: 3\n")
    monkeypatch.chdir(tmp_path)
    text = help_text()
    for name in NAMES:
        assert f"  {name} " in text
        assert recipes()[name] in text
    assert re.search(r"\n  mine +Is mine better\?\n", text)
    monkeypatch.chdir(ROOT)
    assert "Is mine better?" not in help_text()
    assert "Is mine better?" in help_text(["--config-dir", str(tmp_path / "conf")])


def test_recipes_is_a_command(monkeypatch, capsys):
    from walle.__main__ import main

    monkeypatch.setattr("sys.argv", ["walle", "recipes"])
    assert main() == 0
    assert "PPO balances CartPole" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("+experiment=ppo_cartpoel", "did you mean 'ppo_cartpole'? There are: a2c_cartpole, ppo_"),
        ("+experiment=zzz", "choose one of: a2c_cartpole, ppo_cartpole"),
        ("experiment=ppo_cartpole", "experiment is no part of every run; add it: +experiment=..."),
    ],
)
def test_a_wrong_name_lists_the_recipes(typed, said, command, capsys):
    with pytest.raises(SystemExit) as refused:
        command(typed)
    assert refused.value.code == 2
    assert said in capsys.readouterr().err
