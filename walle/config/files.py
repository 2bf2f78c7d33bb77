"""The YAML files of walle and of the user: where they are, and what `--help` prints about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

from walle.config.schemas import Config
from walle.system.format import table

USAGE = """\
python -m walle.run [KEY=VALUE ...]                one run
python -m walle.run -m KEY=VALUE,VALUE,... [...]   a sweep: a run for each combination
python -m walle.run -cn SWEEP [KEY=VALUE ...]      a sweep file
python -m walle.run resume=DIR                     resumes a run
python -m walle.run [...] --cfg job                prints the settings instead of running"""


def config_directory() -> Path:
    """The directory conf/: next to the package in a checkout, inside the package in a wheel."""
    return _shipped("conf")


def sweeps_directory() -> Path:
    """The directory sweeps/, next to conf/."""
    return _shipped("sweeps")


def example_directory(name: str) -> Path:
    """The directory of an example that ships with walle, such as examples/wall_e_2018/."""
    return _shipped("examples") / name


def own_directory() -> Path | None:
    """The user's directory conf/ in the working directory; None if there is none."""
    own = Path.cwd() / "conf"
    return own if own.is_dir() and own.resolve() != config_directory() else None


def search_path(arguments: Sequence[str] = ()) -> list[Path]:
    """The directories with configuration files: walle's, the user's, and that of --config-dir."""
    named = [b for a, b in pairwise(arguments) if a in ("--config-dir", "-cd")]
    named += [word.partition("=")[2] for word in arguments if word.startswith("--config-dir=")]
    typed = (word for word in arguments if word.startswith("hydra.searchpath="))
    named += [place for word in typed for place in re.findall(r"file://([^,\]\"']+)", word)]
    return [config_directory(), *filter(None, [own_directory()]), *map(Path, named)]


def algorithms(directories: Iterable[Path] | None = None) -> set[str]:
    """The choices of `algo` in the directories, by default in walle's and the user's."""
    paths = search_path() if directories is None else directories
    names = {file.stem for path in paths for file in path.glob("algo/*.yaml")}
    return names - {field.name for field in fields(Config)} - {"hydra"}


def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def help_text(arguments: Sequence[str] = ()) -> str:
    """The help, with the settings of the choices among `arguments`, such as `algo=sac`."""
    conf = config_directory()
    lines = (conf / "config.yaml").read_text("utf-8").splitlines()
    named = (line.strip(" -").partition(": ")[::2] for line in lines if line.startswith("  - "))
    defaults = {group: option for group, option in named if (conf / group).is_dir()}
    given = dict(word.partition("=")[::2] for word in arguments if "=" in word)
    choices = {
        group: ", ".join(sorted(file.stem for file in _files(f"{group}/*.yaml", arguments)))
        for group in sorted(defaults)
    }
    parts = [
        USAGE,
        f"Choices, as in env=hopper:\n{table(choices)}",
        f"Recipes, as in +experiment=ppo_cartpole:\n{table(recipes(arguments))}",
        f"Sweep files:\n{table(sweep_questions(arguments))}",
        f"Settings (conf/config.yaml):\n{(conf / 'config.yaml').read_text('utf-8').rstrip()}",
    ]
    chosen = {group: given.get(group, option).split(",") for group, option in defaults.items()}
    for group in ("algo", "env"):  # whose files may choose a net
        for file in (_found(f"{group}/{option}.yaml", arguments) for option in chosen[group]):
            text = file.read_text("utf-8") if file else ""
            for other, option in re.findall(r"- override /(\w+): (\w+)", text):
                chosen[other] = given.get(other, option).split(",")
    tuned = [f"{env}-{algo}" for env in chosen["env"] for algo in chosen["algo"]]
    shown = [(group, option) for group, options in chosen.items() for option in options]
    shown += [("env", "gym"), *(("env/tuned", option) for option in tuned)]
    for group, option in dict.fromkeys(shown):
        if file := _found(f"{group}/{option}.yaml", arguments):
            head = f"Settings of {group}={option} (conf/{group}/{file.name})"
            parts.append(f"{head}:\n{file.read_text('utf-8').rstrip()}")
    return "\n\n".join(parts)


def sweep_questions(arguments: Sequence[str] = ()) -> dict[str, str]:
    """The question of each sweep file, its first comment line; the user's own come last."""
    files = sorted(sweeps_directory().glob("*.yaml"))
    own = (file for path in search_path(arguments)[1:] for file in sorted(path.glob("*.yaml")))
    files += [file for file in own if re.search(r"\bmode:\s*MULTIRUN\b", _text(file))]
    return {file.stem: _purpose(file) for file in files}


def recipes(arguments: Sequence[str] = ()) -> dict[str, str]:
    """The purpose of each recipe, its first comment line; the user's own come last."""
    return {file.stem: _purpose(file) for file in _files("experiment/*.yaml", arguments)}


def _found(name: str, arguments: Sequence[str]) -> Path | None:
    """The file that Hydra takes: the first in the search path that has it."""
    return next((p / name for p in search_path(arguments) if (p / name).is_file()), None)


def _files(pattern: str, arguments: Sequence[str]) -> list[Path]:
    return [file for path in search_path(arguments) for file in sorted(path.glob(pattern))]


def _purpose(file: Path) -> str:
    """The first comment line of a file, other than its `@package` line."""
    lines = (line.lstrip("# ") for line in _text(file).splitlines() if line.startswith("#"))
    return next((line for line in lines if not line.startswith("@package")), "")


def _text(file: Path) -> str:
    """The text of a file that a list shows, whatever its encoding."""
    return file.read_text(encoding="utf-8", errors="replace")
