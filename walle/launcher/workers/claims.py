"""Claims on jobs in a shared directory, the heartbeats of workers, and requests to stop jobs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from walle.launcher.allocation import Allocator, Grant, Need, Resources
from walle.system.files import write_atomically

if TYPE_CHECKING:  # not loaded: `walle.sweep` needs the claims and starts without Hydra
    from walle.launcher.planning import Job

RELEASED = "released"
SIGNAL_S = 0.5  # Slurm signals a worker and its jobs at about the same time


class ClaimLostError(RuntimeError):
    """Other workers assumed that this one was dead, and run its jobs."""


class Claim(NamedTuple):
    """The newest claim on a job, in a file named `JOB.TURN`."""

    job: int  # the job's number
    turn: int  # how many claims on it came before
    state: str | None  # how the job ended; `RELEASED` if it was given back; None while it is held

    @property
    def is_over(self) -> bool:
        """Whether the job has ended and will not run again."""
        return self.state not in (None, RELEASED)


class Claims:
    """One process's view of the claims of one submission."""

    def __init__(self, directory: Path, owner: str = "") -> None:
        # An observer has no name, and writes nothing.
        self._claims, self._alive = directory / "claims", directory / "alive"
        self._owner = owner
        for path in (self._claims, self._alive) if owner else ():
            path.mkdir(parents=True, exist_ok=True)

    def newest(self) -> dict[int, Claim]:
        """The newest claim of each job that has one, in one listing of the directory."""
        newest: dict[int, Claim] = {}
        for name in os.listdir(self._claims) if self._claims.exists() else ():
            job, turn, state = (*name.split("."), None)[:3]
            claim = Claim(int(str(job)), int(str(turn)), state)
            best = newest.get(claim.job)
            if best is None or (best.turn, best.state or "") < (claim.turn, state or ""):
                newest[claim.job] = claim
        return newest

    def all_over(self, jobs: Iterable[int]) -> bool:
        """Whether all of these jobs have ended."""
        newest = self.newest()
        return all(job in newest and newest[job].is_over for job in jobs)

    def take(self, job: int, turn: int) -> bool:
        """Claims the job for its given turn; False if another process was first or the job is over.

        The caller has seen that the claim of the turn before is released, or that its worker has
        vanished; if that earlier claim now shows how the job ended, the new claim records it too.
        """
        try:
            with (self._claims / f"{job}.{turn}").open("x") as file:
                file.write(self._owner)
        except FileExistsError:
            return False
        ends = [path.suffix[1:] for path in self._claims.glob(f"{job}.{turn - 1}.*")]
        over = [state for state in ends if state != RELEASED]
        if over:
            self.end(job, turn, over[0])
        return not over

    def end(self, job: int, turn: int, state: str) -> None:
        """Records how a claimed job ended; `RELEASED` gives it back."""
        (self._claims / f"{job}.{turn}.{state}").touch()

    def owner(self, claim: Claim) -> str:
        """The worker that holds or held the claim; empty for a moment after it was made."""
        return _text(self._claims / f"{claim.job}.{claim.turn}")

    def heartbeat(self, owner: str) -> str:
        """The worker's latest heartbeat; empty for a worker that has ended."""
        return _text(self._alive / owner) if owner else ""

    def silence_s(self) -> dict[str, float] | None:
        """Seconds since the last heartbeat of every worker that has not ended.

        Now and the last heartbeat are both read from the file system's clock, so that no machine's
        clock is compared with another one's. None if this process may not write into the directory.
        """
        probe = self._alive / f".look-{os.uname().nodename}-{os.getpid()}"
        try:
            probe.touch()
            now_s = probe.stat().st_mtime
            probe.unlink()
        except OSError:
            return {} if not self._alive.exists() else None
        silent_s: dict[str, float] = {}
        for worker in self._alive.glob("[!.]*"):
            with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
                silent_s[worker.name] = now_s - worker.stat().st_mtime
        return silent_s

    @contextmanager
    def beating(self, every_s: float) -> Iterator[None]:
        """Keeps this worker's heartbeat going during the body, in a separate thread."""
        file, over = self._alive / self._owner, threading.Event()
        file.write_text("0")

        def beat() -> None:
            count = 0
            while not over.wait(every_s):
                count += 1
                with contextlib.suppress(OSError):  # a full disk, a server that restarts
                    file.write_text(str(count))

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            file.unlink(missing_ok=True)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # no such file, or a server that restarts
        return ""


