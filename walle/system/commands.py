"""Commands as a user would type them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

COMMAND_VARIABLE = "WALLE_COMMAND"  # in a sweep's jobs: the command that started the sweep


def command_line() -> str:
    """The command that started this process, as one would type it here."""
    python, *words = sys.orig_argv
    if words and words[0] == _script():
        return shlex.join([_typed(words[0]), *words[1:]])
    return shlex.join([_typed(sys.executable or python), *words])


def command_of(name: str) -> str:
    """A command such as `walle run` or `python -m walle.run`, as it can be typed here."""
    script = _script()
    words = [_typed(script), name] if script else [_typed(sys.executable), "-m", f"walle.{name}"]
    return shlex.join(words)


def _script() -> str | None:
    """The installed command `walle`, if this process runs it."""
    path = sys.orig_argv[1] if len(sys.orig_argv) > 1 else ""
    return path if Path(path).name == "walle" else None


def _typed(program: str) -> str:
    """The program's name if the shell finds it under this name, else the shorter path to it."""
    path = Path(program)
    on_path = shutil.which(path.name)
    if on_path is not None and Path(on_path).absolute() == path.absolute():
        return path.name
    return min(os.path.relpath(program), str(path.absolute()), key=len)
