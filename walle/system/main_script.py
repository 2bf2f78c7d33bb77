"""Worker processes import the script that started them; a call without a guard would come again."""

from __future__ import annotations

import ast
import sys
from types import FrameType
from typing import Any

from walle.errors import ConfigError


def require_main_guard(call: str) -> None:
    """Refuses a call that a script makes at its top level, outside of its `__main__` guard.

    Worker processes import the script, because the environment may be defined there, so they would
    make the call again. Notebooks, modules and functions that others call are not concerned.

    Args:
        call: the function's name, for the message.

    Raises:
        ConfigError: the call has no guard.
    """
    main = sys.modules["__main__"]
    path, frame = getattr(main, "__file__", None), _top_frame(main)
    if path is None or frame is None or _is_package_main(main):
        return
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError):  # not Python's source: workers cannot import it
        return
    if not _guarded(tree, frame.f_lineno):
        raise ConfigError(
            f"{path}, line {frame.f_lineno}: {call} starts processes that import this script "
            'again, so put the call under `if __name__ == "__main__":`'
        )


def _top_frame(main: Any) -> FrameType | None:
    """The frame in which the script's top level runs, if it has called us."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is vars(main) and frame.f_code.co_name == "<module>":
            return frame
        frame = frame.f_back
    return None


def _is_package_main(main: Any) -> bool:
    """Whether it is the `__main__` of a package, which workers do not import."""
    return getattr(main.__spec__, "name", "").endswith("__main__")


def _guarded(tree: ast.Module, line: int) -> bool:
    """Whether the top-level statement at `line` is an `if` that looks at `__name__`."""
    for statement in tree.body:
        if statement.lineno <= line <= (statement.end_lineno or line):
            names = ast.walk(statement.test) if isinstance(statement, ast.If) else ()
            return any(isinstance(node, ast.Name) and node.id == "__name__" for node in names)
    return True
