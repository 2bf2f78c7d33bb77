"""Lanes are dealt by the samplers' speeds, and who steps them leaves no trace."""

import numpy as np
import pytest

from tests.conftest import read
from walle.sampling import dealing
from walle.sampling.dealing import Dealer

CHEETAH = (
    "env=halfcheetah",
    "sampler.n=2",
    "sampler.lanes=64",
    "total_steps=16384",
    "algo.epochs=1",
)


@pytest.mark.parametrize(
    ("counts", "speeds", "dealt"),
    [
        ([32, 32], [1000, 1000], None),
        ([32, 32], [1000, 880], None),  # it takes less than 1.15 times as long
        ([32, 32], [1000, 500], [43, 21]),
        ([32, 32], [1000, 10], [63, 1]),  # everybody has a lane
        ([8, 8, 8, 8], [1000, 10, 10, 10], [16, 6, 5, 5]),  # nobody has more than twice as many
        ([2, 2], [1000, 800], None),  # nothing better exists
    ],
)
def test_lanes_are_dealt_as_the_samplers_are_fast(counts, speeds, dealt):
    dealer = Dealer(counts)
    dealer.note(np.array(speeds) // 5, [0.2] * len(counts))
    assert dealer.deal() is None  # too early
    dealer.note(np.array(speeds) * 4 // 5, [0.8] * len(counts))
    assert dealer.deal() == dealt
    assert dealer.deal() is None  # speeds are measured anew


def test_dealt_lanes_stay_while_speeds_do():
    dealer = Dealer([32, 32])
    for dealt in ([43, 21], None, None):
        dealer.note([1000, 500], [1.0, 1.0])
        assert dealer.deal() == dealt


def test_a_sampler_that_is_slow_for_a_moment_keeps_its_lanes():
    dealer = Dealer([32, 32])
    for speeds in ([1000, 1000], [1000, 800], [1000, 1000]):
        dealer.note(speeds, [1.0, 1.0])
        assert dealer.deal() is None


@pytest.mark.timeout(120)
@pytest.mark.parametrize("max_lag", [0, 1])
def test_lanes_that_change_hands_leave_no_trace_in_the_results(run, monkeypatch, max_lag):
    def learned(*overrides):
        _, directory = run(*CHEETAH, f"sampler.max_lag={max_lag}", *overrides)
        rows = read(directory / "episodes.csv"), read(directory / "iterations.csv")
        assert rows[0]
        samplers = {(row["lane"], row["sampler"]) for row in rows[0]}
        return samplers, [
            {k: v for k, v in row.items() if not k.endswith(("_s", "_share")) and k != "sampler"}
            for row in (*rows[0], *rows[1])
        ]

    monkeypatch.setattr(dealing, "WINDOW_S", 0.0)
    deals = iter([[40, 24], [40, 24], [9, 55], [33, 31]])
    monkeypatch.setattr(Dealer, "deal", lambda self: next(deals, None))
    samplers, rows = learned("env.episode_limit=20")
    assert next(deals, None) is None
    equal_samplers, equal_rows = learned("env.episode_limit=20", "sampler.balance=false")
    assert rows == equal_rows
    assert samplers - equal_samplers  # some lanes were stepped by the other sampler
