"""Supervision: dead workers, work that hangs, workers that hang, and restarts."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, Literal

from walle.errors import WorkerError
from walle.system.signals import DEATH, SILENT, blocked_signals

NATIVE_S = 10.0
SLICE_S = 1.0  # the longest wait: what takes longer, the process was stopped, as by Ctrl-Z
LEAST_S, TIMES_THE_LONGEST = 60.0, 10.0
AT_MOST_A_ROUND = 2


class DeathWatch:
    """Interrupts the main thread when a watched process ends."""

    def __init__(self, sentinels: Iterable[int], report: Callable[[], object]) -> None:
        """Watches the processes; outside the main thread only `busy` checks whether one has ended.

        `report` is called in the main thread when processes have ended. It raises an error, or
        returns if the run can continue; the remaining processes are then still watched.
        """
        self._report = report
        self._watched = frozenset(sentinels)
        self._busy = self._reporting = self._closed = False
        self._changed = os.eventfd(0)
        self._thread: threading.Thread | None = None
        if threading.current_thread() is threading.main_thread():
            signal.signal(DEATH, lambda *_: self._report_ended())
            main = threading.get_ident()
            self._thread = threading.Thread(
                target=self._interrupt, args=[main], name="walle-watch", daemon=True
            )
            self._thread.start()

    def watch(self, sentinels: Iterable[int]) -> None:
        """Watches these processes instead; call it before the old sentinels are closed."""
        self._watched = frozenset(sentinels)
        os.eventfd_write(self._changed, 1)

    def _interrupt(self, main: int) -> None:
        """Sends a signal when a process ends, and waits until the main thread has handled it."""
        while not self._closed:
            watched = self._watched
            ready = wait([self._changed, *watched])
            if self._changed not in ready and watched is self._watched and not self._closed:
                signal.pthread_kill(main, DEATH)
                wait([self._changed])
            if wait([self._changed], 0):
                os.eventfd_read(self._changed)

    def _report_ended(self) -> None:
        """Reports the processes that have ended, if any have: anybody may have sent the signal."""
        if not self._busy or self._reporting or self._closed:
            return
        self._reporting = True
        try:
            while ended := wait(self._watched, 0):
                self.watch(self._watched.difference(ended))
                self._report()
        finally:
            self._reporting = False

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Reports the end of a process during the body."""
        try:
            self._busy = True
            self._report_ended()  # a process may have ended while the main thread was not busy
            yield
        finally:
            self._busy = False

    def close(self) -> None:
        """Stops watching: from now on processes may end."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._changed, 1)
        if self._thread is not None:
            self._thread.join()
        os.close(self._changed)


class TimeLimit:
    """A limit on the duration of work, such as a round.

    It is `timeout_s`; if that is None, `times` x the longest duration so far, at least `least_s`.
    """

    def __init__(
        self, timeout_s: float | None, least_s: float = LEAST_S, times: float = TIMES_THE_LONGEST
    ) -> None:
        self._timeout_s, self._least_s, self._times = timeout_s, least_s, times
        self._longest_s = 0.0

    @property
    def seconds(self) -> float:
        """The limit now."""
        if self._timeout_s is not None:
            return self._timeout_s
        return max(self._least_s, self._times * self._longest_s)

    def note(self, took_s: float) -> None:
        """Records the duration of completed work."""
        self._longest_s = max(self._longest_s, took_s)


class Watchdog:
    """A time limit for work in the main thread, such as an evaluation; see `TimeLimit`.

    After one limit without a sign of life it prints the work's name, after two it raises
    `WorkerError`. If the work is stuck in native code, where Python cannot raise, the process ends
    ten seconds later.
    """

    def __init__(
        self,
        timeout_s: float | None,  # the limit in seconds, or None
        say: Callable[[str], None],  # prints a line
        last_words: Callable[[str], None],  # records why the process ends without its main thread
    ) -> None:
        self.limit = TimeLimit(timeout_s)
        self._say, self._last_words = say, last_words

    @contextmanager
    def over(self, what: str, alive: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
        """Watches the body; outside the main thread it only prints a line.

        `what` begins the messages, as in "the trial has lasted". `alive` returns when the body last
        gave a sign of life, in seconds of the monotonic clock.
        """
        done, start, limit_s = threading.Event(), time.monotonic(), self.limit.seconds
        since = start
        main = threading.current_thread() is threading.main_thread()
        ident = threading.get_ident()
        text = f"{what} {2 * limit_s:.0f} s (sampler.timeout_s)"

        def stop(*_: Any) -> None:
            if not done.is_set():
                raise WorkerError(text)

        def silent(seconds: float) -> bool:
            """Waits until the body has been silent for so long; False if it is done before."""
            nonlocal since
            while (left := max(since, alive()) + seconds - (now := time.monotonic())) > 0:
                if done.wait(min(left, SLICE_S)):
                    return False
                stopped_s = time.monotonic() - now - min(left, SLICE_S)
                since = min(max(since, alive()) + stopped_s, time.monotonic())
            return True

        def watch() -> None:
            if not silent(limit_s):
                return
            self._say(f"{what} {limit_s:.0f} s; it is ended after twice that time")
            if not main or not silent(2 * limit_s):
                return
            for _ in range(2):  # the body's code may catch the error once
                signal.pthread_kill(ident, SILENT)
                if done.wait(NATIVE_S / 2):
                    return
            last_words = f"{text}, and native code does not return"
            print(f"walle: {last_words}", file=sys.stderr, flush=True)
            try:
                self._last_words(last_words)
            except Exception:  # noqa: BLE001 - nobody else would hear of it
                traceback.print_exc()
            os._exit(1)

        before = signal.signal(SILENT, stop) if main else None
        thread = threading.Thread(target=watch, name="walle-watchdog", daemon=True)
        try:
            with blocked_signals(signal.SIGINT):  # else it gets those that the main thread blocks
                thread.start()
            yield
        finally:
            done.set()
            if thread.ident is not None:
                thread.join()
            if main:
                signal.signal(SILENT, before)
        self.limit.note(time.monotonic() - start)


class Silence:
    """How long each worker owes a result and has given no sign of life; see `TimeLimit`.

    After one limit a worker is named, after two it is replaced.
    """

    def __init__(
        self, workers: int, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit, self._clock = TimeLimit(timeout_s), clock
        self._since: list[float | None] = [None] * workers
        self._named: dict[int, float] = {}  # when they were named
        self._until = math.inf  # the end of the wait

    def update(self, worker: int, *, owes: bool) -> None:
        """Records whether a result is due from the worker; its time starts at the first record."""
        if not owes:
            self.heard(worker)
        elif self._since[worker] is None:
            self._since[worker] = self._clock()

    def alive(self, worker: int, at: float) -> None:
        """Records a sign of life, by the clock; an old one changes nothing."""
        since = self._since[worker]
        self._since[worker] = None if since is None else max(since, at)

    def heard(self, worker: int, took_s: float = 0.0) -> None:
        """Records a message; `took_s` is the time that its result took, if it sent one."""
        self._since[worker] = None
        self._named.pop(worker, None)
        self.limit.note(took_s)

    def _due(self, worker: int, since: float) -> float:
        limit_s = self.limit.seconds
        if (named_at := self._named.get(worker)) is None:
            return since + limit_s
        return max(since + limit_s, named_at) + limit_s

    def wait_s(self) -> float | None:
        """Seconds until the next worker is overdue, a second at most; None if no result is due."""
        dues = [self._due(worker, x) for worker, x in enumerate(self._since) if x is not None]
        now, self._until = self._clock(), math.inf
        if not dues:
            return None
        self._until = now + min(max(0.0, min(dues) - now), SLICE_S)
        return self._until - now

    def overdue(self) -> list[tuple[int, float, Literal["name", "replace"]]]:
        """Workers to name now, once each, and those to replace; each with its seconds of delay."""
        silent: list[tuple[int, float, Literal["name", "replace"]]] = []
        now = self._clock()
        stopped_s = max(0.0, now - self._until)
        self._until = math.inf
        self._named = {worker: at + stopped_s for worker, at in self._named.items()}
        for worker, since in enumerate(self._since):
            if since is None:
                continue
            self._since[worker] = since = min(since + stopped_s, now)
            if now < self._due(worker, since):
                continue
            remedy: Literal["name", "replace"] = "replace" if worker in self._named else "name"
            self._named.setdefault(worker, now)
            silent.append((worker, now - since, remedy))
        return silent


class Restarts:
    """Limits restarts: in total, and to two per worker and round, since a fault may recur."""

    def __init__(self, most: int, key: str = "sampler.restarts") -> None:
        """Allows `most` restarts in the run; the setting `key` holds this limit."""
        self._most, self._key = most, key
        self._by_round: Counter[tuple[int, int]] = Counter()

    def reason_against(self, worker: int, round_: int) -> str:
        """Why the worker may not be replaced in that round; empty if it may."""
        if self._by_round.total() >= self._most:
            return f"{self._key}={self._most} allows no further replacement"
        if self._by_round[worker, round_] >= AT_MOST_A_ROUND:
            return f"its round {round_} failed {AT_MOST_A_ROUND + 1} times: the fault comes back"
        return ""

    def refusal(self, worker: int, round_: int) -> str:
        """Returns `reason_against`; counts a restart if it is empty."""
        reason = self.reason_against(worker, round_)
        if not reason:
            self._by_round[worker, round_] += 1
        return reason
