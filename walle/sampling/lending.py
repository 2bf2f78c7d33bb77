"""Lanes lent for the rest of a round: a sampler that is done takes over lanes of one that is not.

Every sampler has a record in shared memory, in which it is the owner of lanes. A borrower asks; the
owner sees that between two steps, writes the states of its last lanes into the record, and goes on
with the others. The borrower steps the lent lanes, writes their steps into the owner's slot, and
their states into the record. Who steps a lane leaves no trace in its steps.

State changes of a record happen under a lock of its file region, which the kernel releases when a
process dies.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

from walle.sampling.arena import Arena
from walle.sampling.lane_group import LaneStates
from walle.sampling.slots import RolloutShape

POLL_S = 1e-4
WORTH_S = 2e-3  # lending costs about half a millisecond
WORTH_SHARE = 0.15  # of the time so far: equal cores differ by less


class Loan(IntEnum):
    """What happens to the lanes of a record."""

    NONE, OFFERED, TAKEN, DONE, REVOKED = range(5)


class Field(IntEnum):
    """The integers of a record.

    ROUND, SLOT, STEP and STEPS tell where the owner is. WANTED is the borrower that asks, plus 1.
    STATE, BORROWER, BEGIN and KEPT describe the loan; CANCELLED asks the borrower to stop.
    """

    ROUND, SLOT, STEP, STEPS, WANTED, STATE, BORROWER, BEGIN, KEPT, CANCELLED = range(10)


class Records:
    """The records of all samplers; picklable to a child process."""

    def __init__(self, shapes: Sequence[RolloutShape]) -> None:
        """Makes a record for each sampler, with room for the states of all its lanes."""
        self._lanes = [shape.lanes for shape in shapes]
        self._arenas = [Arena(_layout(shape)) for shape in shapes]
        self._records: list[Record] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_lanes": self._lanes, "_arenas": self._arenas, "_records": None}

    def all(self) -> list[Record]:
        """The records, in the samplers' order."""
        if self._records is None:
            self._records = [Record(*pair) for pair in zip(self._arenas, self._lanes, strict=True)]
        return self._records


def _layout(shape: RolloutShape) -> list[tuple[tuple[int, ...], str]]:
    lanes = shape.lanes
    numbers = [((len(Field),), "int64"), ((2,), "float64"), ((1,), "int64")]
    states = [((lanes, shape.lane_state), "uint8"), ((lanes, shape.state), "float32")]
    return [*numbers, *states]


class Record:
    """One sampler's record.

    Attributes:
        lanes: L, the owner's lanes.
        ints: the integers, by `Field`.
        speeds: lane steps a second of the borrower, and of the owner.
    """

    def __init__(self, arena: Arena, lanes: int) -> None:
        """Views the shared memory."""
        self.lanes = lanes
        self._arena = arena  # keeps the descriptor open
        ints, self.speeds, self._width, self._state, self._memory = arena.arrays()
        self.ints = memoryview(ints.data)

    @contextmanager
    def locked(self) -> Iterator[memoryview]:
        """The integers, while no other process changes the loan."""
        fcntl.lockf(self._arena.descriptor, fcntl.LOCK_EX)
        try:
            yield self.ints
        finally:
            fcntl.lockf(self._arena.descriptor, fcntl.LOCK_UN)

    def write(self, states: LaneStates, first: int) -> None:
        """Keeps the states of the lanes from `first` on."""
        rows, width = slice(first, first + len(states.state)), states.state.shape[1]
        self._width[0] = width
        self._state[rows, :width], self._memory[rows] = states.state, states.memory

    def read(self, first: int) -> LaneStates:
        """A copy of the states of the lanes from `first` on."""
        width = int(self._width[0])
        return LaneStates(self._state[first:, :width].copy(), self._memory[first:].copy())


class Owner:
    """The owner's end; implements `walle.sampling.lane_group.Lender`."""

    def __init__(self, record: Record) -> None:
        """Lends from this record."""
        self._record, self._ints = record, record.ints
        self._began = 0.0

    def begin(self, round_: int, slot: int, steps: int) -> None:
        """Notes that a round begins."""
        with self._record.locked() as ints:
            ints[Field.ROUND], ints[Field.SLOT] = round_, slot
            ints[Field.STEP], ints[Field.STEPS] = 0, steps
            ints[Field.STATE] = Loan.NONE
        self._began = time.perf_counter()

    def end(self) -> float:
        """Notes that the round is collected; returns the lane steps a second."""
        with self._record.locked() as ints:
            ints[Field.STEP] = ints[Field.STEPS]
            ints[Field.WANTED] = 0
        seconds = time.perf_counter() - self._began
        return float(self._ints[Field.STEPS] * self._record.lanes / seconds)

    def asked(self, step: int) -> bool:
        """See `Lender`."""
        self._ints[Field.STEP] = step
        return bool(self._ints[Field.WANTED]) and self._worth(step)

    def _worth(self, step: int) -> bool:
        """Whether the time saved exceeds the cost of lending; refuses the borrower if not."""
        if not step:
            return False  # the borrower waits
        seconds = time.perf_counter() - self._began
        remaining_s = seconds / step * (self._ints[Field.STEPS] - step)
        if self._record.lanes > 1 and remaining_s > max(WORTH_S, WORTH_SHARE * seconds):
            self._record.speeds[1] = step * self._record.lanes / seconds
            return True
        with self._record.locked() as ints:
            ints[Field.WANTED] = 0
        return False

    def lend(self, states: LaneStates, step: int) -> int:
        """See `Lender`; the lanes are divided as the two speeds are."""
        theirs, ours = self._record.speeds
        lanes = self._record.lanes
        kept = min(lanes - 1, max(1, round(lanes * ours / (ours + theirs))))
        self._record.write(states, 0)
        with self._record.locked() as ints:
            if not ints[Field.WANTED]:
                return lanes
            ints[Field.BORROWER], ints[Field.WANTED] = ints[Field.WANTED] - 1, 0
            ints[Field.BEGIN], ints[Field.KEPT] = step, kept
            ints[Field.STATE] = Loan.OFFERED
        return int(kept)

    def take_back(self, lanes: int) -> LaneStates | None:
        """See `Lender`."""
        while True:
            with self._record.locked() as ints:
                state = ints[Field.STATE]
                if state != Loan.TAKEN:
                    ints[Field.STATE] = Loan.NONE
                    break
            time.sleep(POLL_S)
        return self._record.read(self._record.lanes - lanes) if state == Loan.DONE else None


