"""What workers import: the meaning of `module:Name` in a setting, and the user's own script."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

from walle.errors import ConfigError, nearest, what_went_wrong

_EXAMPLES = [p / "examples" for p in Path(__file__).resolve().parents[1:3]]  # wheel, checkout
TRUST = "use trust=True (in a command line trust=true)"
# By module: how the ids that it registers start, and what to install.
_ID_PACKAGES = {
    "ale_py": ("ALE/", "ale-py opencv-python-headless"),
    "shimmy": ("dm_control/", "'shimmy[dm-control]' 'mujoco<4'"),
    "minigrid": ("MiniGrid- BabyAI-", "minigrid"),
    "gymnasium_robotics": (
        "Fetch Hand Adroit Franka PointMaze AntMaze",
        "gymnasium-robotics 'mujoco<4'",
    ),
    "metaworld": ("Meta-World/", "metaworld 'mujoco<4'"),
    "minatar": ("MinAtar/", "minatar"),
}


def imported(key: str, path: str, needs: Sequence[str] = (), base: str = "") -> Any:
    """Imports the object that `path`, "module:Name", names in the setting `key`.

    The object must have the attributes `needs`; `base` states how to get them, such as "derive it
    from walle.Callback". Raises ConfigError if the module, the name or an attribute is missing.
    """
    module = import_module_of(key, path)
    where, name = f"{key}={path!r}", path.partition(":")[2]
    if not hasattr(module, name):
        public = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        near = nearest(name, public) if public else "it is empty"
        raise ConfigError(f"{where}: {module.__name__} has no {name}; {near}")
    value = getattr(module, name)
    if missing := [attribute for attribute in needs if not hasattr(value, attribute)]:
        fix = f"; {base}" if base else ""
        raise ConfigError(f"{where}: {name} lacks {', '.join(missing)}{fix}")
    return value


def with_module(env_id: str) -> str:
    """An environment's id with the module that registers it, as in "ale_py:ALE/Pong-v5"."""
    for module, (starts, _) in _ID_PACKAGES.items():
        if ":" not in env_id and env_id.startswith(tuple(starts.split())):
            return f"{module}:{env_id}"
    return env_id


def check_guard() -> None:
    """Refuses a script without `if __name__ == "__main__":`, because every worker imports it."""
    spawn._check_not_importing_main()  # type: ignore[attr-defined]  # in a worker
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    if script.name == "<stdin>":
        raise ConfigError(
            "a script on standard input cannot be imported by samplers and learners: save it as a "
            "file, or use sampler=serial and learner.n=1"
        )
    if script.is_file() and "__name__" not in script.read_text(errors="replace"):
        raise ConfigError(
            f"{script.name}: samplers and learners are processes that import this script again; "
            "put the call of walle.train below `if __name__ == '__main__':`"
        )


def with_colon(name: str) -> str:
    """The `module:Name` that a Python name means, as in "myenvs:Cart" for myenvs.Cart."""
    return re.sub(r"^([\w.]+)\.([A-Za-z_]\w*)$", r"\1:\2", name)


def import_module_of(key: str, path: str) -> ModuleType:
    """Imports the module of `path`, "module:Name"; raises ConfigError if that fails."""
    where = f"{key}={path!r}"
    module_name, _, name = path.partition(":")
    if not module_name or not name or module_name == "__main__" or module_name.endswith(".py"):
        raise ConfigError(
            f"{where} must be module:Name, where other processes can import the module (without "
            ".py and directories)"
        )
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == module_name.partition(".")[0] and _find_example(error.name):
            return import_module_of(key, path)
        if error.name == module_name and error.name in _ID_PACKAGES:
            install = _ID_PACKAGES[error.name][1]
            raise ConfigError(f"{where} needs a package: pip install {install}") from None
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{where}: there is no module {error.name} in this directory, on PYTHONPATH "
                "or among the installed packages"
            ) from None
        raise ConfigError(f"{where}: importing {module_name} needs {error.name}") from error
    except Exception as error:  # a module's own code may raise anything
        fault = what_went_wrong(error)
        raise ConfigError(f"{where}: {module_name} cannot be imported: {fault}") from error


def check_import(
    key: str, path: str, file: Path, fix: str = TRUST, *, trust: bool = False, beside: bool = False
) -> None:
    """Refuses to import the module of `path`, "module:Name", which `file` names as `key`.

    Whoever made `file`, a checkpoint or a run's directory, may have made the module too. Modules of
    walle are allowed; `trust` allows all others, each with a line on stderr. With `beside`, it
    refuses only modules in Python's library, in the run's directory or directly in its parent,
    unless they are already imported. Raises ConfigError; `fix` ends its message.
    """
    module, package = path.rpartition(":")[0], re.split("[.:]", path)[0]
    folders = _find_folders(package) if module else []
    ours = (any(map(folder.is_relative_to, _EXAMPLES)) for folder in folders)
    if not module or package == "walle" or (folders and all(ours)):
        return
    where = f"{module} ({', '.join(map(str, folders)) or 'in no directory'})"
    if trust:
        print(f"walle: {key}={path!r} of {file}: imports {where}", file=sys.stderr)
        return
    if beside:
        run = (file.parent.parent if file.parent.name == "checkpoints" else file).resolve()
        near = any(folder == run.parent or folder.is_relative_to(run) for folder in folders)
        python = Path(os.__file__).parent.resolve() in folders or package in sys.stdlib_module_names
        if module in sys.modules or not (near or python or module.endswith("__main__")):
            return
    raise ConfigError(
        f"{key}={path!r} of {file}: importing {where} would run code that is not walle's; if you "
        f"trust whoever made it, {fix}"
    )


def _find_folders(package: str) -> list[Path]:
    """The directories in which a module or a package lies; none if it is built in or missing."""
    try:
        spec = find_spec(package) or (find_spec(package) if _find_example(package) else None)
    except ValueError:  # of __main__
        spec = None
    origins = [spec.origin] if spec and spec.has_location else []
    places = (spec and spec.submodule_search_locations) or origins
    return [Path(place).parent.resolve() for place in places if place]


def _find_example(package: str) -> bool:
    """Adds examples/PACKAGE/ to `sys.path`, if walle ships a package of that name there.

    Worker processes start with this process's path.
    """
    for examples in _EXAMPLES:
        directory = str(examples / package)
        if (examples / package / package).is_dir() and directory not in sys.path:
            sys.path.append(directory)
            return True
    return False


def require_picklable(key: str, path: str, value: object) -> None:
    """Raises ConfigError if `value` cannot be pickled, such as a lambda or a local class."""
    try:
        ForkingPickler.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{key}={path!r} cannot be sent to worker processes ({error}): make it of functions "
            "and classes at the top of a module, and of functools.partial"
        ) from error
