"""Checkpoints: everything an algorithm needs to go on, in one file written atomically."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch

from walle.errors import ConfigError


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` to `path`; a crash leaves the file that was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    packed = io.BytesIO()  # of a full disk torch would say "unexpected pos"
    torch.save(state, packed)
    try:
        temporary.write_bytes(packed.getbuffer())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # status.json needs the room
        raise


def load(path: Path) -> dict[str, Any]:
    """The state that `save` wrote: `config`, `algorithm`, `env_steps`, `iteration`, `return_mean`.

    Raises:
        ConfigError: there is no such file.
    """
    if not path.exists():
        raise ConfigError(f"no checkpoint at {path}: give the path of a last.pt or best.pt")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    return state
