"""The meaning of `module:Name` in a setting: the same object in this process and every worker."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from walle.errors import ConfigError, nearest, what_went_wrong


def imported(key: str, path: str, needs: Sequence[str] = (), base: str = "") -> Any:
    """Imports the object that `path`, "module:Name", names in the setting `key`.

    The object must have the attributes `needs`; `base` is how to get them, such as "derive it from
    walle.Callback". Raises ConfigError if the module, the name or an attribute is missing.
    """
    where = f"{key}={path!r}"
    module_name, _, name = path.partition(":")
    if not module_name or not name or module_name == "__main__":
        raise ConfigError(
            f"{where} must be module:Name, where other processes can import the module"
        )
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == module_name.partition(".")[0] and _find_example(error.name):
            return imported(key, path, needs, base)
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{where}: there is no module {error.name} beside you, on PYTHONPATH or among the "
                "installed packages"
            ) from None
        raise ConfigError(f"{where}: importing {module_name} needs {error.name}") from error
    except Exception as error:  # a module's own code may raise anything
        fault = what_went_wrong(error)
        raise ConfigError(f"{where}: {module_name} cannot be imported: {fault}") from error
    if not hasattr(module, name):
        public = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        near = nearest(name, public) if public else "it is empty"
        raise ConfigError(f"{where}: {module_name} has no {name}; {near}")
    value = getattr(module, name)
    if missing := [attribute for attribute in needs if not hasattr(value, attribute)]:
        fix = f"; {base}" if base else ""
        raise ConfigError(f"{where}: {name} lacks {', '.join(missing)}{fix}")
    return value


def _find_example(package: str) -> bool:
    """Adds examples/PACKAGE/ to `sys.path`, if walle ships a package of that name there.

    Worker processes start with this process's path.
    """
    walle = Path(__file__).resolve().parents[1]
    for examples in (walle / "examples", walle.parent / "examples"):  # in a wheel, in a checkout
        directory = str(examples / package)
        if (examples / package / package).is_dir() and directory not in sys.path:
            sys.path.append(directory)
            return True
    return False


def require_picklable(key: str, path: str, value: object) -> None:
    """Raises ConfigError if `value` cannot be pickled, as a lambda or a class in a function."""
    try:
        ForkingPickler.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{key}={path!r} cannot be sent to worker processes ({error}): make it of functions "
            "and classes at the top of a module, and of functools.partial"
        ) from error
