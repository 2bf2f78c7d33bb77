from __future__ import annotations

import pytest

from walle.analysis.measuring.dividing import Parts, Shares, fit, largest_share

ONE, TWO, HALF = Shares(1.0, 1.0), Shares(0.5, 1.0), Shares(1.0, 0.5)


def test_seconds_of_a_round_by_hand() -> None:
    """1 s serial, 8 s of collecting, 4 s of learning: 13 s, and 1 + 8/4 + 4/2 = 5 s."""
    parts = Parts(1.0, 8.0, 4.0)
    assert parts.time(ONE) == 13
    assert parts.time(Shares(0.25, 0.5)) == 5
    assert parts.speedup(Shares(0.25, 0.5)) == pytest.approx(13 / 5)
    assert parts.speedup(Shares(0.25, 0.5), base=TWO) == pytest.approx(9 / 5)


def test_three_measurements_tell_three_parts_apart() -> None:
    found = fit([ONE, TWO, HALF], [13.0, 9.0, 11.0])
    assert found == pytest.approx((1.0, 8.0, 4.0))


def test_what_was_not_varied_is_in_the_serial_part() -> None:
    assert fit([ONE, TWO], [13.0, 9.0]) == pytest.approx((5.0, 8.0, 0.0))
    assert fit([ONE, HALF], [13.0, 11.0]) == pytest.approx((9.0, 0.0, 4.0))


def test_no_part_is_negative() -> None:
    """Halving the samplers' share saved more than all of it."""
    found = fit([ONE, TWO], [10.0, 4.0])
    assert found.serial == 0
    assert 0 < found.collect < 10


def test_workers_that_only_change_together_cannot_be_told_apart() -> None:
    with pytest.raises(ValueError, match="3 parts cannot be told apart"):
        fit([ONE, Shares(0.5, 0.5), Shares(0.25, 0.25)], [13.0, 7.0, 4.0])


@pytest.mark.parametrize(
    ("pieces", "workers", "share"), [(8, 4, 1 / 4), (8, 3, 3 / 8), (2, 16, 1 / 2), (64, 1, 1.0)]
)
def test_the_largest_share(pieces: int, workers: int, share: float) -> None:
    assert largest_share(pieces, workers) == share
