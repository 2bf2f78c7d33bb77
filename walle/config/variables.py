"""Environment variables in `env.kwargs`: a run uses their values, and its files never hold them."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from walle.errors import ConfigError

REFERENCE = "${oc.env:"


def as_typed(overrides: Any) -> list[str]:
    """The overrides that Hydra keeps, with their references; reading an entry would resolve it."""
    typed: Any = OmegaConf.to_container(overrides, resolve=False)
    return list(typed)


def kept_references(written: Any, resolved: Any) -> Any:
    """The resolved value, but with every text that refers to a variable as it was written."""
    if isinstance(written, dict) and isinstance(resolved, dict):
        return {key: kept_references(written[key], value) for key, value in resolved.items()}
    if isinstance(written, list) and isinstance(resolved, list):
        return [kept_references(*pair) for pair in zip(written, resolved, strict=True)]
    return written if isinstance(written, str) and REFERENCE in written else resolved


def with_variables(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The environment's arguments with the values of the variables that they refer to.

    Raises:
        ConfigError: a variable is not set, or a text mixes it with a reference to a setting.
    """
    if REFERENCE not in str(kwargs):
        return kwargs
    try:
        return {key: _value(value) for key, value in kwargs.items()}
    except OmegaConfBaseException as error:
        raise ConfigError(f"env.kwargs={kwargs}: {unresolvable(error)}") from None


def unresolvable(error: OmegaConfBaseException) -> str:
    """Why a reference has no value, and the cure, in one line."""
    reason = str(error).splitlines()[0]
    cure = "set the variable" if "Environment variable" in reason else "correct the reference"
    return f"{reason}; {cure}"


def _value(written: Any) -> Any:
    if REFERENCE not in str(written):
        return written  # it may hold what looks like a reference to a setting
    node = OmegaConf.create({"kwargs": written})
    container: Any = OmegaConf.to_container(node, resolve=True)
    return container["kwargs"]
