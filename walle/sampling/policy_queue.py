"""The policy queue: the newest policies in shared memory, and a pipe to wake each sampler."""

from __future__ import annotations

import contextlib
import os
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy.typing as npt

from walle.sampling.arena import Arena
from walle.sampling.messages import CLOSED, Closed
from walle.types import PolicySnapshot


class PolicyReader:
    """A sampler's end of the policy queue."""

    def __init__(self, arena: Arena, bell: Connection, depth: int) -> None:
        """Use `PolicyQueue.reader` instead; works in the process to which it is sent."""
        self._arena, self._bell, self._depth = arena, bell, depth
        self._arrays: list[npt.NDArray[Any]] | None = None

    def get(self, min_version: int, *, newest: bool) -> PolicySnapshot:
        """Waits until version `min_version` is published; returns a policy.

        Args:
            min_version: the version to wait for.
            newest: whether to return the newest version; else the result is `min_version` itself,
                so that it does not depend on timing.

        Raises:
            Closed: the agent ended.
        """
        newest_version, versions, asked, vectors = self._views()
        while newest_version[0] < min_version:
            if newest_version[0] == CLOSED or not os.read(self._bell.fileno(), 4096):
                raise Closed
        while True:
            version = int(newest_version[0]) if newest else min_version
            if version == CLOSED:
                raise Closed
            place = version % self._depth
            vector, (steps, episodes) = vectors[place].copy(), asked[place].tolist()
            if versions[place] == version:  # else the agent has overwritten the vector
                return PolicySnapshot(version, vector, steps or None, episodes or None)

    def there(self, version: int) -> bool:
        """Whether that version is published, or the agent ended."""
        newest = int(self._views()[0][0])
        return newest >= version or newest == CLOSED

    def _views(self) -> list[npt.NDArray[Any]]:
        if self._arrays is None:
            self._arrays = self._arena.arrays()
        return self._arrays


class PolicyQueue:
    """Holds the newest policies, one flat vector each, and wakes the samplers that wait.

    With a finite lag below `depth`, no version is overwritten while a sampler may read it: version
    v + depth is published only after every sampler has delivered its round of version v. A
    free-running sampler compares the version stored with the vector, and reads again if it changed.
    """

    def __init__(self, length: int, depth: int) -> None:
        """Keeps `depth` versions, each a vector of `length` numbers."""
        per_version = [((depth,), "int64"), ((depth, 2), "int64"), ((depth, length), "float32")]
        self._arena = Arena([((1,), "int64"), *per_version])
        self._newest, self._versions, self._asked, self._vectors = self._arena.arrays()
        self._newest[0] = self._versions[:] = -1
        self._depth = depth
        self._bells: dict[int, Connection] = {}
        self._sampler_ends: list[Connection] = []

    def connect(self, sampler: int) -> PolicyReader:
        """A new end of the queue for that sampler's process; an earlier end is cut off."""
        reader, writer = Pipe(duplex=False)
        os.set_blocking(writer.fileno(), False)
        if sampler in self._bells:
            self._bells[sampler].close()
        self._bells[sampler] = writer
        self._sampler_ends.append(reader)
        return PolicyReader(self._arena, reader, self._depth)

    def forget_sampler_ends(self) -> None:
        """See `ExperienceQueue.forget_sampler_ends`."""
        for reader in self._sampler_ends:
            reader.close()
        self._sampler_ends.clear()

    @property
    def newest(self) -> int:
        """The newest version; -1 before the first."""
        return int(self._newest[0])

    def put(self, snapshot: PolicySnapshot) -> None:
        """Publishes a policy; never waits."""
        place = snapshot.version % self._depth
        self._versions[place] = -1
        self._vectors[place] = snapshot.vector
        self._asked[place] = snapshot.rollout_steps or 0, snapshot.episodes or 0
        self._versions[place] = snapshot.version
        self._newest[0] = snapshot.version
        self._wake_samplers()

    def close(self) -> None:
        """Asks every sampler to end."""
        self._newest[0] = CLOSED
        self._wake_samplers()

    def _wake_samplers(self) -> None:
        for writer in self._bells.values():
            # A full pipe wakes its sampler anyway; a dead sampler is reported by its sentinel.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(writer.fileno(), b"\0")
