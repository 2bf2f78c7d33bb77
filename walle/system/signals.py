"""Signals: their handlers, orderly ends, and requests for a checkpoint."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any

from walle.errors import Interrupted

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVING = (signal.SIGUSR1, signal.SIGUSR2)  # what Slurm sends some time before a time limit
FOR_AGENT = (*ENDING, *SAVING)  # a terminal or a scheduler sends them to the whole group
# Signals of our own: nobody else sends them.
DEATH = signal.SIGRTMIN + 9  # wakes the main thread for `DeathWatch`
SILENT = signal.SIGRTMIN + 10  # interrupts the main thread for `Watchdog`
AGENT_ENDED = signal.SIGRTMIN + 11  # from the kernel to the fork server


@contextmanager
def signal_handlers(
    # a function for each signal; a list's `append` collects the signals
    handlers: Mapping[signal.Signals, Callable[[int], object]],
    # the signals that stay ignored if they were ignored before, as `nohup` does with SIGHUP
    keep_ignored: Collection[int] = (signal.SIGHUP,),
) -> Iterator[None]:
    """During the body, calls a function with each signal's number; only in the main thread."""

    def handle(number: int, _: Any) -> None:
        handlers[signal.Signals(number)](number)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in handlers:
            if number not in keep_ignored or signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class Signals:
    """The signals that a user, a terminal or a scheduler sends to the agent.

    The first SIGINT, SIGTERM or SIGHUP asks for an orderly end. A further SIGINT ends the run at
    once: it raises `KeyboardInterrupt` with the signal's number. A further SIGTERM or SIGHUP does
    not: Slurm sends SIGTERM to both a job step and its job, and closing a terminal sends SIGHUP
    twice; either would interrupt the checkpoint. SIGUSR1 and SIGUSR2 ask for a checkpoint.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._breaks_off = self._save_requested = False
        # `waitable`, for `multiprocessing.connection.wait`, is ready when the end was asked for.
        self.waitable, self._writer = multiprocessing.Pipe(duplex=False)

    def arrived(self) -> bool:
        """Whether a signal has asked the run to end."""
        return self.received is not None

    def take_save_request(self) -> bool:
        """Whether a signal has asked for a checkpoint since the last call."""
        requested, self._save_requested = self._save_requested, False
        return requested

    @contextmanager
    def installed(self) -> Iterator[Signals]:
        """Handles the signals in the body; does nothing outside the main thread."""

        def save(_: int) -> None:
            self._save_requested = True

        with signal_handlers(dict.fromkeys(ENDING, self._end) | dict.fromkeys(SAVING, save)):
            yield self

    @contextmanager
    def breaking_off(self) -> Iterator[None]:
        """Makes the first signal raise `Interrupted` during the body or at its end."""
        self._breaks_off = True
        try:
            if self.arrived():
                raise Interrupted
            yield
            if self.arrived():  # the body may have mistaken the end of its own program for a fault
                raise Interrupted
        finally:
            self._breaks_off = False

    def _end(self, number: int) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        if self.arrived():
            if number == signal.SIGINT:
                raise KeyboardInterrupt(number)
            return
        self.received = number
        with suppress(OSError):  # `print` may be at work below this handler
            os.write(1, b"\nstopping, with a checkpoint; a second Ctrl-C ends the run at once\n")
        self._writer.send_bytes(b"\0")
        if self._breaks_off:
            raise Interrupted


def stopped_by(stop: KeyboardInterrupt) -> int:
    """The number of the signal that raised `stop`."""
    return stop.args[0] if stop.args else signal.SIGINT


@contextmanager
def standard_output() -> Iterator[None]:
    """Ends a command without a traceback when its output fails; without an output it is silent.

    The reader of the output, such as `head`, may leave, or the disk may be full. What the output's
    encoding lacks is printed as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed, so its number is the lowest free one
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))
    out = sys.stdout
    if isinstance(out, TextIOWrapper) and (out.errors == "strict" or out.encoding != "utf-8"):
        out.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if not (left := isinstance(error, BrokenPipeError)) and not output_failed(error):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if left:
            sys.exit(128 + signal.SIGPIPE)
        fix = "redirect it to a place that can be written"
        print(f"walle: cannot write to standard output: {error}; {fix}", file=sys.stderr)
        sys.exit(1)


def output_failed(error: OSError) -> bool:
    """Whether standard output caused the error: it takes not even an empty line."""
    try:
        if error.filename is None:
            print(flush=True)
    except OSError:
        return True
    return False


def leave_terminal() -> None:
    """Discards all further output that does not go to a file.

    After a SIGHUP, writing to the closed terminal, or to a program that ended with it, is an error.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        with suppress(OSError):  # closed already
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                continue
        os.dup2(null, descriptor)
    os.close(null)


@contextmanager
def terminal_may_vanish() -> Iterator[None]:
    """In the body, output to a terminal that is gone is discarded: a logout may send no SIGHUP."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        leave_terminal()


@contextmanager
def blocked_signals(*numbers: int) -> Iterator[None]:
    """Blocks signals in this process during the body, and in the processes that the body starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
