"""Checks Hydra's configuration and converts it to a `Config`."""

from walle.config.explaining import explain, explain_damage
from walle.config.loading import (
    compose,
    config_hash,
    stored_groups,
    to_dict,
    validate,
)
from walle.config.places import config_directory, sweeps_directory
from walle.config.resuming import resumed_config, stored_config
from walle.config.variables import as_typed, with_variables

__all__ = [
    "as_typed",
    "compose",
    "config_directory",
    "config_hash",
    "explain",
    "explain_damage",
    "resumed_config",
    "stored_config",
    "stored_groups",
    "sweeps_directory",
    "to_dict",
    "validate",
    "with_variables",
]
