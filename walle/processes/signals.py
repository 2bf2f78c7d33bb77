"""What Ctrl-C and SIGTERM do to a run."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from walle.errors import Interrupted


class Signals:
    """SIGINT and SIGTERM ask once for an orderly end; the second time they end at once.

    The second one raises `KeyboardInterrupt` with the signal's number.
    """

    def __init__(self) -> None:
        """Nothing is installed yet."""
        self.received: int | None = None
        self._breaks_off = False
        self._reader, self._writer = multiprocessing.Pipe(duplex=False)

    @property
    def waitable(self) -> Any:
        """Readable once a signal has arrived."""
        return self._reader

    def arrived(self) -> bool:
        """Whether a signal has asked for the end."""
        return self.received is not None

    @contextmanager
    def installed(self) -> Iterator[Signals]:
        """Handles both signals in the body; outside the main thread there is nothing to do."""
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
        """Has the first signal, too, break off the body, with `Interrupted`."""
        self._breaks_off = True
        try:
            if self.arrived():
                raise Interrupted
            yield
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
