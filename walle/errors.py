"""The errors that a user meets, and the bounds of settings that raise them.

Each message states the value, the reason and the fix.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, field, fields
from functools import partial
from pathlib import Path
from typing import Any

NAME_BYTES = 255  # in the usual file systems
PATH_BYTES = 4095 - 128  # Linux's limit, less the names of a run's own files


class WalleError(Exception):
    """Base of every error that walle raises on purpose."""


class ConfigError(WalleError, ValueError):
    """The configuration asks for something impossible; raised before any process starts."""


class CheckpointError(ConfigError):
    """A checkpoint, or a file beside it, is damaged or belongs to another run."""


class RolloutError(WalleError, RuntimeError):
    """An environment returned a value that learning cannot use, such as a NaN reward."""


class RestoreError(RolloutError):
    """An environment does not continue from a saved state as it did before."""


class WorkerError(WalleError, RuntimeError):
    """A worker process ended too early; the message holds its traceback or its signal."""


class WorkerDeathError(WorkerError):
    """A worker process was killed or called `_exit`; a replacement may succeed."""


class CallbackError(WalleError, RuntimeError):
    """A callback raised an exception; the message holds its name and the traceback."""


class CompileError(WalleError, RuntimeError):
    """The C++ compiler, or the cache for what it compiles, does not work."""


class DiskError(WalleError, RuntimeError):
    """A run cannot write its files: the disk is full, or the directory cannot be changed."""


class Interrupted(BaseException):
    """A signal asked the run to end; not an Exception, so that no library catches it."""


def what_went_wrong(error: BaseException) -> str:
    """One line: the error's type, its first line (else the code that raised it), and the place."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = str(error).strip().splitlines() or [frames[-1].line or "" if frames else ""]
    location = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {lines[0]}{location}"


@contextmanager
def without_exit() -> Iterator[None]:
    """A context in which a call of `sys.exit`, as by an environment, raises RolloutError."""
    try:
        yield
    except SystemExit as error:
        raise RolloutError(
            f"{what_went_wrong(error)}: an environment, or another class of yours, called sys.exit;"
            " report a fault by another exception, and end an episode with terminated or truncated"
        ) from error


def print_fault(error: Exception) -> None:
    """Prints an exception that `env.on_error=reset` tolerates, with its notes."""
    lines = [what_went_wrong(error), *getattr(error, "__notes__", [])]
    print(f"env.on_error=reset: {'; '.join(lines)}", file=sys.stderr, flush=True)


def cause_text(error: str) -> str:
    """A run's error in one line: its first line, then the exception that its traceback ends with.

    Without a traceback, the line after a worker's name takes the exception's place. Everything else
    appears only in the run's log.
    """
    lines = error.strip().splitlines()
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    raised = [line for line in lines[max(frames, default=len(lines)) :] if line[:1] > " "]
    if not frames and lines and lines[0].endswith(":"):
        raised = lines[1:]
    elif raised and ":" not in raised[0] and lines[frames[-1] + 1].startswith(" "):  # no message
        raised[0] += f": {lines[frames[-1] + 1].strip()}"
    return " ".join(lines[:1] + raised[:1])


DISK_FIXES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk, or ask for a larger quota",
    errno.EFBIG: "allow larger files (ulimit -f)",
    errno.EROFS: "make the disk writable",
    errno.EACCES: "allow this user to write there",
    errno.EPERM: "allow this user to write there",
    errno.EEXIST: "move the file or the broken link that stands in the way",
    errno.ELOOP: "remove the link that leads to itself",
    errno.EIO: "check the disk",
    errno.ESTALE: "mount the disk again",
    errno.ENOTDIR: "move the file that stands in the way",
    errno.EISDIR: "move the directory that stands in the way",
}


