"""Checkpoints: files with the state of a run, written atomically."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch

from walle.errors import ConfigError


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` to `path`; a crash leaves the previous file unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    buffer = io.BytesIO()  # on a full disk torch.save(path) reports only "unexpected pos"
    torch.save(state, buffer)
    try:
        temporary.write_bytes(buffer.getbuffer())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # frees the disk for status.json
        raise


def load(path: Path) -> dict[str, Any]:
    """The state that `save` wrote: `config`, `algorithm`, `env_steps`, `iteration`, `return_mean`.

    Raises:
        ConfigError: the file does not exist.
    """
    if not path.exists():
        raise ConfigError(f"no checkpoint at {path}: give the path of a last.pt or best.pt")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    return state
