"""The text of `python -m walle.run --help`: commands, choices, sweep files, commented settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from walle.config.places import config_directory, places, sweeps_directory

USAGE = """\
python -m walle.run [KEY=VALUE ...]                one run
python -m walle.run -m KEY=VALUE,VALUE,... [...]   a sweep: a run for each combination
python -m walle.run -cn SWEEP [KEY=VALUE ...]      a sweep file
python -m walle.run resume=DIR                     goes on with a run
python -m walle.run [...] --cfg job                prints the settings instead of running"""


def help_text(arguments: Sequence[str] = ()) -> str:
    """The help, with the settings of the choices among `arguments`, such as `algo=sac`."""
    given = dict(each.partition("=")[::2] for each in arguments if "=" in each)
    chosen = {group: given.get(group, option) for group, option in _defaults().items()}
    files = [config_directory() / "config.yaml"]
    files += [config_directory() / group / f"{option}.yaml" for group, option in chosen.items()]
    parts = [USAGE, f"Choices, as in env=hopper:\n{table(_choices(arguments))}"]
    parts += [f"Recipes, as in +experiment=ppo_cartpole:\n{table(recipes(arguments))}"]
    parts += [f"Sweep files:\n{table(sweep_questions(arguments))}"]
    return "\n\n".join([*parts, *map(_settings, filter(Path.exists, files))])


def sweep_questions(arguments: Sequence[str] = ()) -> dict[str, str]:
    """The question of each sweep file, its first comment line; the user's own come last."""
    own = [file for place in places(arguments)[1:] for file in sorted(place.glob("*.yaml"))]
    files = [*sorted(sweeps_directory().glob("*.yaml")), *filter(_is_sweep, own)]
    return {file.stem: _purpose(file) for file in files}


def _is_sweep(file: Path) -> bool:
    return re.search(r"\bmode:\s*MULTIRUN\b", file.read_text()) is not None


def recipes(arguments: Sequence[str] = ()) -> dict[str, str]:
    """What each recipe is for, which is its first comment line; the user's own come last."""
    found = [each.glob("experiment/*.yaml") for each in places(arguments)]
    files = [file for each in found for file in sorted(each)]
    return {file.stem: _purpose(file) for file in files}


def _purpose(file: Path) -> str:
    """The first comment line of a file, except for the line with its package."""
    lines = (line.lstrip("# ") for line in file.read_text().splitlines() if line.startswith("#"))
    return next((line for line in lines if not line.startswith("@package")), "")


def table(lines: dict[str, str]) -> str:
    """A line for each name, indented, with the names in one column."""
    width = max(map(len, lines))
    return "\n".join(f"  {name:{width}}  {line}" for name, line in lines.items())


def _defaults() -> dict[str, str]:
    """The option of each group that conf/config.yaml names."""
    lines = (config_directory() / "config.yaml").read_text().splitlines()
    named = (line.strip(" -").partition(": ")[::2] for line in lines if line.startswith("  - "))
    return {group: option for group, option in named if (config_directory() / group).is_dir()}


def _choices(arguments: Sequence[str]) -> dict[str, str]:
    found = places(arguments)
    return {
        group: ", ".join(sorted(f.stem for place in found for f in place.glob(f"{group}/*.yaml")))
        for group in sorted(_defaults())
    }


def _settings(file: Path) -> str:
    """The content of a file, which has a comment for each key."""
    name = file.relative_to(config_directory())
    head = "Settings" if file.name == "config.yaml" else f"Settings of {name.parent}={file.stem}"
    return f"{head} (conf/{name}):\n{file.read_text().rstrip()}"
