"""The queues between agent and samplers: filled slots one way, policies the other way.

Nothing is pickled in a round: samplers write rollouts directly into shared memory, policies are
vectors there, and pipes carry only small numbers. A pipe reads as closed when the process at its
other end dies, so no process waits for a dead one. A pipe also orders memory: shared memory written
before a message is visible when the message arrives.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from walle.errors import WorkerError
from walle.sampling.lane_book import Blocks
from walle.sampling.slots import Arena, Ring, RolloutShape, Slot
from walle.system.shared_memory import SharedMemory
from walle.types import PolicySnapshot

NUMBER, DEALT = struct.Struct("<q"), struct.Struct("<qqq")
# Messages: 0 and above are slots' numbers. From a sampler: it can start (READY), it can start
# but with new episodes (ANEW), it failed (FAILED). From the agent: end (CLOSED); before a round,
# wait for other lanes, or take them (DEAL).
READY, FAILED, CLOSED, ANEW, DEAL = -1, -2, -3, -4, -5


class Closed(Exception):  # noqa: N818 - an event, not an error
    """The process at the other end ended, or asked this process to end."""


class SlotWriter:
    """A sampler's end of the experience queue; works in the process to which it is sent."""

    def __init__(
        self, ring: Ring, free: Sequence[int], deals: SharedMemory, pipes: Sequence[Connection]
    ) -> None:
        self._ring, self._deals = ring, deals
        self._to_agent, self._from_agent = pipes
        self._free = deque(free)
        self._slots: list[Slot] | None = None
        self._deal_round, self._deal_bytes = -1, 0

    def claim(self) -> int:
        """Waits for a free slot and returns its number; raises Closed if the agent ended."""
        while not self._free:
            self._read_message()
        return self._free.popleft()

    def dealt(self, round_: int) -> Blocks | None:
        """The sampler's new lanes if lanes are redistributed before this round, else None."""
        while self._from_agent.poll() or (self._deal_round == round_ and not self._deal_bytes):
            self._read_message()
        if self._deal_round != round_ or not self._deal_bytes:
            return None
        blocks: Blocks = pickle.loads(self._deals.bytes(self._deal_bytes).tobytes())
        self._slots = self._ring.views(sum(len(block.numbers) for block in blocks))
        self._deal_round, self._deal_bytes = -1, 0
        return blocks

    def _read_message(self) -> None:
        try:
            message = self._from_agent.recv_bytes()
        except (EOFError, ConnectionResetError):
            raise Closed from None
        number = NUMBER.unpack_from(message)[0]
        if number == CLOSED:
            raise Closed
        if number == DEAL:
            _, self._deal_round, self._deal_bytes = DEALT.unpack(message)
        else:
            self._free.append(number)

    def slot(self, number: int) -> Slot:
        """The slot's arrays, views of shared memory."""
        if self._slots is None:
            self._slots = self._ring.views()
        return self._slots[number]

    def send(self, number: int) -> None:
        """Hands a slot over to the agent, or reports READY or ANEW; Closed if the agent ended."""
        try:
            self._to_agent.send_bytes(NUMBER.pack(number))
        except BrokenPipeError:
            raise Closed from None

    def fail(self, report: str) -> None:
        """Sends a traceback to the agent."""
        with suppress(BrokenPipeError):  # the agent has ended
            self._to_agent.send_bytes(NUMBER.pack(FAILED) + report.encode())

    def close(self) -> None:
        """Closes this process's copy, once the sampler has its own.

        Otherwise the pipes would not read as closed when the sampler dies.
        """
        self._to_agent.close()
        self._from_agent.close()


class Received(NamedTuple):
    """A filled slot as the agent received it, or a private copy of it."""

    sampler: int
    number: int
    slot: Slot

    def copied(self) -> Received:
        """A copy in private memory, so that the slot can be released."""
        return deepcopy(self._replace(slot=self.slot._replace(rollout=self.slot.filled)))


