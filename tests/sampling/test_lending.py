import threading

import numpy as np
import pytest

from walle.sampling import lending
from walle.sampling.lane_group import LaneStates
from walle.sampling.lending import Borrower, Field, Loan, Owner, Records
from walle.sampling.slots import RolloutShape

LANES = 8


@pytest.fixture
def records(monkeypatch):
    monkeypatch.setattr(lending, "WORTH_S", 0.0)
    shape = RolloutShape(32, LANES, (1,), "float32", (1,), "float32", state=2, lane_state=4)
    return Records([shape, shape]).all()


def states(first, lanes):
    rows = np.arange(first, first + lanes)
    return LaneStates(
        np.repeat(rows[:, None], 4, 1).astype(np.uint8), np.repeat(rows[:, None], 2, 1) * 1.0
    )


def lent(records):
    """A loan of the second sampler's lanes to the first; returns owner, borrower, lanes kept."""
    owner, borrower, found = Owner(records[1]), Borrower(records, 0), []
    owner.begin(round_=3, slot=0, steps=32)
    asking = threading.Thread(target=lambda: found.append(borrower.find(1.0, lambda: True)))
    asking.start()
    while not owner.asked(16):
        pass
    records[1].speeds[:] = 3.0, 1.0
    kept = owner.lend(states(0, LANES), 16)
    asking.join()
    assert found == [1]
    return owner, borrower, kept


def test_lanes_are_divided_by_speed_and_come_back(records):
    owner, borrower, kept = lent(records)
    assert kept == 2
    np.testing.assert_array_equal(records[1].read(kept).state, states(2, 6).state)
    assert lending.borrower_of(records[1]) == 0
    borrower.give_back(1, states(100, 6))
    back = owner.take_back(6)
    np.testing.assert_array_equal(back.state, states(100, 6).state)
    np.testing.assert_array_equal(back.memory, states(100, 6).memory)


def test_what_a_dead_borrower_held_is_stepped_by_the_owner(records):
    owner, _, _ = lent(records)
    lending.clear_after(records, 0)
    assert owner.take_back(6) is None


def test_a_dead_owners_loan_is_cancelled(records):
    _, borrower, _ = lent(records)
    canceller = threading.Thread(target=lending.cancel, args=(records[1], lambda _: True))
    canceller.start()
    while not borrower.cancelled(1):
        pass
    borrower.give_back(1, None)
    canceller.join()
    assert records[1].ints[Field.STATE] == Loan.NONE
    assert not borrower.cancelled(1)


def test_nobody_behind_means_nothing_to_borrow(records):
    assert Borrower(records, 0).find(1.0, lambda: True) is None
