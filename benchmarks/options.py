"""Types of command-line options: what cannot be measured is refused before anything starts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence


def positive(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be 1 at least")
    return number


def duration(text: str) -> float:
    """A number above 0."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{number} must be above 0")
    return number


def core_count(text: str) -> int:
    """As many cores as this process may use, at most."""
    number, usable = positive(text), len(os.sched_getaffinity(0))
    if number > usable:
        raise argparse.ArgumentTypeError(f"{number} is more than the {usable} usable cores")
    return number


def chosen(names: Iterable[str], only: Sequence[str] | None) -> list[str]:
    """The names that begin with one of `only`; all of them without.

    Raises:
        SystemExit: a beginning that no name has.
    """
    known = list(names)
    for beginning in only or ():
        if not any(name.startswith(beginning) for name in known):
            raise SystemExit(
                f"--only {beginning}: nobody of that name can take part; there are "
                f"{', '.join(known)}"
            )
    return [name for name in known if name.startswith(tuple(only or [""]))]