class ExperienceQueue:
    """A bounded queue: a sampler owns a few slots and waits while the agent holds them all."""

    def __init__(self, shapes: Sequence[RolloutShape], slots: int) -> None:
        self._rings = [Ring(shape, slots) for shape in shapes]
        self._slots = [ring.views() for ring in self._rings]
        self._deals = [SharedMemory() for _ in shapes]
        self._pipes: dict[int, tuple[Connection, Connection]] = {}  # from and to each sampler
        self._pending: list[deque[int]] = [deque() for _ in shapes]
        self._arrivals: deque[int] = deque()
        self.ready: set[int] = set()  # the samplers that can start
        self.heard: set[int] = set()  # those that have sent something; the user clears it
        self.anew: set[int] = set()  # those whose lanes started new episodes; the user clears it
        self._failure: WorkerError | None = None

    def connect(self, sampler: int) -> SlotWriter:
        """A new end of the queue for that sampler's process; closes the pipes of an earlier end.

        Rollouts that the earlier process has sent stay in the queue. `wait` must have read its
        messages, and the agent must hold none of its slots.
        """
        (from_sampler, to_agent), (from_agent, to_sampler) = Pipe(duplex=False), Pipe(duplex=False)
        for pipe in self._pipes.get(sampler, ()):
            pipe.close()
        self._pipes[sampler] = from_sampler, to_sampler
        self.ready.discard(sampler)
        ring = self._rings[sampler]
        free = sorted(set(range(ring.slots)) - set(self._pending[sampler]))
        return SlotWriter(ring, free, self._deals[sampler], (to_agent, from_agent))

    def pending(self, sampler: int) -> list[Slot]:
        """The sampler's rollouts that wait in the queue, oldest first."""
        return [self._slots[sampler][number] for number in self._pending[sampler]]

    def wait(self, others: Sequence[Any] = (), timeout_s: float | None = None) -> list[Any]:
        """Waits until a message or an object of `others` is ready, and reads the messages.

        Returns the objects of `others` that are ready. Raises WorkerError if a sampler has reported
        an exception, now or earlier.
        """
        if self._failure is not None:
            raise self._failure
        open_ends = {pipe: i for i, (pipe, _) in self._pipes.items() if not pipe.closed}
        ready = wait([*open_ends, *others], timeout_s)
        known = len(self._arrivals)
        for connection, sampler in open_ends.items():
            while connection in ready and not connection.closed and connection.poll():
                self._take_message(sampler, connection)
        fresh = [self._arrivals.pop() for _ in range(len(self._arrivals) - known)]
        # New rollouts are ordered by the time at which they were sent. Ordered by the samplers'
        # numbers, a quick first sampler would always come before the last one.
        self._arrivals.extend(sorted(fresh, key=lambda i: int(self.pending(i)[-1].sent_ns[0])))
        return [other for other in others if other in ready]

    def _take_message(self, sampler: int, connection: Connection) -> None:
        try:
            message = connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            connection.close()  # the process's sentinel reports the death
            return
        number = NUMBER.unpack_from(message)[0]
        if number == FAILED:
            report = message[NUMBER.size :].decode()
            self._failure = WorkerError(f"sampler-{sampler} failed:\n{report}")
            raise self._failure
        self.heard.add(sampler)
        if number in (READY, ANEW):
            self.ready.add(sampler)
            self.anew |= {sampler} if number == ANEW else set()
        else:
            self._pending[sampler].append(number)
            self._arrivals.append(sampler)

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
        """Returns the slot to its sampler, which may overwrite it from now on."""
        self._send(received.sampler, NUMBER.pack(received.number))

    def announce_deal(self, sampler: int, round_: int) -> None:
        """Makes the sampler wait before that round until its lanes are dealt."""
        self._send(sampler, DEALT.pack(DEAL, round_, 0))

    def deal(self, sampler: int, round_: int, blocks: Blocks) -> None:
        """Moves the sampler to other lanes from that round on; its slots must all be free."""
        content = pickle.dumps(blocks)  # in shared memory: a pipe holds no more than 64 KiB
        self._deals[sampler].bytes(len(content))[:] = np.frombuffer(content, np.uint8)
        self._slots[sampler] = self._rings[sampler].views(sum(len(b.numbers) for b in blocks))
        self._send(sampler, DEALT.pack(DEAL, round_, len(content)))

    def close(self) -> None:
        """Asks every sampler to end."""
        for sampler in self._pipes:
            self._send(sampler, NUMBER.pack(CLOSED))

    def _send(self, sampler: int, message: bytes) -> None:
        with suppress(BrokenPipeError):  # the sentinel of a dead sampler reports its death
            self._pipes[sampler][1].send_bytes(message)


