"""The directories of the YAML files that walle ships."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path


def config_directory() -> Path:
    """The directory conf/: beside the package in a checkout, inside the package in a wheel."""
    return _shipped("conf")


def sweeps_directory() -> Path:
    """The directory sweeps/, which lies beside conf/."""
    return _shipped("sweeps")


def example_directory(name: str) -> Path:
    """The directory of an example that ships with walle, such as examples/wall_e_2018/."""
    return _shipped("examples") / name


def own_directory() -> Path | None:
    """The user's directory conf/ in the working directory; None if there is none."""
    own = Path.cwd() / "conf"
    return own if own.is_dir() and own.resolve() != config_directory() else None


def places(arguments: Sequence[str] = ()) -> list[Path]:
    """The directories with configuration files: walle's, the user's, and that of --config-dir."""
    named = [b for a, b in pairwise(arguments) if a in ("--config-dir", "-cd")]
    named += [each.partition("=")[2] for each in arguments if each.startswith("--config-dir=")]
    return [config_directory(), *filter(None, [own_directory()]), *map(Path, named)]


def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
