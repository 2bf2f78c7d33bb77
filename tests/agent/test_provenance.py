"""Commands in run.json and in messages can be typed where they are read."""

import sys
from pathlib import Path

import pytest

from walle.system.commands import command_line, command_of


@pytest.fixture
def started(monkeypatch, tmp_path):
    """A process that was started with these words, with `bin` on the shell's path or not."""
    for name in ("python", "walle"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("")
        program.chmod(0o755)
    monkeypatch.chdir(tmp_path)

    def _started(*words, activated):
        monkeypatch.setenv("PATH", str(tmp_path / "bin") if activated else "/nowhere")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
        monkeypatch.setattr(sys, "orig_argv", [str(tmp_path / "bin" / "python"), *words])

    return _started


def test_by_names_where_the_shell_finds_them(started):
    started("-m", "walle.run", "name=a b", activated=True)
    assert command_line() == "python -m walle.run 'name=a b'"
    assert command_of("run") == "python -m walle.run"
    started(str(Path("bin/walle").absolute()), "run", "seed=1", activated=True)
    assert command_line() == "walle run seed=1"
    assert command_of("run") == "walle run"


def test_by_short_paths_where_it_does_not(started):
    started("-m", "walle.run", activated=False)
    assert command_line() == "bin/python -m walle.run"
    started("bin/walle", "run", "seed=1", activated=False)
    assert command_line() == "bin/walle run seed=1"
    assert command_of("run") == "bin/walle run"
