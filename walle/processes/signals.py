"""Ends a run in order after Ctrl-C or SIGTERM."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from walle.errors import Interrupted


class Signals:
    """The first SIGINT or SIGTERM asks for an orderly end; the second ends the run at once.

    The second signal raises `KeyboardInterrupt` with the signal's number.
    """

    def __init__(self) -> None:
        """Installs nothing yet: see `installed`."""
        self.received: int | None = None
        self._breaks_off = False
        self._reader, self._writer = multiprocessing.Pipe(duplex=False)

    @property
    def waitable(self) -> Any:
        """An object for `multiprocessing.connection.wait`, ready once a signal has arrived."""
        return self._reader

    def arrived(self) -> bool:
        """Whether a signal has asked for the end."""
        return self.received is not None

    @contextmanager
    def installed(self) -> Iterator[Signals]:
        """Handles both signals in the body; does nothing outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._handle) for number in numbers]
        try:
            yield self
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    @contextmanager
    def breaking_off(self) -> Iterator[None]:
        """Lets the first signal raise `Interrupted` in the middle of the body or at its end."""
        self._breaks_off = True
        try:
            if self.arrived():
                raise Interrupted
            yield
            if self.arrived():  # the body can have taken its own program's end for a fault
                raise Interrupted
        finally:
            self._breaks_off = False

    def _handle(self, number: int, *_: Any) -> None:
        if self.arrived():
            raise KeyboardInterrupt(number)
        self.received = number
        self._writer.send_bytes(b"\0")
        if self._breaks_off:
            raise Interrupted


def stopped_by(stop: KeyboardInterrupt) -> int:
    """The number of the signal that raised `stop`."""
    return stop.args[0] if stop.args else signal.SIGINT


@contextmanager
def blocked_signals(*numbers: int) -> Iterator[None]:
    """Blocks signals here and in the processes that the body starts; here they follow the body."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
