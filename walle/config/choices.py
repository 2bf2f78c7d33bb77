"""Settings of single algorithms in a sweep, such as `ppo.clip=0.1`, on their way to the launcher.

Hydra accepts a key that its config lacks with plus signs alone, so they are put there. The launcher
then makes `algo.clip=0.1` of it, in the jobs with algo=ppo (walle.launcher.choices).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from omegaconf import DictConfig, open_dict

from walle.config.places import places
from walle.config.schemas import Config
from walle.errors import ConfigError

_KEY = re.compile(r"(\+{0,2})([\w-]+)\.")


def algorithms(directories: Iterable[Path] | None = None) -> set[str]:
    """The choices of `algo` in the directories, by default in walle's and the user's."""
    found = places() if directories is None else directories
    names = {file.stem for place in found for file in place.glob("algo/*.yaml")}
    return names - {field.name for field in fields(Config)} - {"hydra"}


def with_plus_signs(arguments: Sequence[str]) -> list[str]:
    """The command line in a form that Hydra accepts: `ppo.clip=0.1` becomes `++ppo.clip=0.1`."""
    names = algorithms(places(arguments))
    return [f"++{each}" if "=" in each and _bare(each, names) else each for each in arguments]


def open_params(config: DictConfig) -> None:
    """Does the same to the keys of `hydra.sweeper.params`, which a sweep file has."""
    params = config.hydra.sweeper.get("params") or {}
    names = algorithms(_directories(config))
    if any(_bare(str(key), names) for key in params):
        opened = {f"++{k}" if _bare(str(k), names) else str(k): v for k, v in params.items()}
        with open_dict(config):
            config.hydra.sweeper.params = opened


def refuse_own_settings(config: DictConfig) -> None:
    """Refuses settings of a single algorithm outside of a sweep.

    Raises:
        ConfigError: with the same setting as a single run has it.
    """
    names = algorithms(_directories(config))
    for key in config:
        if str(key) in names:
            raise ConfigError(misplaced(str(key)))


def misplaced(algorithm: str) -> str:
    """Why a config must not have the name of an algorithm as a key, and the cure."""
    return (
        f"{algorithm}.KEY=VALUE sets algo.KEY where algo={algorithm} in sweeps of this launcher: in"
        " a sweep file it stands under hydra.sweeper.params; in a single run type algo.KEY=VALUE"
    )


def _bare(text: str, names: set[str]) -> bool:
    """Whether the text begins with the name of an algorithm as a key, without plus signs."""
    found = _KEY.match(text)
    return found is not None and found[2] in names and not found[1]


def _directories(config: DictConfig) -> list[Path]:
    sources = config.hydra.runtime.config_sources
    return [Path(each.path) for each in sources if each.schema == "file"]
