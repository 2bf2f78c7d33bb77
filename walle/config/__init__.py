"""Checks Hydra's configuration and converts it to a `Config`."""

from walle.config.did_you_mean import explain
from walle.config.files import config_directory, sweeps_directory
from walle.config.loading import (
    as_typed,
    compose,
    config_hash,
    stored_groups,
    to_dict,
    validate,
    with_variables,
    without_removed,
)
from walle.config.resuming import resumed_config, stored_config

__all__ = [
    "as_typed",
    "compose",
    "config_directory",
    "config_hash",
    "explain",
    "resumed_config",
    "stored_config",
    "stored_groups",
    "sweeps_directory",
    "to_dict",
    "validate",
    "with_variables",
    "without_removed",
]
