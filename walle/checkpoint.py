"""Checkpoints: everything an algorithm needs to go on, in one file written atomically."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from walle.errors import ConfigError


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` to `path`; a crash leaves the file that was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


def load(path: Path) -> dict[str, Any]:
    """The state that `save` wrote: `config`, `algorithm`, `env_steps`, `iteration`, `return_mean`.

    Raises:
        ConfigError: there is no such file.
    """
    if not path.exists():
        raise ConfigError(f"no checkpoint at {path}: give the path of a last.pt or best.pt")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    return state
