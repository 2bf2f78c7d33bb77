"""Files that a run and its launcher share: status.json, checkpoints, earlier attempts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from walle.system.files import write_atomically
from walle.system.locks import RUN_LOCK

STATUS, ATTEMPTS = "status.json", "attempts"
_TYPES = {"state": str, "config_hash": str, "attempts": int, "cores": list, "replacements": list}
_TYPES |= dict.fromkeys(("error", "reason", "signal", "started", "ended"), str)
_CHECKPOINTS = ("last.pt", "previous.pt")


def set_aside(directory: Path, patterns: Sequence[str] = ("*",)) -> bool:
    """Moves files of an earlier attempt into attempts/K; returns whether there were any.

    A new attempt that appended to these files would mix the rows of two runs.
    """
    shelf = directory / ATTEMPTS
    stays = {shelf, directory / RUN_LOCK}
    earlier = {path for pattern in patterns for path in directory.glob(pattern)} - stays
    if not earlier:
        return False
    taken = [int(path.name) for path in shelf.glob("*") if path.name.isdigit()]
    target = shelf / str(1 + max(taken, default=0))
    target.mkdir(parents=True)
    # A kill in between leaves run.json, so that the next start moves the rest.
    for path in sorted(earlier, key=lambda path: path.name == "run.json"):
        path.rename(target / path.name)
    return True


def has_checkpoint(directory: Path) -> bool:
    """Whether a run in this directory can resume from a checkpoint.

    Other applications may have a file of this name too, but no run.json next to it.
    """
    files = [directory / "checkpoints" / name for name in _CHECKPOINTS]
    return (directory / "run.json").exists() and any(file.exists() for file in files)


def read_status(directory: Path) -> dict[str, Any]:
    """Reads status.json; ignores a damaged file, and fields of a wrong type.

    A run or a job without a status counts as not started.
    """
    try:
        content = json.loads((directory / STATUS).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):  # also wrong JSON, wrong UTF-8
        return {}
    return {
        name: value
        for name, value in (content.items() if isinstance(content, dict) else ())
        if value is None or isinstance(value, _TYPES.get(name, object))
    }


def update_status(directory: Path, **fields: Any) -> None:
    """Changes the given fields of status.json and keeps all others."""
    write_status(directory, read_status(directory) | fields)


def write_status(directory: Path, fields: dict[str, Any]) -> None:
    """Replaces status.json; makes the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / STATUS, json.dumps(fields, indent=2) + "\n")


def remove_empty(directory: Path) -> None:
    """Removes the directory and its parents, up to the working directory, if they are empty."""
    with suppress(OSError):  # one of them is not empty, or does not exist
        for path in (directory, *directory.parents):
            if path.resolve() == Path.cwd():
                return
            path.rmdir()