class PolicyReader:
    """A sampler's end of the policy queue; works in the process to which it is sent."""

    def __init__(self, arena: Arena, bell: Connection, depth: int) -> None:
        self._arena, self._bell, self._depth = arena, bell, depth
        self._arrays: list[npt.NDArray[Any]] | None = None

    def get(self, min_version: int, *, newest: bool) -> PolicySnapshot:
        """Waits until version `min_version` is published; returns it, or the newest version.

        Without `newest` the result does not depend on timing. Raises Closed if the agent ended.
        """
        if self._arrays is None:
            self._arrays = self._arena.arrays()
        newest_version, versions, sizes, vectors = self._arrays
        while newest_version[0] < min_version:
            if newest_version[0] == CLOSED or not os.read(self._bell.fileno(), 4096):
                raise Closed
        while True:
            version = int(newest_version[0]) if newest else min_version
            if version == CLOSED:
                raise Closed
            row = version % self._depth
            vector, (steps, episodes) = vectors[row].copy(), sizes[row].tolist()
            if versions[row] == version:  # else the agent has overwritten the vector
                return PolicySnapshot(version, vector, steps or None, episodes or None)

    def close(self) -> None:
        """Closes this process's copy, once the sampler has its own; see `SlotWriter.close`."""
        self._bell.close()


class PolicyQueue:
    """Holds the newest policies, one flat vector each, and wakes the samplers that wait.

    With a finite lag below `depth`, no version is overwritten while a sampler may read it: version
    v + depth is published only after every sampler has delivered its round of version v. A
    free-running sampler checks the version stored beside the vector; if it changed, it reads again.
    """

    def __init__(self, length: int, depth: int) -> None:
        """Keeps `depth` versions, each a vector of `length` numbers."""
        per_version = [((depth,), "int64"), ((depth, 2), "int64"), ((depth, length), "float32")]
        self._arena = Arena([((1,), "int64"), *per_version])
        self._newest, self._versions, self._sizes, self._vectors = self._arena.arrays()
        self._newest[0] = self._versions[:] = -1
        self.newest, self._depth = -1, depth  # the newest version; -1 before the first
        self._bells: dict[int, Connection] = {}

    def connect(self, sampler: int) -> PolicyReader:
        """A new end of the queue for that sampler's process; closes the pipe of an earlier end."""
        reader, writer = Pipe(duplex=False)
        os.set_blocking(writer.fileno(), False)
        if sampler in self._bells:
            self._bells[sampler].close()
        self._bells[sampler] = writer
        return PolicyReader(self._arena, reader, self._depth)

    def put(self, snapshot: PolicySnapshot) -> None:
        """Publishes a policy; never waits."""
        row = snapshot.version % self._depth
        self._versions[row] = -1
        self._vectors[row] = snapshot.vector
        self._sizes[row] = snapshot.rollout_steps or 0, snapshot.episodes or 0
        self._versions[row] = self.newest = snapshot.version
        self._wake_samplers(snapshot.version)

    def close(self) -> None:
        """Asks every sampler to end."""
        self._wake_samplers(CLOSED)

    def _wake_samplers(self, newest: int) -> None:
        self._newest[0] = newest
        for writer in self._bells.values():
            # A full pipe wakes its sampler anyway; a dead sampler is reported by its sentinel.
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(writer.fileno(), b"\0")
