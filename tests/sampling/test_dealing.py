"""Lanes are dealt by the samplers' speeds, and who steps them leaves no trace."""

import signal

import numpy as np
import pytest

from tests.conftest import read
from tests.sampling.test_replaced_samplers import Disturber, replacements
from walle.sampling.process_sampling import Dealer

CHEETAH = (
    "env=halfcheetah",
    "sampler.n=2",
    "sampler.lanes=64",
    "total_steps=32768",
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


def learned(directory):
    """The rows of all files without times and samplers, and who stepped which lane."""
    rows = read(directory / "episodes.csv"), read(directory / "iterations.csv")
    assert rows[0]
    return {(row["lane"], row["sampler"]) for row in rows[0]}, [
        {k: v for k, v in row.items() if not k.endswith(("_s", "_share")) and k != "sampler"}
        for row in (*rows[0], *rows[1])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("max_lag", [0, 1])
@pytest.mark.parametrize("kills", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_lanes_that_change_hands_leave_no_trace(run, tmp_path, monkeypatch, max_lag, kills):
    settings = (*CHEETAH, "env.episode_limit=20", f"sampler.max_lag={max_lag}")
    _, equal = run(*settings, "sampler.balance=false")
    deals = iter([[40, 24], [40, 24], [9, 55], [33, 31], [50, 14], [20, 44]])
    monkeypatch.setattr(Dealer, "deal", lambda self: next(deals, None))
    disturbers = [Disturber(tmp_path / "run1", signal.SIGKILL) for _ in range(kills)]
    _, dealt = run(*settings)
    for disturber in disturbers:
        disturber.join()
    assert next(deals, None) is None
    (samplers, rows), (equal_samplers, equal_rows) = learned(dealt), learned(equal)
    assert rows == equal_rows
    assert samplers - equal_samplers  # some lanes were stepped by the other sampler
    assert len(replacements(dealt)) == kills


@pytest.mark.parametrize(("robot", "dealt"), [("ROBOT", True), ("NOISY", False)])
def test_lanes_stay_where_samplers_draw_from_global_generators(run, monkeypatch, robot, dealt):
    asked = []
    monkeypatch.setattr(Dealer, "deal", lambda self: asked.append(self))
    run("env=gym", f"env.id=tests.toy_robot:{robot}", "sampler.n=2")
    assert bool(asked) is dealt
