"""Dockerfile and Apptainer recipe against the repository; no test builds an image."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()


def joined(name):
    """The text of a file without comments, with continued lines in one."""
    lines = (ROOT / name).read_text().splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace(
        "\\\n", ""
    )


def instructions():
    """The Dockerfile's instructions, each with its arguments."""
    return [line.partition(" ")[::2] for line in joined("Dockerfile").splitlines() if line]


def sections():
    """The recipe's sections, by name."""
    parts = re.split(r"^%(\w+)\n", joined("walle.def"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_dockerfile_has_known_instructions_in_order():
    names = [name for name, _ in instructions()]
    assert names[0] == "FROM"
    assert set(names) <= {"FROM", "RUN", "USER", "WORKDIR", "COPY", "ENV", "CMD"}
    users = [arguments for name, arguments in instructions() if name == "USER"]
    assert users[-1] == "walle"  # not root
    assert "useradd --uid 1000" in joined("Dockerfile")


def test_the_container_runs_commands_of_the_readme_and_of_the_makefile():
    printed = set(re.findall(r"^make \w+", README, re.MULTILINE))
    command = next(json.loads(arguments) for name, arguments in instructions() if name == "CMD")
    started = {" ".join(command), *re.findall(r"make \w+", sections()["help"])}
    assert {"make sweep", "make test"} == started
    assert started <= printed
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {command.split()[1] for command in started} <= targets
    assert "set -- make sweep" in sections()["runscript"]


@pytest.mark.parametrize("name", ["Dockerfile", "walle.def"])
def test_python_extras_and_files_exist(name):
    text = joined(name)
    version = re.search(r"python:(\d+\.\d+)-slim", text)
    assert version
    least = re.search(r"(\d+)\.(\d+)", PROJECT["requires-python"]).groups()
    assert tuple(map(int, version[1].split("."))) >= tuple(map(int, least))
    extras = re.search(r"-e '\.\[([\w,]+)\]'", text)[1]
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert f"-e '.[{extras}]'" in (ROOT / "Makefile").read_text()  # what `make` would install
    for file in re.findall(r"-c (\S+)", text):
        assert (ROOT / file).is_file()
    assert "touch .venv/ready" in text  # or make would install everything again


def test_both_install_the_same_packages_of_the_system():
    found = [
        set(
            re.search(r"no-install-recommends ([\w+\- ]+?) *(?:&&|$)", joined(name), re.M)[
                1
            ].split()
        )
        for name in ("Dockerfile", "walle.def")
    ]
    assert found[0] == found[1] >= {"g++", "git", "make"}


def test_nothing_that_git_knows_is_kept_out_of_the_image():
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line]
    files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
    assert [file for file in files if file.split("/")[0] in ignored] == []


@pytest.mark.parametrize("section", ["post", "environment", "runscript"])
def test_the_shell_can_read_the_recipe(section):
    subprocess.run(["sh", "-n"], input=sections()[section], text=True, check=True)


def test_the_shell_can_read_the_dockerfile():
    for name, arguments in instructions():
        if name == "RUN":
            subprocess.run(["sh", "-n"], input=arguments, text=True, check=True)
            assert shlex.split(arguments)


def test_the_recipe_runs_a_command_in_a_copy_and_keeps_the_runs(tmp_path):
    """The script with another place for /work, which nobody writes to."""
    work, here = tmp_path / "work", tmp_path / "here"
    for directory in (work / ".venv", work / "multirun" / "old", here):
        directory.mkdir(parents=True)
    (work / "pyproject.toml").touch()
    (work / ".venv" / "ready").touch()
    script = sections()["runscript"].replace("/work", str(work))
    check = "test -e pyproject.toml && test ! .venv/ready -ot pyproject.toml && touch multirun/new"
    command = ["sh", "-c", script, "sh", "sh", "-c", check]
    subprocess.run(command, cwd=here, check=True)
    assert (here / "multirun" / "new").exists()
    assert [path.name for path in (work / "multirun").iterdir()] == ["old"]
