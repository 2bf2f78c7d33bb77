"""Checks Hydra's configuration and converts it to a `Config`."""

from walle.config.loading import (
    compose,
    config_directory,
    config_hash,
    explain,
    sweeps_directory,
    to_dict,
    validate,
)

__all__ = [
    "compose",
    "config_directory",
    "config_hash",
    "explain",
    "sweeps_directory",
    "to_dict",
    "validate",
]
