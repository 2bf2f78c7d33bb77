"""Command-line options, which refuse bad values before anything starts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from walle.system.machine import usable_cores


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the option `--json`; its help is the docstring of a benchmark."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="where to write everything")
    return parser


def add_peers(parser: argparse.ArgumentParser, packages: str) -> None:
    """Adds `--only`, and `--peers` for an interpreter with `packages`."""
    parser.add_argument("--only", nargs="+", help="contestants, by the beginning of their names")
    parser.add_argument("--peers", help=f"the python that has {packages}")


def positive(text: str) -> int:
    """Parses a whole number of 1 at least."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be 1 at least")
    return number


def duration(text: str) -> float:
    """Parses a number above 0."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{number} must be above 0")
    return number


def core_count(text: str) -> int:
    """Parses a number of cores, at most those that this process may use."""
    number, usable = positive(text), len(usable_cores())
    if number > usable:
        raise argparse.ArgumentTypeError(f"{number} is more than the {usable} usable cores")
    return number


def chosen(names: Iterable[str], only: Sequence[str] | None) -> list[str]:
    """The names that begin with a string of `only`; all names if `only` is empty.

    Raises:
        SystemExit: no name begins with a string of `only`.
    """
    known = list(names)
    for beginning in only or ():
        if not any(name.startswith(beginning) for name in known):
            raise SystemExit(
                f"--only {beginning}: nobody of that name can take part; there are "
                f"{', '.join(known)}"
            )
    return [name for name in known if name.startswith(tuple(only or [""]))]
