"""The directories of the YAML files that walle ships."""

from __future__ import annotations

from pathlib import Path


def config_directory() -> Path:
    """The directory conf/: beside the package in a checkout, inside the package in a wheel."""
    return _shipped("conf")


def sweeps_directory() -> Path:
    """The directory sweeps/, which lies beside conf/."""
    return _shipped("sweeps")


def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
