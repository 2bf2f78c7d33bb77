"""The experience queue and the policy queue: shared memory, and pipes that say what is ready.

Data lies in anonymous shared memory, which the kernel frees with the last process that maps it.
Pipes carry small numbers only, so nothing is pickled. A pipe whose other end died reads as closed,
so no wait outlives its partner; and a pipe orders memory, so what its message announces is there.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from walle.transport.slots import Arena, Ring, RolloutShape, Slot
from walle.types import PolicySnapshot, Rollout

_NUMBER = struct.Struct("<q")
_READY, _FAILED, _CLOSED = -1, -2, -3


class Closed(Exception):  # noqa: N818 - an event, not an error
    """The other side ended, or asked this one to."""


class Failed(Exception):  # noqa: N818
    """A sampler reported an exception; holds its number and its traceback."""

    def __init__(self, sampler: int, report: str) -> None:
        super().__init__(sampler, report)
        self.sampler = sampler
        self.report = report


class SlotWriter:
    """A sampler's end of the experience queue."""

    def __init__(self, ring: Ring, to_agent: Connection, from_agent: Connection) -> None:
        """Made by `ExperienceQueue.writer`; becomes usable in the process it is sent to."""
        self._ring, self._to_agent, self._from_agent = ring, to_agent, from_agent
        self._free = deque(range(ring.slots))
        self._slots: list[Slot] | None = None

    def ready(self) -> None:
        """Tells the agent that this sampler can begin."""
        self._tell(_READY)

    def claim(self) -> int:
        """Waits for a free slot; returns its number.

        Raises:
            Closed: the agent ended.
        """
        while not self._free:
            self._free.append(_receive_number(self._from_agent))
        return self._free.popleft()

    def slot(self, number: int) -> Slot:
        """The slot's views."""
        if self._slots is None:
            self._slots = self._ring.views()
        return self._slots[number]

    def send(self, number: int) -> None:
        """Hands the slot over to the agent."""
        self.slot(number).sent_ns[0] = time.monotonic_ns()
        self._tell(number)

    def fail(self, report: str) -> None:
        """Hands over a traceback instead."""
        with contextlib.suppress(BrokenPipeError):  # the agent is gone: nobody is left to tell
            self._to_agent.send_bytes(_NUMBER.pack(_FAILED) + report.encode())

    def _tell(self, number: int) -> None:
        try:
            self._to_agent.send_bytes(_NUMBER.pack(number))
        except BrokenPipeError:
            raise Closed from None


def _receive_number(connection: Connection) -> int:
    try:
        number: int = _NUMBER.unpack(connection.recv_bytes())[0]
    except (EOFError, ConnectionResetError):
        raise Closed from None
    if number == _CLOSED:
        raise Closed
    return number


class Received(NamedTuple):
    """A slot that holds a rollout the agent has not released yet."""

    sampler: int
    number: int
    slot: Slot

    def copied(self) -> Received:
        """The same in memory of its own, so that the slot can be released."""
        arrays: list[Any] = [array.copy() for array in self.slot.filled]
        rows = np.array([len(arrays[1])])
        slot = self.slot
        clocks = slot.began_ns.copy(), slot.sent_ns.copy(), slot.sections_s.copy()
        return self._replace(slot=Slot(Rollout(*arrays), *clocks, rows, slot.spans.copy()))


class ExperienceQueue:
    """Bounded: every sampler owns a few slots and waits when the agent holds them all."""

    def __init__(self, context: BaseContext, shapes: Sequence[RolloutShape], slots: int) -> None:
        """`shapes` one a sampler; `slots` each sampler may fill before the agent empties one."""
        self._rings = [Ring(context, shape, slots) for shape in shapes]
        self._slots = [ring.views() for ring in self._rings]
        up = [context.Pipe(duplex=False) for _ in shapes]
        down = [context.Pipe(duplex=False) for _ in shapes]
        self._from_samplers = [reader for reader, _ in up]
        self._to_samplers = [writer for _, writer in down]
        self._writers = [
            SlotWriter(ring, to_agent, from_agent)
            for ring, (_, to_agent), (from_agent, _) in zip(self._rings, up, down, strict=True)
        ]
        self._sampler_ends = [writer for _, writer in up] + [reader for reader, _ in down]
        self._pending: list[deque[int]] = [deque() for _ in shapes]
        self._arrivals: deque[int] = deque()
        self._ready: set[int] = set()
        self._failed: Failed | None = None

    def writer(self, sampler: int) -> SlotWriter:
        """The end to send to that sampler's process."""
        return self._writers[sampler]

    def forget_sampler_ends(self) -> None:
        """Closes this process's copies of the samplers' ends, once all samplers have theirs.

        Only then does a pipe read as closed when its sampler dies.
        """
        for end in self._sampler_ends:
            end.close()

    def wait(self, others: Sequence[Any] = (), timeout_s: float | None = None) -> list[Any]:
        """Sleeps until a message or one of `others` is ready, and takes in the messages.

        Returns:
            those of `others` that are ready.

        Raises:
            Failed: a sampler reported an exception, now or earlier.
        """
        if self._failed is not None:
            raise self._failed
        open_ends = {c: i for i, c in enumerate(self._from_samplers) if not c.closed}
        ready = wait([*open_ends, *others], timeout_s)
        known = len(self._arrivals)
        for connection, sampler in open_ends.items():
            if connection in ready:
                self._take_message(sampler, connection)
        fresh = [self._arrivals.pop() for _ in range(len(self._arrivals) - known)]
        # Those that came meanwhile in the order they were sent: by their numbers the last sampler
        # would be passed over each time that the first one is quick.
        self._arrivals.extend(sorted(fresh, key=self._last_sent_ns))
        return [other for other in others if other in ready]

    def _last_sent_ns(self, sampler: int) -> int:
        return int(self._slots[sampler][self._pending[sampler][-1]].sent_ns[0])

    def _take_message(self, sampler: int, connection: Connection) -> None:
        try:
            message = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            connection.close()  # its process sentinel tells how it ended
            return
        number = _NUMBER.unpack_from(message)[0]
        if number == _FAILED:
            self._failed = Failed(sampler, message[_NUMBER.size :].decode())
            raise self._failed
        if number == _READY:
            self._ready.add(sampler)
        else:
            self._pending[sampler].append(number)
            self._arrivals.append(sampler)

    def all_ready(self) -> bool:
        """Whether every sampler has said that it can begin."""
        return len(self._ready) == len(self._rings)

    def take_round(self) -> list[Received] | None:
        """The oldest rollout of every sampler, in the samplers' order; None until all are here."""
        if not all(self._pending):
            return None
        return [self._take(sampler) for sampler in range(len(self._pending))]

    def take_first(self) -> Received | None:
        """The rollout that arrived first; None if none is here."""
        return self._take(self._arrivals[0]) if self._arrivals else None

    def _take(self, sampler: int) -> Received:
        self._arrivals.remove(sampler)
        number = self._pending[sampler].popleft()
        return Received(sampler, number, self._slots[sampler][number])

    def release(self, received: Received) -> None:
        """Gives the slot back to its sampler; its views may change from now on."""
        _send_number(self._to_samplers[received.sampler], received.number)

    def close(self) -> None:
        """Asks every sampler to end."""
        for connection in self._to_samplers:
            _send_number(connection, _CLOSED)


