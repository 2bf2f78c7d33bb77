"""Tells of code that ends this process without a word: os._exit, or exit in a C library."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn
from unittest.mock import patch

from walle.errors import ConfigError

# A line from this process ends it quietly. If this process ends first, it reads the end of a file.
_WATCHER = 'read -r line || printf "walle: %s\\n" "$1" >&2'


@contextmanager
def exits_told(what: str) -> Iterator[None]:
    """Lets nobody wonder if the body ends this process.

    A call of `os._exit` raises instead, in the thread that runs the body and not in forked
    processes. If a C library ends the process, a small shell beside it prints a line.

    Args:
        what: what runs in the body, as the beginning of a sentence.

    Raises:
        ConfigError: the body called `os._exit`, even if it caught the error there.
    """
    text = f"{what} ended this process: it or a library called exit in C, or a signal came"
    command = ["/bin/sh", "-c", _WATCHER, "sh", f"{text}; try it alone, outside of walle"]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    place, leave, found = (os.getpid(), threading.get_ident()), os._exit, list[int]()

    def quiet() -> None:
        assert watcher.stdin is not None
        with suppress(OSError):  # the watcher has ended
            os.write(watcher.stdin.fileno(), b"\n")

    def refuse(status: int) -> NoReturn:
        if (os.getpid(), threading.get_ident()) == place:
            found.append(status)
            raise _refusal(what, status)
        if os.getpid() == place[0]:  # another thread says why it ends the process
            quiet()
        leave(status)

    try:
        with patch.object(os, "_exit", refuse):
            yield
    finally:
        quiet()
        watcher.communicate()
        if found:
            raise _refusal(what, found[0]) from None


def _refusal(what: str, status: int) -> ConfigError:
    return ConfigError(
        f"{what} called os._exit({status}), which ends the whole run without a word: raise an "
        "error there instead"
    )
