"""Checks Hydra's configuration and converts it to a `Config`."""

from walle.config.files import config_directory
from walle.config.loading import compose, config_hash, validate

__all__ = ["compose", "config_directory", "config_hash", "validate"]