class Stops:
    """Requests to stop jobs early: written by the command that follows the jobs, read by workers.

    A worker uses them as the `StopRule` of its runner.
    """

    def __init__(
        self, directory: Path, every_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory, self._every_s, self._clock = directory / "stops", every_s, clock
        self._read_at = float("-inf")
        self._reasons: dict[int, str] = {}

    def ask(self, job: int, reason: str) -> None:
        """Asks the workers to stop the job of that number, or not to start it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self._directory / str(job), reason)

    def __call__(self, job: Job, *, starts: bool = True) -> str | None:  # noqa: ARG002  `StopRule`
        """Returns why the job should stop; None if nobody has asked for it."""
        if self._clock() - self._read_at >= self._every_s:
            self._read_at = self._clock()
            with contextlib.suppress(OSError):  # nobody has asked yet, or a server restarts
                for name in os.listdir(self._directory):
                    if name.isdigit() and int(name) not in self._reasons:
                        self._reasons[int(name)] = (self._directory / name).read_text()
        return self._reasons.get(job.num)


class ClaimedJobs(Allocator):
    """Hands out the jobs that this worker claims, in the order of the sweep; records their ends."""

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
        """See `Allocator`; `nums` has the number of every job, by index.

        A worker has vanished after `stale_s` seconds without a heartbeat; the claims are listed
        again after a quarter of that time. `is_locked` takes a job's index and returns whether the
        job's run still holds its directory. Signals that ask this worker to end are appended to
        `ending`. No further job starts after `max_failures` failed jobs of all workers. `clock`
        counts seconds of this process alone; nothing is compared with another clock.
        """
        super().__init__(needs, order, resources, exclusive=exclusive)
        self._nums, self._claims, self._is_locked = nums, claims, is_locked
        self._stale_s, self._clock, self._list_at = stale_s, clock, float("-inf")
        self._newest: dict[int, Claim] = {}
        # by claim: the latest heartbeat of its worker, since when, and whether it ever changed
        self._seen: dict[Claim, tuple[str, float, bool]] = {}
        self._held: dict[int, str] = {}  # jobs of other workers, by index: the worker's state
        self._turns: dict[int, int] = {}  # of the claims that this worker holds, by index
        self._ending, self._max_failures = ending, max_failures

    def next(self) -> Grant | None:
        """Claims the next unclaimed job; None if there is none or it cannot start now.

        Raises:
            ClaimLostError: this worker was frozen for so long that others have claimed its jobs.
        """
        if self._clock() - self._list_at >= self._stale_s / 4:
            self._list()
        while (index := next((i for i in self._waiting if i not in self._held), None)) is not None:
            grant = self._grant(index)
            if grant is None:
                return None
            claim = self._newest.get(self._nums[index])
            turn = self._turns.get(index, 0 if claim is None else claim.turn + 1)
            if index in self._turns or self._claims.take(self._nums[index], turn):
                self._turns[index] = turn
                return self._take(grant._replace(again=turn > 0))
            self._list()
        return None

    def settle(self, job: int, state: str) -> None:
        """Records how a job ended; gives back a job that was interrupted with the worker.

        If only the job was interrupted, it is over: somebody has ended it.
        """
        if state == "interrupted" and not self._ending:
            time.sleep(SIGNAL_S)
        given_back = state == "interrupted" and self._ending
        self._claims.end(self._nums[job], self._turns.pop(job), RELEASED if given_back else state)

    def may_get_more(self) -> bool:
        """Whether a job of another worker may soon become free, because that worker is silent."""
        return "unknown" in self._held.values()

    def liveness(self, claim: Claim) -> str:
        """The state of the worker that holds a claim.

        `alive`, if its heartbeat has changed while this process watched; `vanished`, if it has not
        changed for `stale_s`; `unknown` in between.
        """
        owner = self._claims.owner(claim)
        sign, now_s = f"{owner} {self._claims.heartbeat(owner)}", self._clock()
        before, since_s, changed = self._seen.get(claim, ("", now_s, False))
        if before != sign:
            since_s, changed = now_s, claim in self._seen
            self._seen[claim] = sign, since_s, changed
        if now_s - since_s > self._stale_s:
            return "vanished"
        return "alive" if changed else "unknown"

    def _list(self) -> None:
        """Looks at all claims; forgets jobs that are over; stops after too many failures."""
        self._newest, self._list_at = self._claims.newest(), self._clock()
        for index, turn in self._turns.items():
            claim = self._newest.get(self._nums[index])
            if claim is not None and claim.turn > turn:
                raise ClaimLostError(f"#{self._nums[index]} was claimed by another worker")
        self._held = {}
        for index in list(self._waiting):
            claim = self._newest.get(self._nums[index])
            if claim is not None and claim.is_over:
                self._waiting.remove(index)
            elif index not in self._turns and claim is not None and claim.state is None:
                look = self.liveness(claim)
                if look != "vanished" or self._is_locked(index):  # such a worker is only slow
                    self._held[index] = look.replace("vanished", "alive")
        failed = sum(claim.state == "failed" for claim in self._newest.values())
        if self._max_failures is not None and failed >= self._max_failures:
            self.stop()
