"""Command lines of paths and settings, such as `walle eval outputs/… episodes=100`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from walle.errors import ConfigError, nearest, not_a_flag
from walle.system.format import table


class Setting(NamedTuple):
    """A setting of a command: its type, its default, and its description in `--help`."""

    type_: type
    default: Any
    about: str


def parse(
    arguments: Sequence[str],
    description: str,
    settings: Mapping[str, Setting],
    switches: Mapping[str, str] | None = None,
) -> tuple[list[Path], dict[str, Any], dict[str, bool]]:
    """Parses a command line into paths, values of `settings`, and `switches`.

    Prints the help, with `description` above it, and exits if asked to. A word with `=` is a
    setting if a plain name precedes the `=`; otherwise it is a path. Switches are flags such as
    "--watch" with their descriptions. A wrong setting, or no path, is a `ConfigError`.
    """
    shown = {
        name: f"{about} (default: {'none' if default is None else str(default).lower()})"
        for name, (_, default, about) in settings.items()
    }
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f"settings:\n{table(shown)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="PATH | SETTING=VALUE", help="see below")
    for flag, about in (switches or {}).items():
        parser.add_argument(flag, action="store_true", help=about)
    known, unknown = parser.parse_known_intermixed_args(arguments)
    if unknown:
        raise ConfigError(not_a_flag(unknown[0]))
    typed = vars(known)
    paths, values = [], {name: setting.default for name, setting in settings.items()}
    for word in typed.pop("words"):
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            paths.append(Path(word))
        elif name not in settings:
            raise ConfigError(f"{name} is not a setting; {nearest(name, settings)}")
        else:
            values[name] = _converted(name, value, settings[name].type_)
    if not paths:
        raise ConfigError("no path: give a run's directory, a sweep's, or a checkpoint file")
    return paths, values, typed


def _converted(name: str, text: str, type_: type) -> Any:
    with suppress(KeyError, ValueError, OverflowError):
        if type_ is bool:
            return {"true": True, "false": False}[text.lower()]
        if type_ is not int:
            return type_(text)
        if float(text).is_integer():
            return int(float(text))  # also of 1e3
    names = {bool: "true or false", int: "a whole number"}
    raise ConfigError(f"{name}={text!r} must be {names.get(type_, type_.__name__)}")
