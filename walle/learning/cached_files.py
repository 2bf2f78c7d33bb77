"""Compiled code in the cache directory: each file with a checksum, and what its name stands for."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from walle.system.files import cache_directory

SUFFIXES = (".pt2", ".so")


def built() -> set[tuple[str, int]]:
    """The files of compiled code in the cache directory, each with its time of building."""
    found = (path for path in cache_directory().iterdir() if path.suffix in SUFFIXES)
    return {(each.name, each.stat().st_mtime_ns) for each in found}


def write(path: Path, text: str) -> None:
    """Writes a file at once, so that another process never reads half of it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".writing", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def seal(path: Path) -> None:
    """Writes the checksum of a file that was built."""
    write(_checksum_file(path), _checksum(path))


def intact(path: Path) -> bool:
    """Whether the file is as it was built: a damaged one would run, whatever it does."""
    try:
        return _checksum_file(path).read_text() == _checksum(path)
    except (OSError, ValueError):  # one of the files is missing, or the checksum is no text
        return False


def cpu() -> str:
    """The processor's model and instruction sets; a library works on this processor only."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    known = [line for line in lines if line.startswith(("flags", "Features", "model name"))]
    return "\n".join(sorted(set(known)))


def _checksum_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
