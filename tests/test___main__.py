"""The command `walle`: its subcommands, its completion, and the wheel that brings it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.analysis.synthetic import Job, write_sweep
from walle import __main__, __version__

ROOT = Path(__file__).resolve().parents[1]
RUN = [sys.executable, "-m", "walle"]
HOSTILE = 'raise RuntimeError("this is the wrong analysis")'


def walle(*arguments: str, cwd: Path, command: list[str] = RUN) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)} if command == RUN else None,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def called(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int | None:
    monkeypatch.setattr(sys, "argv", ["walle", *arguments])
    return __main__.main()


def test_the_version(monkeypatch, capsys):
    assert called("--version", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == f"walle {__version__}\n"


def test_help_has_a_line_for_each_command_and_is_quick(tmp_path):
    started = time.monotonic()
    ran = walle("--help", cwd=tmp_path)
    assert time.monotonic() - started < 5  # 0.07 s here; seconds mean that something is imported
    lines = ran.stdout.splitlines()[3:]
    commands = {line.split()[0] for line in lines}
    assert commands == {*__main__.MODULES, "recipes", "sweeps", "completion"}
    assert all(len(line) < 110 and line.endswith(".") for line in lines)


def test_an_interrupt_ends_a_command_without_a_traceback(monkeypatch, capsys):
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "import_module", interrupted)
    assert called("export", "runs/a", monkeypatch=monkeypatch) == 130
    assert capsys.readouterr() == ("", "")


def test_every_module_with_a_main_is_a_command():
    folders = (ROOT / "walle", ROOT / "walle" / "policy", ROOT / "walle" / "analysis")
    files = [file for folder in folders for file in folder.glob("[a-z]*.py")]
    mains = re.compile(r"^(def main\(|main = cli\.command\()", re.MULTILINE)
    found = {file.stem for file in files if mains.search(file.read_text())}
    assert found == set(__main__.MODULES)


def test_without_a_command_the_help_is_no_success(monkeypatch, capsys):
    assert called(monkeypatch=monkeypatch) == 2
    assert "usage: walle COMMAND" in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest(monkeypatch, capsys):
    assert called("speedpu", "multirun/x", monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert error == "walle: there is no command 'speedpu'; did you mean 'speedup'?\n"


@pytest.mark.parametrize("words", [("train", "env=cartpole"), ("learn",), ("go", "algo=sac")])
def test_training_under_another_name_is_walle_run(words, monkeypatch, capsys):
    assert called(*words, monkeypatch=monkeypatch) == 2
    error = capsys.readouterr().err
    assert error == f"walle: there is no command {words[0]!r}; did you mean 'run'?\n"


def test_every_sweep_file_begins_with_a_question(monkeypatch, capsys):
    assert called("sweeps", monkeypatch=monkeypatch) == 0
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in lines] == sorted(f.stem for f in ROOT.glob("sweeps/*.yaml"))
    assert all(line.endswith("?") and line.count("?") == 1 for line in lines)


def test_a_script_has_its_flags_and_exit_codes(tmp_path, monkeypatch, capsys):
    sweep = write_sweep(tmp_path / "s", [Job(), Job(n=2)])
    assert called("speedup", str(sweep), "-o", f"{tmp_path}/a.svg", monkeypatch=monkeypatch) == 0
    assert called("speedup", f"{tmp_path}/none", monkeypatch=monkeypatch) == 2
    with pytest.raises(SystemExit):
        called("speedup", "--help", monkeypatch=monkeypatch)
    assert "usage: walle speedup [-h]" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["run", "sampler.m=4"], ["sampler.m=4"], ["-m", "env=nope"]])
def test_run_is_walle_run(arguments, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    said = []
    for each in (
        lambda: called(*arguments, monkeypatch=monkeypatch),
        lambda: command(*(a for a in arguments if a != "run")),
    ):
        with pytest.raises(SystemExit) as ended:
            each()
        assert ended.value.code == 2
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    assert said[0].startswith("walle: ")


def test_a_sweep_is_seen_from_the_outside(tmp_path):
    ran = walle("sweep", "status", str(tmp_path), cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.startswith("walle sweep: ")


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("walle spe", ["speedup "]),
        ("walle speedup --fit", ["--fit-all "]),
        pytest.param("walle speedup mul", [""], marks=pytest.mark.slow),  # a file's name
        pytest.param("walle sweep st", ["status "], marks=pytest.mark.slow),
        pytest.param("walle run -cn spe", ["speedup "], marks=pytest.mark.slow),
        pytest.param("walle run --mul", ["--multirun "], marks=pytest.mark.slow),
        ("walle run env=half", ["halfcheetah "]),  # what follows the =, as bash wants it
        pytest.param("walle -m sampler.coll", ["sampler.collect="], marks=pytest.mark.slow),
        pytest.param(
            "walle run -cn speedup hydra.sweeper.par",
            ["hydra.sweeper.params."],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bash_completes_commands_flags_and_settings(line, completed, tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    (tmp_path / "walle").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m walle "$@"\n')
    (tmp_path / "walle").chmod(0o755)
    script = """
        eval "$(walle completion bash)"
        COMP_LINE=$1 COMP_POINT=${#1}
        read -ra COMP_WORDS <<< "${1//=/ = }"
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        compopt() { :; }  # as bash allows it in a completion alone
        _walle
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    ran = subprocess.run(
        ["bash", "-c", script, "bash", line],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == completed, ran.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which the project's wheel is installed."""
    root = tmp_path_factory.mktemp("wheel")
    python = [sys.executable, "-m"]
    build = [*python, "build", "--no-isolation", "--outdir", str(root), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = root.glob("*.whl")
    install = [*python, "pip", "install", "--no-deps", "--no-index", "--target", str(root / "site")]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    return root / "site"


@pytest.mark.slow
def test_the_wheel_holds_all_and_takes_no_general_name(installed):
    names = {path.name for path in installed.iterdir() if not path.name.endswith("dist-info")}
    assert names == {"walle", "hydra_plugins", "bin"}
    for file in ("py.typed", "conf/config.yaml", "sweeps/speedup.yaml"):
        assert (installed / "walle" / file).is_file()
    assert (installed / "walle" / "analysis" / "reference" / "walle_2018.csv").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--version"], f"walle {__version__}"),
        (["sweeps"], "speedup "),
        (["run", "--help"], "  algo     a2c"),
        (["speedup", "sweep", "--paper"], "numbers: sweep/figures/speedup.csv"),
        (["report", "sweep"], "report: sweep/report.html"),
        (["run", "env=cartpole", "total_steps=4096", "eval.episodes=0"], "4,096 steps in"),
        (["recipes"], "ppo_cartpole  "),
        (["run", "+experiment=sac_pendulum", "--cfg", "job"], "total_steps: 20000"),
    ],
)
def test_the_wheel_works_beside_another_analysis(arguments, said, installed, tmp_path):
    """From a directory whose own folder `analysis` must not be imported, and which has no conf."""
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "__init__.py").write_text(HOSTILE)
    write_sweep(tmp_path / "sweep", [Job(), Job(n=2)])
    for command in ([str(installed / "bin" / "walle")], [sys.executable, "-m", "walle"]):
        ran = subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=True,
            timeout=500,
        )
        assert said in ran.stdout


@pytest.mark.slow
def test_the_wheel_runs_a_package_of_ones_own(installed, tmp_path):
    """The files of examples/own_package, named by the options in its conf/."""
    shutil.copytree(ROOT / "examples" / "own_package", tmp_path, dirs_exist_ok=True)
    chosen = ["env=corridor", "net=waves", "algo=weighted", "callbacks=[corridor.callback:Solved]"]
    ran = subprocess.run(
        [str(installed / "bin" / "walle"), "run", *chosen, "total_steps=2048", "sampler.n=2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    assert "2,048 steps in" in ran.stdout
