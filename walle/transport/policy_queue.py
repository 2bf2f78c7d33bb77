"""The policy queue: the newest policies in shared memory, and a pipe that wakes each sampler."""

from __future__ import annotations

import contextlib
import os
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import numpy.typing as npt

from walle.transport.messages import CLOSED, Closed
from walle.transport.slots import Arena
from walle.types import PolicySnapshot


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
        newest_version, versions, asked, vectors = self._arrays
        while newest_version[0] < min_version:
            if newest_version[0] == CLOSED or not os.read(self._bell.fileno(), 4096):
                raise Closed
        while True:
            version = int(newest_version[0]) if newest else min_version
            if version == CLOSED:
                raise Closed
            place = version % self._depth
            vector, (steps, episodes) = vectors[place].copy(), asked[place].tolist()
            if versions[place] == version:  # else overwritten meanwhile
                return PolicySnapshot(version, vector, steps or None, episodes or None)


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
        self._newest, self._versions, self._asked, self._vectors = self._arena.arrays()
        self._newest[0] = self._versions[:] = -1
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
        self._asked[place] = snapshot.rollout_steps or 0, snapshot.episodes or 0
        self._versions[place] = snapshot.version
        self._newest[0] = snapshot.version
        self._ring()

    def close(self) -> None:
        """Asks every sampler to end."""
        self._newest[0] = CLOSED
        self._ring()

    def _ring(self) -> None:
        for _, writer in self._bells:
            # A full pipe holds wake-ups enough; a broken one is reported by its process's sentinel.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(writer.fileno(), b"\0")
