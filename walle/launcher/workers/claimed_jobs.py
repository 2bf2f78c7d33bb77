"""The source of a worker's jobs: those that it claims, in the order of the sweep."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from walle.launcher.allocation import Allocator, Grant, Need
from walle.launcher.resources import Resources
from walle.launcher.workers.claims import RELEASED, Claim, Claims, Observer

SIGNAL_S = 0.5  # Slurm signals a worker and its jobs at about the same time


class ClaimLostError(RuntimeError):
    """Others took this worker for dead, and run its jobs."""


class ClaimedJobs(Allocator):
    """Hands out the jobs that this worker claims, and tells the other workers how they ended."""

    def __init__(
        self,
        needs: Sequence[Need],
        order: Sequence[int],
        resources: Resources,
        *,
        exclusive: bool = False,
        nums: Sequence[int],
        claims: Claims,
        stale_s: float,
        is_locked: Callable[[int], bool],
        ending: Sequence[int] = (),
        max_failures: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Has looked at no claim yet.

        Args:
            needs: of every job, by index.
            order: the indices of the jobs of the submission, first to last.
            resources: cores and GPUs of this worker.
            exclusive: run one job at a time.
            nums: the number of every job, by index.
            claims: of the submission.
            stale_s: seconds without a heartbeat after which a worker has vanished. The directory is
                listed again after a quarter of them.
            is_locked: whether the run of a job, given by index, still holds its directory.
            ending: signals that ask this worker to end; grows.
            max_failures: failed jobs of all workers after which no further job starts.
            clock: seconds of this process.
        """
        super().__init__(needs, order, resources, exclusive=exclusive)
        self._nums, self._claims, self._is_locked = nums, claims, is_locked
        self._order = tuple(order)
        self._observer = Observer(claims, stale_s, clock)
        self._list_s, self._clock, self._list_at = stale_s / 4, clock, float("-inf")
        self._newest: dict[int, Claim] = {}
        self._taken: dict[int, str] = {}  # by index: how the holder of a job looks
        self._turns: dict[int, int] = {}  # of the claims that this worker holds, by index
        self._ending, self._max_failures = ending, max_failures

    def next(self) -> Grant | None:
        """Claims the next job that nobody has; None if there is none, or it cannot start now.

        Raises:
            ClaimLostError: this worker was frozen for so long that others have claimed its jobs.
        """
        if self._clock() - self._list_at >= self._list_s:
            self._list()
        while (index := next((i for i in self._waiting if i not in self._taken), None)) is not None:
            grant = self._grant(index)
            if grant is None:
                return None
            claim = self._newest.get(self._nums[index])
            turn = self._turns.get(index, 0 if claim is None else claim.turn + 1)
            if index in self._turns or self._claims.take(self._nums[index], turn):
                self._turns[index] = turn
                return self._given(grant._replace(again=turn > 0))
            self._list()
        return None

    def settle(self, job: int, state: str) -> None:
        """Tells the others how a job ended; gives back a job that was interrupted with the worker.

        Where only the job was interrupted, it is over: somebody has ended it.
        """
        if state == "interrupted" and not self._ending:
            time.sleep(SIGNAL_S)
        given_back = state == "interrupted" and self._ending
        self._claims.end(self._nums[job], self._turns.pop(job), RELEASED if given_back else state)

    def is_over(self) -> bool:
        """Whether every job of the submission has ended."""
        self._list()
        newest = (self._newest.get(self._nums[index]) for index in self._order)
        return all(claim is not None and claim.is_over for claim in newest)

    def may_get_more(self) -> bool:
        """Whether a job of another worker may come free soon, because that worker is silent."""
        return "unknown" in self._taken.values()

    def _list(self) -> None:
        """Looks at all claims; forgets jobs that are over; stops after too many failures."""
        self._newest, self._list_at = self._claims.newest(), self._clock()
        for index, turn in self._turns.items():
            claim = self._newest.get(self._nums[index])
            if claim is not None and claim.turn > turn:
                raise ClaimLostError(f"#{self._nums[index]} was claimed by another worker")
        over = {num for num, claim in self._newest.items() if claim.is_over}
        for index in [i for i in self._waiting if self._nums[i] in over]:
            self._waiting.remove(index)
        self._taken = {i: look for i in self._waiting if (look := self._look(i))}
        failed = sum(claim.state == "failed" for claim in self._newest.values())
        if self._max_failures is not None and failed >= self._max_failures:
            self.stop()

    def _look(self, index: int) -> str | None:
        """How the other worker looks that has the job; None for a job to claim."""
        claim = self._newest.get(self._nums[index])
        if index in self._turns or claim is None or claim.state == RELEASED:
            return None
        look = self._observer.look(claim)
        if look != "vanished":
            return look
        return "alive" if self._is_locked(index) else None
