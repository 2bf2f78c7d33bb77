"""Recommendations of a plan: how many samplers to use, and which setting to change next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from walle.analysis.measuring.stats import FloatArray
from walle.analysis.planning.costs import Costs, Setup
from walle.analysis.planning.simulation import Predicted, predict

ENOUGH = 1.05  # more samplers that gain less than this gain nothing
WORTH = 1.02  # changes that gain less are not told
SECONDS_PER_HOUR, MILLION = 3600, 1e6


class Change(NamedTuple):
    """A change of the settings, and how many times as fast it makes a step."""

    words: str
    gain: float


def enough_samplers(points: Sequence[tuple[int, Predicted]]) -> int:
    """The fewest samplers with which a step takes at most 5% longer than with any number."""
    best = min(predicted.step_s for _, predicted in points)
    return min(n for n, predicted in points if predicted.step_s <= ENOUGH * best)


def core_hours(setup: Setup, predicted: Predicted) -> float:
    """Hours of all cores that a million environment steps occupy."""
    return setup.paid_cores * predicted.step_s * MILLION / SECONDS_PER_HOUR


def changes(costs: Costs, setup: Setup, learn_spread: FloatArray | None = None) -> list[Change]:
    """The changes that make a step faster, the best first."""
    before = predict(costs, setup, learn_spread).step_s
    found = [
        Change(words, before / predict(new_costs, new_setup, learn_spread).step_s)
        for words, new_costs, new_setup in _possible(costs, setup)
    ]
    return sorted((c for c in found if c.gain >= WORTH), key=lambda c: -c.gain)


def _possible(costs: Costs, setup: Setup) -> Iterator[tuple[str, Costs, Setup]]:
    steps, lanes = costs.steps, costs.lanes
    twice = 2 * steps * lanes
    if setup.max_lag == 0:
        yield "sampler.max_lag=1", costs, replace(setup, max_lag=1)
    if costs.most_learners > setup.learners:
        learners = min(2 * setup.learners, costs.most_learners)
        yield f"learner.n={learners}", costs, replace(setup, learners=learners)
    yield f"sampler.n={2 * setup.samplers}", costs, replace(setup, samplers=2 * setup.samplers)
    yield f"rounds of batch_size={twice} in as many lanes", costs.reshaped(2 * steps, lanes), setup
    if steps > 1:
        more = costs.reshaped(steps // 2, 2 * lanes)
        yield f"sampler.lanes={2 * lanes} in rounds of the same size", more, setup
    if setup.cores:
        cores = 2 * setup.cores
        yield f"machines of {cores} cores", costs, replace(setup, cores=cores)
        fuller = replace(setup, cores=cores, samplers=2 * setup.samplers)
        yield f"machines of {cores} cores with sampler.n={fuller.samplers}", costs, fuller
