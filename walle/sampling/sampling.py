"""The interface of the agent to the samplers, in whichever process they run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from walle.sampling.lane_book import LaneBook
from walle.sampling.replacing import News
from walle.sampling.rounds import Round
from walle.types import PolicySnapshot


class Patience(NamedTuple):
    """What happens when samplers die, are silent, or differ in speed.

    Attributes:
        balance: whether samplers that are done step lanes of those that are not.
        restarts: the most replacements in a run.
        timeout_s: seconds without a rollout after which a sampler is named, and after twice as
            many replaced; None for ten times the longest round so far, at least a minute.
    """

    balance: bool
    restarts: int
    timeout_s: float | None


class OtherProcesses(Protocol):
    """Further processes, such as learners, without which the run cannot continue."""

    @property
    def sentinels(self) -> list[int]:
        """A handle for each process; it becomes ready when the process ends."""
        ...

    def report(self) -> None:
        """Raises WorkerError for the first process that has ended."""
        ...


class Sampling(Protocol):
    """The samplers as the agent uses them: it publishes policies and receives rounds.

    Attributes:
        lanes: the state of all lanes after the last round that was received.
        news: what happened to samplers.
        owners: the sampler of each lane in the last round that was received; changes in place.
    """

    owners: list[int]
    lanes: LaneBook
    news: News

    def wait_ready(self) -> None:
        """Waits until every sampler has built its lanes.

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
        """A context for the agent's work in which the death of a worker raises WorkerError."""
        ...

    def close(self) -> None:
        """Ends every sampler and frees the queues."""
        ...
