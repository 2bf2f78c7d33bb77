"""The experience queue: slots of rollouts in shared memory, and pipes that announce filled slots.

The kernel frees anonymous shared memory when the last process that maps it ends. Nothing is
pickled: samplers write rollouts in place, and pipes carry only small numbers.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from walle.sampling.messages import (
    ANEW,
    CLOSED,
    FAILED,
    NUMBER,
    READY,
    Closed,
    Failed,
    receive_number,
    send_number,
)
from walle.sampling.slots import Ring, RolloutShape, Slot
from walle.types import Rollout


class SlotWriter:
    """A sampler's end of the experience queue."""

    def __init__(
        self, ring: Ring, free: Sequence[int], to_agent: Connection, from_agent: Connection
    ) -> None:
        """Use `ExperienceQueue.connect` instead; works in the process to which it is sent."""
        self._ring, self._to_agent, self._from_agent = ring, to_agent, from_agent
        self._free = deque(free)
        self._slots: list[Slot] | None = None

    def ready(self, *, anew: bool = False) -> None:
        """Tells the agent that this sampler can begin; `anew`: that its lanes could not go on."""
        self._send_number(ANEW if anew else READY)

    def claim(self) -> int:
        """Waits for a free slot; returns the slot's number.

        Raises:
            Closed: the agent ended.
        """
        while not self._free:
            self._free.append(receive_number(self._from_agent))
        return self._free.popleft()

    def slot(self, number: int) -> Slot:
        """The slot's arrays, views of shared memory."""
        if self._slots is None:
            self._slots = self._ring.views()
        return self._slots[number]

    def send(self, number: int) -> None:
        """Hands the slot over to the agent."""
        self._send_number(number)

    def fail(self, report: str) -> None:
        """Sends a traceback to the agent."""
        with contextlib.suppress(BrokenPipeError):  # the agent has ended
            self._to_agent.send_bytes(NUMBER.pack(FAILED) + report.encode())

    def _send_number(self, number: int) -> None:
        try:
            self._to_agent.send_bytes(NUMBER.pack(number))
        except BrokenPipeError:
            raise Closed from None


class Received(NamedTuple):
    """A filled slot as the agent received it, or a private copy of it."""

    sampler: int
    number: int
    slot: Slot

    def copied(self) -> Received:
        """A copy in private memory, so that the slot can be released."""
        arrays: list[Any] = [array.copy() for array in self.slot.filled]
        rollout = Rollout(*arrays)
        others = {name: getattr(self.slot, name).copy() for name in Slot._fields[1:]}
        return self._replace(slot=Slot(rollout, **others))


