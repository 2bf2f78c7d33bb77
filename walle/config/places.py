"""The directories of the YAML files that walle ships."""

from __future__ import annotations

from pathlib import Path


def config_directory() -> Path:
    """The directory conf/: beside the package in a checkout, inside the package in a wheel."""
    return _shipped("conf")


def sweeps_directory() -> Path:
    """The directory sweeps/, which lies beside conf/."""
    return _shipped("sweeps")


def own_directory() -> Path | None:
    """The user's directory conf/ in the working directory; None if there is none."""
    own = Path.cwd() / "conf"
    return own if own.is_dir() and own.resolve() != config_directory() else None


def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
