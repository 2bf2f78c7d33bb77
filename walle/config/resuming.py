"""The configuration of a resumed run: the stored settings, and the few that may change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from walle.config.loading import validate, without_removed
from walle.config.schemas import GROUPS, Config
from walle.errors import ConfigError

MAY_CHANGE = (
    "callbacks",
    "checkpoint.every",
    "device",
    "learner.n",
    "learner.restarts",
    "learner.threads",
    "logger.print_every_s",
    "logger.progress",
    "logger.video_every",
    "logger.video_steps",
    "name",
    "objective",
    "sampler.address",
    "sampler.balance",
    "sampler.mismatch",
    "sampler.n",
    "sampler.nodes",
    "sampler.per_node",
    "sampler.pin",
    "sampler.restarts",
    "sampler.timeout_s",
    "schedule_steps",
    "total_steps",
)
_MAY_CHANGE_WHOLE = ("learner", "logger", "sampler")


def stored_config(directory: Path) -> dict[str, Any]:
    """The configuration in the run.json of a run's directory.

    Raises:
        ConfigError: there is no run.
    """
    path = directory / "run.json"
    try:
        settings: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8"))["config"])
    except FileNotFoundError:
        raise ConfigError(
            f"resume={directory}: no run has been here (no run.json); give a run's directory"
        ) from None
    except NotADirectoryError:
        raise ConfigError(
            f"resume={directory}: this is a file; give the run's directory, and it resumes from "
            "its last checkpoint"
        ) from None
    except OSError as error:
        raise ConfigError(f"resume={directory}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"resume={directory}: {path} is damaged: {error}") from None
    return settings


def resumed_config(
    stored: Mapping[str, Any], composed: DictConfig, overrides: Sequence[str]
) -> Config:
    """The stored configuration with the changes that `overrides` ask for.

    `composed` is what Hydra made of `overrides` and defaults.

    Raises:
        ConfigError: an override contradicts the run.
    """
    settings = OmegaConf.create({"callbacks": [], **without_removed(stored), "resume": None})
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.key_or_group
        if key == "resume" or key.startswith("hydra."):
            continue
        if key in (*GROUPS, "algo") and isinstance(override.value(), str):
            _choose(settings, composed, key)
        else:
            _change(settings, composed, key)
    return validate(settings)


def _choose(settings: DictConfig, composed: DictConfig, group: str) -> None:
    """Takes another choice of a group, such as sampler=serial, if the group may change."""
    before, typed = settings[group]["name"], composed[group]["name"]
    if typed == before:
        return
    if group not in _MAY_CHANGE_WHOLE:
        raise _contradiction(group, typed, before)
    kept = {"sampler": ("lanes", "collect", "max_lag"), "logger": ("return_window",)}
    carried = {key: settings[group][key] for key in kept.get(group, ()) if key in settings[group]}
    settings[group] = OmegaConf.merge(OmegaConf.to_container(composed[group]), carried)


def _change(settings: DictConfig, composed: DictConfig, key: str) -> None:
    before, typed = OmegaConf.select(settings, key), OmegaConf.select(composed, key)
    if before == typed:
        return
    if key not in MAY_CHANGE:
        raise _contradiction(key, typed, before)
    OmegaConf.update(settings, key, typed)


def _contradiction(key: str, typed: Any, before: Any) -> ConfigError:
    return ConfigError(
        f"{key}={typed} contradicts the run, which has {key}={before}; drop it, or start a new run "
        f"(a resumed run may change {', '.join(MAY_CHANGE)})"
    )
