"""The errors a user meets. Each message holds the value, the reason and the cure."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable


class WalleError(Exception):
    """Base of every error that walle raises on purpose."""


class ConfigError(WalleError, ValueError):
    """Something asked for cannot be done; raised before any process starts."""


class RolloutError(WalleError, RuntimeError):
    """An environment gave something that cannot be learned from, such as a NaN reward."""


class WorkerError(WalleError, RuntimeError):
    """A sampler process ended when it should not have; holds its traceback or its signal."""


class Interrupted(Exception):  # noqa: N818 - asked for, not an error
    """A signal asked the run to end."""


def what_went_wrong(error: BaseException) -> str:
    """In one line: the error's type, its first line, and the place in the code that raised it."""
    lines = str(error).strip().splitlines() or [""]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {lines[0]}{place}"


def nearest(name: str, candidates: Iterable[str]) -> str:
    """A phrase that helps after a typo: the likeliest candidate, or all of them.

    Of dotted names the last parts are compared too: all keys of a group begin alike.

    Returns:
        "did you mean 'x'?" when one is close, else "choose one of: a, b, c".
    """
    known = sorted(candidates)
    last_parts = {candidate.rpartition(".")[2]: candidate for candidate in known}
    close = [
        *_close(name, known, 0.85),
        *(last_parts[part] for part in _close(name.rpartition(".")[2], last_parts, 0.5)),
    ]
    if close:
        return f"did you mean {close[0]!r}?"
    return f"choose one of: {', '.join(known)}"


def _close(name: str, candidates: Iterable[str], cutoff: float) -> list[str]:
    return difflib.get_close_matches(name, list(candidates), n=1, cutoff=cutoff)
