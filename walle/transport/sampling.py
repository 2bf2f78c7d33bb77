"""The one interface to samplers, wherever they run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from walle.transport.rounds import Round
from walle.types import PolicySnapshot


class Others(Protocol):
    """Processes besides the samplers that the run cannot do without."""

    @property
    def sentinels(self) -> list[int]:
        """One each, ready when the process has ended."""
        ...

    def report(self) -> None:
        """Raises WorkerError for the first of them that has ended."""
        ...


class Sampling(Protocol):
    """Takes policies, gives rounds."""

    def wait_ready(self) -> None:
        """Waits until every sampler could begin.

        Raises:
            WorkerError: a sampler ended.
            Interrupted: a signal arrived while waiting.
        """
        ...

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Makes the policy available to every sampler."""
        ...

    def receive(self) -> Round:
        """Waits for the next round.

        Raises:
            WorkerError: a sampler ended.
            Interrupted: a signal arrived while waiting.
        """
        ...

    def busy(self) -> AbstractContextManager[None]:
        """A context in which the agent works: the death of a worker raises there too."""
        ...

    def close(self) -> None:
        """Ends every sampler and frees the queues."""
        ...
