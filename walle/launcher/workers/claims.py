"""Claims on jobs in a shared directory, the heartbeats of workers, and requests to stop jobs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from walle.launcher.composing import Job
from walle.system.files import write_atomically

RELEASED = "released"
CLAIMS, ALIVE, STOPS = "claims", "alive", "stops"


class Claim(NamedTuple):
    """The newest claim on a job.

    Attributes:
        job: the job's number.
        turn: how many claims on it came before.
        state: how the job ended; `RELEASED` if it was given back; None while it is held.
    """

    job: int
    turn: int
    state: str | None

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.job}.{self.turn}"

    @property
    def is_over(self) -> bool:
        """Whether the job has ended and is not to run again."""
        return self.state not in (None, RELEASED)


class Claims:
    """The claims of one submission, as one process sees and makes them."""

    def __init__(self, directory: Path, owner: str = "") -> None:
        """Makes the directories of a worker; an observer writes nothing.

        Args:
            directory: of the submission, shared by all its workers.
            owner: name of this worker, which no other process has; empty for an observer.
        """
        self._claims, self._alive = directory / CLAIMS, directory / ALIVE
        self._owner = owner
        for path in (self._claims, self._alive) if owner else ():
            path.mkdir(parents=True, exist_ok=True)

    def newest(self) -> dict[int, Claim]:
        """The newest claim of each job that has one, in one listing of the directory."""
        found: dict[int, Claim] = {}
        for name in os.listdir(self._claims) if self._claims.exists() else ():
            job, turn, state = (*name.split("."), None)[:3]
            claim = Claim(int(str(job)), int(str(turn)), state)
            best = found.get(claim.job)
            if best is None or (best.turn, best.state or "") < (claim.turn, state or ""):
                found[claim.job] = claim
        return found

    def all_over(self, jobs: Iterable[int]) -> bool:
        """Whether all of these jobs have ended."""
        found = self.newest()
        return all(job in found and found[job].is_over for job in jobs)

    def take(self, job: int, turn: int) -> bool:
        """Claims the job for its given turn; False if another process did so before.

        The caller has seen that the claim of the turn before is released, or that its worker has
        vanished; if that claim tells by now that the job is over, so does the new one.
        """
        try:
            file = os.open(self._claims / f"{job}.{turn}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        with os.fdopen(file, "w") as stream:
            stream.write(self._owner)
        ends = [path.suffix[1:] for path in self._claims.glob(f"{job}.{turn - 1}.*")]
        over = [state for state in ends if state != RELEASED]
        if over:
            self.end(job, turn, over[0])
        return not over

    def end(self, job: int, turn: int, state: str) -> None:
        """Tells how a claimed job ended; `RELEASED` gives it back."""
        (self._claims / f"{job}.{turn}.{state}").touch()

    def owner(self, claim: Claim) -> str:
        """The worker that holds or held the claim; empty for a moment after it was made."""
        return _text(self._claims / claim.name)

    def heartbeat(self, owner: str) -> str:
        """The worker's number as it is now; empty for a worker that has ended."""
        return _text(self._alive / owner) if owner else ""

    def silence_s(self) -> dict[str, float] | None:
        """Seconds since the last heartbeat of every worker that has not ended.

        Both times are those of the file system's clock, so that no machine's clock is compared
        with another one's. None where this process may not write into the directory.
        """
        probe = self._alive / f".look-{os.uname().nodename}-{os.getpid()}"
        try:
            probe.touch()
            now_s = probe.stat().st_mtime
            probe.unlink()
        except OSError:
            return {} if not self._alive.exists() else None
        workers = [entry for entry in os.scandir(self._alive) if not entry.name.startswith(".")]
        found: dict[str, float] = {}
        for worker in workers:
            with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
                found[worker.name] = now_s - os.stat(worker.path).st_mtime
        return found

    @contextmanager
    def beating(self, every_s: float) -> Iterator[None]:
        """Keeps this worker's heartbeat going in the body, in a thread of its own."""
        own, over = self._alive / self._owner, threading.Event()
        own.write_text("0")

        def beat() -> None:
            count = 0
            while not over.wait(every_s):
                count += 1
                with contextlib.suppress(OSError):  # a full disk, a server that restarts
                    own.write_text(str(count))

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            own.unlink(missing_ok=True)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # no such file, or a server that restarts
        return ""


class Stops:
    """Jobs that need not run to their ends: the command that follows them asks, workers obey.

    A worker has it as the `Watch` of its runner.
    """

    def __init__(
        self, directory: Path, every_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Has read nothing yet; lists the submission's `directory` every `every_s` seconds."""
        self._directory, self._every_s, self._clock = directory / STOPS, every_s, clock
        self._read_at = float("-inf")
        self._reasons: dict[int, str] = {}

    def ask(self, job: int, reason: str) -> None:
        """Asks the workers to stop the job of that number, or not to start it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self._directory / str(job), reason)

    def __call__(self, job: Job, *, starts: bool = True) -> str | None:  # noqa: ARG002  see `Watch`
        """Why the job is to stop; None as long as nobody has asked for it."""
        if self._clock() - self._read_at >= self._every_s:
            self._read_at = self._clock()
            with contextlib.suppress(OSError):  # nobody has asked yet, or a server restarts
                self._read()
        return self._reasons.get(job.num)

    def _read(self) -> None:
        for name in os.listdir(self._directory):
            if name.isdigit() and int(name) not in self._reasons:
                self._reasons[int(name)] = (self._directory / name).read_text()


class Observer:
    """Tells workers that live from workers that have vanished, by what changes while it watches."""

    def __init__(
        self, claims: Claims, stale_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Has seen nothing yet.

        Args:
            claims: of the submission.
            stale_s: seconds without a change after which a worker has vanished.
            clock: seconds of this process alone; nothing is compared with another clock.
        """
        self._claims, self._stale_s, self._clock = claims, stale_s, clock
        self._seen: dict[str, _Seen] = {}

    def look(self, claim: Claim) -> str:
        """Looks at the holder of a claim.

        Returns:
            `alive`, if its heartbeat has changed while this process watched; `vanished`, if it has
            not changed for `stale_s`; `unknown` in between.
        """
        owner = self._claims.owner(claim)
        sign, now_s = f"{owner} {self._claims.heartbeat(owner)}", self._clock()
        seen = self._seen.get(claim.name)
        if seen is None or seen.sign != sign:
            seen = self._seen[claim.name] = _Seen(sign, now_s, changed=seen is not None)
        if now_s - seen.since_s > self._stale_s:
            return "vanished"
        return "alive" if seen.changed else "unknown"


class _Seen(NamedTuple):
    """The holder's sign of life, since when it is the same, and whether it ever changed."""

    sign: str
    since_s: float
    changed: bool