class Borrower:
    """The end of a sampler that has nothing to do until the next policy arrives."""

    def __init__(self, records: Sequence[Record], sampler: int) -> None:
        """Borrows for sampler number `sampler`."""
        self._records, self._sampler = records, sampler

    def find(self, speed: float, idle: Callable[[], bool]) -> int | None:
        """Asks the sampler that is furthest behind; returns its number when it lends lanes.

        Args:
            speed: this sampler's lane steps a second.
            idle: whether this sampler has still nothing to do.
        """
        refused = {self._sampler}
        while idle():
            behind = {
                i: record.ints[Field.STEPS] - record.ints[Field.STEP]
                for i, record in enumerate(self._records)
                if i not in refused and record.ints[Field.STATE] == Loan.NONE
            }
            owner = max(behind, key=lambda i: behind[i], default=None)
            if owner is None or behind[owner] <= 1:
                return None
            if self._asks(owner, speed) and self._answered(owner, idle):
                return owner
            refused.add(owner)
        return None

    def _asks(self, owner: int, speed: float) -> bool:
        with self._records[owner].locked() as ints:
            free = not ints[Field.WANTED] and ints[Field.STATE] == Loan.NONE
            if not free or ints[Field.STEP] >= ints[Field.STEPS]:
                return False
            self._records[owner].speeds[0] = speed
            ints[Field.WANTED] = self._sampler + 1
        return True

    def _answered(self, owner: int, idle: Callable[[], bool]) -> bool:
        """Waits for the owner's answer; returns whether it lends."""
        record = self._records[owner]
        while record.ints[Field.WANTED] == self._sampler + 1:
            if not idle():
                with record.locked() as ints:
                    if ints[Field.WANTED] == self._sampler + 1:
                        ints[Field.WANTED] = 0
            time.sleep(POLL_S)
        with record.locked() as ints:
            ours = ints[Field.STATE] == Loan.OFFERED and ints[Field.BORROWER] == self._sampler
            if ours:
                ints[Field.STATE] = Loan.TAKEN
        return ours

    def cancelled(self, owner: int) -> bool:
        """Whether the loan is no longer wanted."""
        return bool(self._records[owner].ints[Field.CANCELLED])

    def give_back(self, owner: int, states: LaneStates | None) -> None:
        """Ends the loan with the lanes' states after the round; None if it was cancelled."""
        record = self._records[owner]
        if states is not None:
            record.write(states, record.ints[Field.KEPT])
        with record.locked() as ints:
            if ints[Field.STATE] == Loan.TAKEN:
                ints[Field.STATE] = Loan.DONE if states is not None else Loan.REVOKED


def borrower_of(record: Record) -> int | None:
    """The sampler that steps the record's lanes now; None if nobody does."""
    return record.ints[Field.BORROWER] if record.ints[Field.STATE] == Loan.TAKEN else None


def clear_after(records: Sequence[Record], sampler: int) -> None:
    """Frees all records from a sampler that has died: its requests, and what it had borrowed."""
    for record in records:
        with record.locked() as ints:
            if ints[Field.WANTED] == sampler + 1:
                ints[Field.WANTED] = 0
            busy = ints[Field.STATE] in (Loan.OFFERED, Loan.TAKEN)
            if busy and ints[Field.BORROWER] == sampler:
                ints[Field.STATE] = Loan.REVOKED


def cancel(record: Record, alive: Callable[[int], bool]) -> None:
    """Waits until nobody steps the lanes of a record whose owner has died, then frees it.

    Args:
        record: the dead owner's record.
        alive: whether a sampler's process still runs.
    """
    record.ints[Field.CANCELLED] = 1
    while True:
        with record.locked() as ints:
            taken = ints[Field.STATE] == Loan.TAKEN and alive(ints[Field.BORROWER])
            if not taken:
                ints[Field.STATE], ints[Field.WANTED], ints[Field.CANCELLED] = Loan.NONE, 0, 0
                ints[Field.STEP] = ints[Field.STEPS] = 0
                return
        time.sleep(POLL_S)
