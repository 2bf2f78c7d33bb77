"""The numbers that pipes carry, and what a closed pipe means.

A pipe whose other end died reads as closed, so no wait outlives its partner. A pipe also orders
memory: data that a message announces is there when the message arrives.
"""

from __future__ import annotations

import contextlib
import struct
from multiprocessing.connection import Connection

NUMBER = struct.Struct("<q")
READY, FAILED, CLOSED = -1, -2, -3


class Closed(Exception):  # noqa: N818 - an event, not an error
    """The other side ended, or asked this one to."""


class Failed(Exception):  # noqa: N818
    """A sampler reported an exception; holds its number and its traceback."""

    def __init__(self, sampler: int, report: str) -> None:
        super().__init__(sampler, report)
        self.sampler = sampler
        self.report = report


def receive_number(connection: Connection) -> int:
    """Waits for the next number.

    Raises:
        Closed: the other side ended, or asked this one to.
    """
    try:
        number: int = NUMBER.unpack(connection.recv_bytes())[0]
    except (EOFError, ConnectionResetError):
        raise Closed from None
    if number == CLOSED:
        raise Closed
    return number


def send_number(connection: Connection, number: int) -> None:
    """Sends a number to a sampler; a dead one is reported by its process's sentinel instead."""
    with contextlib.suppress(BrokenPipeError):
        connection.send_bytes(NUMBER.pack(number))
