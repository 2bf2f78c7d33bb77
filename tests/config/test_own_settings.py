"""The files of docs/own_settings.md, in a directory conf/ beside the user."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own_settings.md"


@pytest.fixture
def composed(tmp_path, monkeypatch, command, capsys):
    """Composes the settings of a command typed beside the page's files."""
    monkeypatch.chdir(tmp_path)
    for name, rest in re.findall(r"```yaml\n# (conf/\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(rest)

    def _composed(*arguments):
        capsys.readouterr()
        command(*arguments, "--cfg", "job")
        return OmegaConf.create(capsys.readouterr().out)

    return _composed


def test_an_experiment_changes_any_settings(composed):
    found = composed("+experiment=mine", "seed=3")
    assert (found.algo.name, found.env.name, found.seed) == ("a2c", "cartpole", 3)
    assert (found.total_steps, found.batch_size) == (100_000, 512)
    assert found.algo.learning_rate == 1e-3


def test_an_environment_of_ones_own(composed):
    found = composed("env=short").env
    assert (found.name, found.id, found.episode_limit) == ("short", "CartPole-v1", 50)


def test_a_sweep_of_ones_own(composed):
    found = composed("-cn", "learning_rates")
    assert (found.name, found.env.name, found.total_steps) == ("learning_rates", "cartpole", 1e5)


def test_the_directory_may_be_named(composed, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert composed("env=short", "--config-dir", str(tmp_path / "conf")).env.name == "short"
    with pytest.raises(SystemExit) as refused:
        composed("env=short")
    assert refused.value.code == 2


def test_an_experiment_that_does_not_exist(composed, capsys):
    with pytest.raises(SystemExit) as refused:
        composed("+experiment=mien")
    assert refused.value.code == 2
    assert capsys.readouterr().err.startswith(
        "walle: experiment=mien does not exist; did you mean 'mine'?"
    )
