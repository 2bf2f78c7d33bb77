"""Names work in this process that lasts far too long, and ends it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from walle.errors import WorkerError

SILENT = signal.SIGRTMIN + 10  # by which the main thread learns that its time is over
NATIVE_S = 10.0
LEAST_S, TIMES_THE_LONGEST = 60.0, 10.0


class Watchdog:
    """A limit for work of the main thread, such as an evaluation.

    The limit is `timeout_s`; if that is None, ten times the longest such work so far and a minute
    at least. After one limit the work is named, after two it raises `WorkerError`. If it is stuck
    in native code, where Python can raise nothing, the process ends ten seconds later.
    """

    def __init__(
        self,
        timeout_s: float | None,
        say: Callable[[str], None],
        last_words: Callable[[str], None],
    ) -> None:
        """Watches nothing yet.

        Args:
            timeout_s: the limit in seconds.
            say: prints a line.
            last_words: records why the process ends without its main thread.
        """
        self._timeout_s, self._say, self._last_words = timeout_s, say, last_words
        self._longest_s = 0.0

    @property
    def limit_s(self) -> float:
        """The seconds after which the work is named."""
        if self._timeout_s is not None:
            return self._timeout_s
        return max(LEAST_S, TIMES_THE_LONGEST * self._longest_s)

    @contextmanager
    def over(self, what: str) -> Iterator[None]:
        """Watches the body, which `what` names; outside the main thread it only tells.

        Raises:
            WorkerError: the body lasted longer than twice the limit.
        """
        done, began = threading.Event(), monotonic()
        main = threading.current_thread() is threading.main_thread()
        text = f"{what} has lasted longer than {2 * self.limit_s:.0f} s (sampler.timeout_s)"

        def stop(*_: Any) -> None:
            if not done.is_set():
                raise WorkerError(text)

        before = signal.signal(SILENT, stop) if main else None
        target = threading.get_ident() if main else None
        args = (what, text, target, done)
        thread = threading.Thread(target=self._watch, args=args, name="walle-watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            if main:
                signal.signal(SILENT, before)
        self._longest_s = max(self._longest_s, monotonic() - began)

    def _watch(self, what: str, text: str, main: int | None, done: threading.Event) -> None:
        if done.wait(self.limit_s):
            return
        self._say(f"{what} has lasted for {self.limit_s:.0f} s; it is ended after twice that time")
        if main is None or done.wait(self.limit_s):
            return
        signal.pthread_kill(main, SILENT)
        if not done.wait(NATIVE_S):
            self._end(f"{text}, and native code does not return")

    def _end(self, text: str) -> None:
        print(f"walle: {text}", file=sys.stderr, flush=True)
        try:
            self._last_words(text)
        except Exception:  # noqa: BLE001 - nobody else would hear of it
            traceback.print_exc()
        os._exit(1)
