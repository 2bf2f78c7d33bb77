"""The numbers that pipes carry, and the meaning of a closed pipe.

A pipe reads as closed when the process at its other end dies, so no process waits for a dead one. A
pipe also orders memory: shared memory written before a message is visible when the message arrives.
"""

from __future__ import annotations

import contextlib
import struct
from multiprocessing.connection import Connection

NUMBER = struct.Struct("<q")
READY, FAILED, CLOSED, ANEW = -1, -2, -3, -4


class Closed(Exception):  # noqa: N818 - an event, not an error
    """The process at the other end ended, or asked this process to end."""


class Failed(Exception):  # noqa: N818
    """A sampler reported an exception; holds its number and its traceback."""

    def __init__(self, sampler: int, report: str) -> None:
        super().__init__(sampler, report)
        self.sampler = sampler
        self.report = report


def receive_number(connection: Connection) -> int:
    """Waits for the next number.

    Raises:
        Closed: the process at the other end ended, or asked this process to end.
    """
    try:
        number: int = NUMBER.unpack(connection.recv_bytes())[0]
    except (EOFError, ConnectionResetError):
        raise Closed from None
    if number == CLOSED:
        raise Closed
    return number


def send_number(connection: Connection, number: int) -> None:
    """Sends a number to a sampler; ignores a dead sampler, which its sentinel reports."""
    with contextlib.suppress(BrokenPipeError):
        connection.send_bytes(NUMBER.pack(number))
