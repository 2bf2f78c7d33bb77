"""Command lines of paths and settings, such as `walle eval outputs/… episodes=100`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from walle.errors import ConfigError, nearest


class Setting(NamedTuple):
    """A setting of a command: its type, its default, and what `--help` says about it."""

    kind: type
    default: Any
    about: str


class Parsed(NamedTuple):
    """The command line as it was typed: paths, values of settings, and switches."""

    paths: list[Path]
    values: dict[str, Any]
    switches: dict[str, bool]


def parse(
    arguments: Sequence[str],
    description: str,
    settings: Mapping[str, Setting],
    switches: Mapping[str, str] | None = None,
) -> Parsed:
    """Parses a command line; prints the help and exits if asked to.

    A word with `=` is a setting if a plain name stands before it; otherwise it is a path.

    Args:
        arguments: the words after the command.
        description: the text above the flags.
        settings: by name.
        switches: flags such as "--watch" with what they do.

    Raises:
        ConfigError: a setting is unknown or has a value of another type, or there is no path.
    """
    shown = {
        name: f"{each.about} (default: "
        f"{'none' if each.default is None else str(each.default).lower()})"
        for name, each in settings.items()
    }
    width = max(map(len, shown))
    table = [f"  {name:{width}}  {text}" for name, text in shown.items()]
    parser = argparse.ArgumentParser(
        description=description,
        epilog="\n".join(["settings:", *table]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="PATH | SETTING=VALUE", help="see below")
    for flag, about in (switches or {}).items():
        parser.add_argument(flag, action="store_true", help=about)
    typed = vars(parser.parse_intermixed_args(arguments))
    paths, values = [], {name: each.default for name, each in settings.items()}
    for word in typed.pop("words"):
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            paths.append(Path(word))
        elif name not in settings:
            raise ConfigError(f"{name} is not a setting; {nearest(name, settings)}")
        else:
            values[name] = _converted(name, value, settings[name].kind)
    if not paths:
        raise ConfigError("no path: give a run's directory, a sweep's, or a checkpoint file")
    return Parsed(paths, values, typed)


def _converted(name: str, text: str, kind: type) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is int and float(text).is_integer():
            return int(float(text))  # also of 1e3
        if kind is not int:
            return kind(text)
    except (KeyError, ValueError, OverflowError):
        pass
    kinds = {bool: "true or false", int: "a whole number"}
    raise ConfigError(f"{name}={text!r} must be {kinds.get(kind, kind.__name__)}")
