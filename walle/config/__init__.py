"""Checks Hydra's configuration and converts it to a `Config`."""

from walle.config.loading import (
    compose,
    config_directory,
    config_hash,
    explain,
    explain_damage,
    sweeps_directory,
    to_dict,
    validate,
)
from walle.config.resuming import resumed_config, stored_config

__all__ = [
    "compose",
    "config_directory",
    "config_hash",
    "explain",
    "explain_damage",
    "resumed_config",
    "stored_config",
    "sweeps_directory",
    "to_dict",
    "validate",
]
