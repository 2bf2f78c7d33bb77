"""The algorithm of docs/adding_an_algorithm.md works as it stands."""

import re
from pathlib import Path

import pytest

from tests.conftest import read
from walle import algos
from walle.algos.base import Problem
from walle.config import compose
from walle.errors import ConfigError
from walle.training import train

DOCS = Path(__file__).parents[2] / "docs" / "adding_an_algorithm.md"


def block(language):
    (found,) = re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    return found


@pytest.fixture
def reinforce(tmp_path, monkeypatch):
    """Overrides that choose the page's algorithm, once it lies where Python and Hydra look."""
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "reinforce.yaml").write_text(block("yaml"))
    (tmp_path / "reinforce.py").write_text(block("python"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(algos.REGISTRY, "reinforce", "reinforce:Reinforce")
    quiet = ("logger.progress=quiet", "eval.episodes=0")
    return [f"hydra.searchpath=[file://{tmp_path}]", "algo=reinforce", "env=cartpole", *quiet]


def test_it_takes_less_than_80_lines():
    assert len(block("python").splitlines()) < 80


def test_the_page_lists_what_a_problem_holds():
    text = DOCS.read_text()
    names = [*Problem._fields, *(name for name in vars(Problem) if not name.startswith("_"))]
    assert [name for name in names if f"`{name}" not in text] == []


@pytest.mark.slow
def test_it_learns(reinforce, tmp_path):
    config = compose([*reinforce, "sampler=serial", "total_steps=40_000"])
    outcome = train(config, tmp_path / "run")
    rounds = read(tmp_path / "run" / "iterations.csv")
    assert len(rounds) == 20
    assert float(rounds[0]["return_round_mean"]) < 40
    assert outcome.return_mean > 80


def test_it_trains_with_samplers_of_its_own(reinforce, tmp_path):
    train(compose([*reinforce, "sampler.n=2", "total_steps=4096"]), tmp_path / "run")
    assert [row["lag_max"] for row in read(tmp_path / "run" / "iterations.csv")] == ["0", "0"]


def test_stale_experience_is_refused_with_the_reason(reinforce):
    with pytest.raises(ConfigError, match="newest policy's own actions only"):
        compose([*reinforce, "sampler.max_lag=1"])