def _send_number(connection: Connection, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # a dead sampler is reported by its sentinel
        connection.send_bytes(_NUMBER.pack(number))


class PolicyReader:
    """A sampler's end of the policy queue."""

    def __init__(self, arena: Arena, bell: Connection, depth: int) -> None:
        """Made by `PolicyQueue.reader`; becomes usable in the process it is sent to."""
        self._arena, self._bell, self._depth = arena, bell, depth
        self._arrays: list[npt.NDArray[Any]] | None = None

    def get(self, min_version: int, *, newest: bool) -> PolicySnapshot:
        """Waits until a policy at least that new exists.

        Args:
            min_version: the version to wait for.
            newest: return the newest there is; else exactly `min_version`, so that what a
                sampler does never depends on timing.

        Raises:
            Closed: the agent ended.
        """
        if self._arrays is None:
            self._arrays = self._arena.arrays()
        head, versions, asked, vectors = self._arrays
        while head[0] < min_version:
            if head[0] == _CLOSED or not os.read(self._bell.fileno(), 4096):
                raise Closed
        while True:
            version = int(head[0]) if newest else min_version
            if version == _CLOSED:
                raise Closed
            place = version % self._depth
            vector, (rows, episodes) = vectors[place].copy(), asked[place].tolist()
            if versions[place] == version:  # else overwritten meanwhile
                return PolicySnapshot(version, vector, rows or None, episodes or None)


class PolicyQueue:
    """Holds the newest policies, one flat vector each, and wakes the samplers that wait.

    With a finite lag of `depth` - 1 no version is overwritten that a sampler may still read:
    version v + depth is published only after every sampler delivered the round that it collected
    under v. A free-running sampler notices an overwriting by the version beside the vector, and
    reads again.
    """

    def __init__(self, context: BaseContext, samplers: int, length: int, depth: int) -> None:
        """`length` is that of the vectors; `depth` how many versions are kept."""
        per_version = [((depth,), "int64"), ((depth, 2), "int64"), ((depth, length), "float32")]
        self._arena = Arena(context, [((1,), "int64"), *per_version])
        self._head, self._versions, self._asked, self._vectors = self._arena.arrays()
        self._head[0] = self._versions[:] = -1
        self._depth = depth
        self._bells = [context.Pipe(duplex=False) for _ in range(samplers)]
        for _, writer in self._bells:
            os.set_blocking(writer.fileno(), False)

    def reader(self, sampler: int) -> PolicyReader:
        """The end to send to that sampler's process."""
        return PolicyReader(self._arena, self._bells[sampler][0], self._depth)

    def forget_sampler_ends(self) -> None:
        """Closes this process's copies of the samplers' ends, once all samplers have theirs."""
        for reader, _ in self._bells:
            reader.close()

    def put(self, snapshot: PolicySnapshot) -> None:
        """Publishes a policy; never waits."""
        place = snapshot.version % self._depth
        self._versions[place] = -1
        self._vectors[place] = snapshot.vector
        self._asked[place] = snapshot.rows or 0, snapshot.episodes or 0
        self._versions[place] = snapshot.version
        self._head[0] = snapshot.version
        self._ring()

    def close(self) -> None:
        """Asks every sampler to end."""
        self._head[0] = _CLOSED
        self._ring()

    def _ring(self) -> None:
        for _, writer in self._bells:
            # A full pipe holds wake-ups enough; a broken one is reported by its process's sentinel.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(writer.fileno(), b"\0")