def directory_fault(path: Path) -> str | None:
    """Why a run cannot use this path as its directory, and the fix; None if it can."""
    for part in path.parts:
        if not part.isprintable():
            return f"the name {part!r} has characters that cannot be printed; leave them out"
        if (size := len(part.encode())) > NAME_BYTES:
            return f"the name {part[:20]}... has {size} bytes, more than {NAME_BYTES}; shorten it"
    if (size := len(str(path).encode())) > PATH_BYTES:
        return f"the path {str(path)[:20]}... has {size} bytes, more than {PATH_BYTES}; shorten it"
    return f"{path} is a file; move it, or give another directory" if os.path.isfile(path) else None


def not_a_flag(word: str) -> str:
    """The message for a flag that does not exist, such as `--seed=3` instead of `seed=3`."""
    key = word.lstrip("-").partition("=")[0]
    return f"{word} is not a flag; settings are written {key}=VALUE"


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Returns "did you mean 'x'?" when a candidate is close, else "choose one of: a, b, c".

    Dotted names are also compared by their last parts, since the keys of a group share a prefix.
    """
    known = sorted(candidates)
    last_parts = {candidate.rpartition(".")[2]: candidate for candidate in known}
    match = partial(difflib.get_close_matches, n=1)
    close = [
        *(candidate for candidate in known if candidate.lower() == name.lower()),
        *match(name, known, cutoff=0.85),
        *(last_parts[part] for part in match(name.rpartition(".")[2], [*last_parts], cutoff=0.5)),
    ]
    if close:
        return f"did you mean {close[0]!r}?"
    return f"choose one of: {', '.join(known)}"


def _bounded(fault: Callable[[Any], str | None], default: Any) -> Any:
    """A dataclass field with a test that returns what is wrong with a value, in words.

    Walle's own fields have no defaults; the YAML files do.
    """
    return field(default=default, metadata={"fault": fault})


def positive(default: Any = MISSING) -> Any:
    """A field whose value, or every entry of it, must be above 0."""

    def fault(value: Any) -> str | None:
        entries = value if isinstance(value, list) else [value]
        return None if all(entry > 0 for entry in entries) else "must be positive"

    return _bounded(fault, default)


def not_negative(default: Any = MISSING) -> Any:
    """A field whose value must be 0 or above."""
    return _bounded(lambda value: None if value >= 0 else "must not be negative", default)


def within(interval: str, *, example: float, default: Any = MISSING) -> Any:
    """A field whose value must lie in an interval such as "[0, 1)", which excludes 1 itself."""
    low, high = (float(end) for end in interval[1:-1].split(","))

    def fault(value: float) -> str | None:
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        return None if above and below else f"must lie in {interval}, as in {example}"

    return _bounded(fault, default)


def one_of(*choices: str, default: Any = MISSING) -> Any:
    """A field whose value must be one of `choices`."""

    def fault(value: str) -> str | None:
        return None if value in choices else f"is unknown; {nearest(value, choices)}"

    return _bounded(fault, default)


def matching(pattern: str, demand: str) -> Any:
    """A field whose value, or every entry of it, must match a regular expression."""

    def fault(value: Any) -> str | None:
        entries = value if isinstance(value, list) else [value]
        return None if all(re.fullmatch(pattern, entry) for entry in entries) else demand

    return _bounded(fault, MISSING)


def check_bounds(settings: Any, group: str) -> None:
    """Raises ConfigError for a dataclass's first value out of bounds; None is always within them.

    Whole numbers must also fit into 64 bits, as they do in PyTorch and C++.

    `group` is the dataclass's name on the command line, as in "algo"; empty at the top level.
    """
    for setting in fields(settings):
        value, fault = getattr(settings, setting.name), setting.metadata.get("fault")
        entries = value if isinstance(value, list) else [value]
        demand = None if fault is None or value is None else fault(value)
        if any(isinstance(entry, int) and entry >= 2**63 for entry in entries):
            demand = "is too large; use whole numbers below 2^63"
        if demand:
            path = f"{group}.{setting.name}" if group else setting.name
            shown = repr(value) if isinstance(value, str) else value
            raise ConfigError(f"{path}={shown} {demand}")
