"""The points of a plan: a setup each, with its prediction and its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from walle.analysis.measuring.stats import TAIL, FloatArray, Interval
from walle.analysis.planning.advice import core_hours
from walle.analysis.planning.costs import Setup
from walle.analysis.planning.measured import Measured
from walle.analysis.planning.simulation import Predicted, play, rounds_of

FEWEST, MOST_DRAWS = 6, 100_000  # rounds for intervals, and rollouts in them
DRAWS, ROUNDS = 30, 16  # draws of the measured iterations, and the rounds that each is tried on


@dataclass(frozen=True)
class Point:
    """A setup and what the plan says of it.

    Attributes:
        setup: the processes and machines.
        predicted: the mean of its rounds.
        ratios: [draws] seconds of a step with costs of iterations drawn from the measured ones,
            over those with the mean costs.
    """

    setup: Setup
    predicted: Predicted
    ratios: FloatArray

    def seconds(self, steps: int) -> Interval:
        """Seconds for so many steps."""
        return self._interval(self.predicted.step_s * steps, self.ratios)

    def speedup(self, base: Point) -> Interval:
        """How many times as fast as `base` a step is."""
        value = base.predicted.step_s / self.predicted.step_s
        return self._interval(value, base.ratios / self.ratios)

    def _interval(self, value: float, ratios: FloatArray) -> Interval:
        low, high = np.quantile(ratios, [TAIL, 1 - TAIL])
        return Interval(value, value * min(1.0, float(low)), value * max(1.0, float(high)))

    @property
    def core_hours(self) -> float:
        """See `advice.core_hours`."""
        return core_hours(self.setup, self.predicted)


def learn_spread(measured: Measured) -> FloatArray:
    """The measured seconds of learning over their mean; ones where nothing was learned."""
    mean = measured.learn_s.mean()
    return measured.learn_s / mean if mean else np.ones(1)


def points(measured: Measured, setups: Sequence[Setup]) -> list[Point]:
    """The prediction of each setup, with an interval from drawing among measured iterations."""
    rng, costs, spread = np.random.default_rng(0), measured.costs(), learn_spread(measured)
    drawn = [measured.costs(rng) for _ in range(DRAWS)]
    found = []
    for setup in setups:
        rounds = rounds_of(costs, setup, spread)
        few = rounds.first(max(FEWEST, min(ROUNDS, MOST_DRAWS // setup.samplers)))
        mean_s = play(few, setup.max_lag).step_s
        ratios = [
            play(few.at(costs, other, setup.samplers), setup.max_lag).step_s / mean_s
            for other in drawn
        ]
        found.append(Point(setup, play(rounds, setup.max_lag), np.array(ratios)))
    return found


def base_point(measured: Measured, setup: Setup) -> Point:
    """One sampler and one learner in lock-step on one machine, the base of speedups."""
    alone = replace(setup, samplers=1, learners=1, machines=1, max_lag=0)
    return points(measured, [alone])[0]
