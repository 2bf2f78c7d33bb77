"""From what Hydra composed to a checked `Config`: the only room that imports OmegaConf."""

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
