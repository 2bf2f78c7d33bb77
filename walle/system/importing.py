"""What `module:Name` in a setting means: the same object in this process and in every worker."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

from walle.errors import ConfigError, nearest, what_went_wrong


def imported(key: str, path: str, needs: Sequence[str] = (), base: str = "") -> Any:
    """The object that `path` names.

    Args:
        key: the setting, for messages, such as "algo.name".
        path: "module:Name"; the module lies beside the user or in an installed package.
        needs: attributes that the object must have.
        base: what gives an object all of them, such as "derive it from walle.Callback"; may be
            empty.

    Raises:
        ConfigError: the module or the name does not exist, or the object lacks an attribute.
    """
    module, _, name = path.partition(":")
    if not module or not name or module == "__main__":
        raise ConfigError(
            f"{key}={path!r} must be module:Name, where other processes can import the module"
        )
    found = _module(key, path, module)
    if not hasattr(found, name):
        public = [each for each in vars(found) if not each.startswith("_")]
        near = nearest(name, public) if public else "it is empty"
        raise ConfigError(f"{key}={path!r}: {found.__name__} has no {name}; {near}")
    value = getattr(found, name)
    if missing := [each for each in needs if not hasattr(value, each)]:
        cure = f"; {base}" if base else ""
        raise ConfigError(f"{key}={path!r}: {name} lacks {', '.join(missing)}{cure}")
    return value


def _module(key: str, path: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0] and _find_example(error.name):
            return _module(key, path, module)
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{key}={path!r}: there is no module {error.name} beside you, on PYTHONPATH or "
                "among the installed packages"
            ) from None
        raise ConfigError(f"{key}={path!r}: importing {module} needs {error.name}") from error
    except Exception as error:  # a module's own code may raise anything
        fault = what_went_wrong(error)
        raise ConfigError(f"{key}={path!r}: {module} cannot be imported: {fault}") from error


def _find_example(package: str) -> bool:
    """Puts examples/PACKAGE/ on the path of modules, if walle ships a package of that name there.

    Worker processes start with this process's path.
    """
    walle = Path(__file__).resolve().parents[1]
    for shipped in (walle / "examples", walle.parent / "examples"):  # in a wheel, in a checkout
        directory = str(shipped / package)
        if (shipped / package / package).is_dir() and directory not in sys.path:
            sys.path.append(directory)
            return True
    return False


def require_picklable(key: str, path: str, value: object) -> None:
    """Checks that a worker process can get `value`.

    Raises:
        ConfigError: it cannot be pickled, as a lambda or a class inside a function.
    """
    try:
        ForkingPickler.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{key}={path!r} cannot be sent to worker processes ({error}): make it of functions "
            "and classes at the top of a module, and of functools.partial"
        ) from error