class ExperienceQueue:
    """A bounded queue: a sampler owns a few slots and waits while the agent holds them all.

    Attributes:
        rings: the slots of every sampler.
    """

    def __init__(self, shapes: Sequence[RolloutShape], slots: int) -> None:
        """Makes `slots` slots for each sampler, whose rollouts have the shape in `shapes`."""
        self.rings = [Ring(shape, slots) for shape in shapes]
        self._slots = [ring.views() for ring in self.rings]
        self._from_samplers: dict[int, Connection] = {}
        self._to_samplers: dict[int, Connection] = {}
        self._sampler_ends: list[Connection] = []
        self._pending: list[deque[int]] = [deque() for _ in shapes]
        self._arrivals: deque[int] = deque()
        self._ready: set[int] = set()
        self._heard: set[int] = set()
        self._anew: set[int] = set()
        self._failed: Failed | None = None

    def connect(self, sampler: int) -> SlotWriter:
        """A new end of the queue for that sampler's process; an earlier end is cut off.

        Rollouts that the earlier process has sent stay in the queue. `wait` must have read its
        messages, and the agent must hold none of its slots.
        """
        up, down = Pipe(duplex=False), Pipe(duplex=False)
        for old in (self._from_samplers, self._to_samplers):
            if sampler in old:
                old[sampler].close()
        self._from_samplers[sampler], self._to_samplers[sampler] = up[0], down[1]
        self._sampler_ends += [up[1], down[0]]
        self._ready.discard(sampler)
        free = sorted(set(range(self.rings[sampler].slots)) - set(self._pending[sampler]))
        return SlotWriter(self.rings[sampler], free, up[1], down[0])

    def forget_sampler_ends(self) -> None:
        """Closes the samplers' ends of the pipes in this process, after the samplers have started.

        Without this a pipe would not read as closed when its sampler dies.
        """
        for end in self._sampler_ends:
            end.close()
        self._sampler_ends.clear()

    def pending(self, sampler: int) -> list[Slot]:
        """The sampler's rollouts that wait in the queue, oldest first."""
        return [self._slots[sampler][number] for number in self._pending[sampler]]

    def wait(self, others: Sequence[Any] = (), timeout_s: float | None = None) -> list[Any]:
        """Waits until a message or an object of `others` is ready, and reads the messages.

        Returns:
            the objects of `others` that are ready.

        Raises:
            Failed: a sampler reported an exception, now or earlier.
        """
        if self._failed is not None:
            raise self._failed
        open_ends = {c: i for i, c in self._from_samplers.items() if not c.closed}
        ready = wait([*open_ends, *others], timeout_s)
        known = len(self._arrivals)
        for connection, sampler in open_ends.items():
            if connection in ready:
                self._take_message(sampler, connection)
        fresh = [self._arrivals.pop() for _ in range(len(self._arrivals) - known)]
        # New rollouts are ordered by the time at which they were sent. Ordered by the samplers'
        # numbers, a quick first sampler would always come before the last one.
        self._arrivals.extend(sorted(fresh, key=self._last_sent_ns))
        return [other for other in others if other in ready]

    def _last_sent_ns(self, sampler: int) -> int:
        return int(self._slots[sampler][self._pending[sampler][-1]].sent_ns[0])

    def _take_message(self, sampler: int, connection: Connection) -> None:
        try:
            message = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            connection.close()  # the process's sentinel reports the death
            return
        number = NUMBER.unpack_from(message)[0]
        if number == FAILED:
            self._failed = Failed(sampler, message[NUMBER.size :].decode())
            raise self._failed
        self._heard.add(sampler)
        if number in (READY, ANEW):
            self._ready.add(sampler)
            self._anew |= {sampler} if number == ANEW else set()
        else:
            self._pending[sampler].append(number)
            self._arrivals.append(sampler)

    def take_heard(self) -> set[int]:
        """The samplers that have sent something since the last call."""
        heard, self._heard = self._heard, set()
        return heard

    def take_anew(self) -> set[int]:
        """The samplers whose lanes could not go on, since the last call."""
        anew, self._anew = self._anew, set()
        return anew

    def is_ready(self, sampler: int) -> bool:
        """Whether the sampler has sent that it can begin."""
        return sampler in self._ready

    def all_ready(self) -> bool:
        """Whether every sampler has sent that it can begin."""
        return len(self._ready) == len(self.rings)

    def take_round(self) -> list[Received] | None:
        """The oldest rollout of every sampler, in the samplers' order; None if one is missing."""
        if not all(self._pending):
            return None
        return [self._take(sampler) for sampler in range(len(self._pending))]

    def take_first(self) -> Received | None:
        """The rollout that arrived first; None if no rollout has arrived."""
        return self._take(self._arrivals[0]) if self._arrivals else None

    def _take(self, sampler: int) -> Received:
        self._arrivals.remove(sampler)
        number = self._pending[sampler].popleft()
        return Received(sampler, number, self._slots[sampler][number])

    def release(self, received: Received) -> None:
        """Gives the slot back to its sampler, which may overwrite it from now on."""
        send_number(self._to_samplers[received.sampler], received.number)

    def close(self) -> None:
        """Asks every sampler to end."""
        for connection in self._to_samplers.values():
            send_number(connection, CLOSED)
