"""Simulates rounds of samplers, queues, an agent with its learners, and machines.

A run has few kinds of events: a sampler begins or ends a rollout, the agent takes a round or
publishes a policy. Their times follow from each other by sums and maxima, so the simulation goes
through the rounds, with all samplers of a round as one array:

    begin_i(r) = max(end_i(r - 1), published(r - lag))
    end_i(r) = begin_i(r) + collecting_i(r)
    taken(r) = max(max_i end_i(r), published(r) + after)
    published(r + 1) = taken(r) + taking + learning(r) + serial

with version v published at published(v), and versions up to 0 at 0. These are the times that a
queue of events gives too: tests/analysis/planning/test_simulation.py compares both. simpy 4.1 gave
the same times to 15 digits, and took 80 times as long for 64 samplers and over 1,000 times as long
for 1,024 (0.9 s for 50 rounds in lock-step, where this takes 0.6 ms), so it is not used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np

from walle.analysis.measuring.stats import FloatArray
from walle.analysis.planning.cores import Work, apart, ends
from walle.analysis.planning.costs import Costs, Setup

MOST_DRAWS, MOST_ROUNDS, FEWEST_ROUNDS = 600_000, 200, 8
WARM_UP = 0.25  # of the rounds, until the queues are as full as they stay
CONVERGED, TURNS = 1e-4, 40


@dataclass(frozen=True)
class Predicted:
    """The mean of the simulated rounds.

    Attributes:
        iteration_s: seconds from one policy to the next.
        collect_s: as iterations.csv has it: in lock-step from a policy to the last rollout, else
            the mean time of a rollout.
        learn_s: seconds of learning.
        lag: policy versions between acting and learning.
        steps: environment steps of a round.
    """

    iteration_s: float
    collect_s: float
    learn_s: float
    lag: float
    steps: int

    @property
    def step_s(self) -> float:
        """Seconds for each environment step."""
        return self.iteration_s / self.steps


@dataclass(frozen=True)
class Rounds:
    """What the rounds of a setup consist of.

    Attributes:
        collecting_s: [R, N] seconds of a rollout, with the sharing of cores.
        learning_s: [R] seconds of learning.
        taking_s: of the agent to take a round.
        serial_s: of the agent until the policy is published.
        after_s: of the agent after publishing.
        publish_s: between two samplers that are woken.
        arrival_s: between the last rollout's end and its arrival at the agent.
        steps: environment steps of a round.
    """

    collecting_s: FloatArray
    learning_s: FloatArray
    taking_s: float
    serial_s: float
    after_s: float
    publish_s: float
    arrival_s: float
    steps: int

    def first(self, number: int) -> Rounds:
        """The first rounds."""
        few = {name: getattr(self, name)[:number] for name in ("collecting_s", "learning_s")}
        return replace(self, **few)

    def at(self, before: Costs, now: Costs, samplers: int) -> Rounds:
        """These rounds with costs that differ a little from those that they were drawn for."""
        before, now = before.for_samplers(samplers), now.for_samplers(samplers)
        longer = now.alone_s(samplers) / before.alone_s(samplers)
        wider = 1.0
        if before.env_var:
            wider = now.deviation_s(samplers) / before.deviation_s(samplers) / longer
        mean, shortest = self.collecting_s.mean(), self.collecting_s.min()
        stretched = np.maximum(shortest / 2, mean + wider * (self.collecting_s - mean))
        return replace(
            self,
            collecting_s=longer * stretched,
            learning_s=self.learning_s * (now.learn_s / before.learn_s if before.learn_s else 1),
            serial_s=now.serial_s,
            after_s=now.after_s,
        )


def predict(costs: Costs, setup: Setup, learn_spread: FloatArray | None = None) -> Predicted:
    """Simulates a setup; the same arguments give the same numbers.

    Args:
        costs: of a round.
        setup: the processes and machines.
        learn_spread: measured seconds of learning over their mean, to draw from; None: all 1.
    """
    return play(rounds_of(costs, setup, learn_spread), setup.max_lag)


def rounds_of(costs: Costs, setup: Setup, learn_spread: FloatArray | None = None) -> Rounds:
    """Draws the rounds of a setup; fewer of them for more samplers."""
    costs = costs.for_samplers(setup.samplers)
    rng = np.random.default_rng(0)
    draws = setup.samplers * _work(costs, setup).bursts
    number = min(MOST_ROUNDS, max(FEWEST_ROUNDS, MOST_DRAWS // draws))
    collecting, learn_s = _sharing(costs, setup, number, rng)
    spread = np.ones(1) if learn_spread is None else learn_spread
    return Rounds(
        collecting_s=collecting,
        learning_s=learn_s * rng.choice(spread, number),
        taking_s=costs.taking_s(setup),
        serial_s=costs.serial_s,
        after_s=costs.after_s,
        publish_s=costs.publish_s,
        arrival_s=_arrival_s(costs, setup),
        steps=costs.round_steps,
    )


def play(rounds: Rounds, max_lag: int | None) -> Predicted:
    """Goes through the rounds."""
    events = _free_running(rounds) if max_lag is None else _bounded(rounds, max_lag)
    published, collected, lags = (np.array(column) for column in zip(*events, strict=True))
    first = math.ceil(WARM_UP * len(published))
    return Predicted(
        iteration_s=float(np.diff(published)[first - 1 :].mean()),
        collect_s=float(collected[first:].mean()),
        learn_s=float(rounds.learning_s[first:].mean()),
        lag=float(lags[first:].mean()),
        steps=rounds.steps,
    )


def _bounded(rounds: Rounds, max_lag: int) -> Iterator[tuple[float, float, float]]:
    """For each round when its policy was published, the seconds of collection, and the lag."""
    published, end = [0.0], np.zeros(rounds.collecting_s.shape[1])
    woken = rounds.publish_s * np.arange(1, len(end) + 1)
    for r, (collecting, learning_s) in enumerate(
        zip(rounds.collecting_s, rounds.learning_s, strict=True)
    ):
        begin = np.maximum(end, published[max(0, r - max_lag)] + woken)
        end = begin + collecting
        last = float(end.max()) + rounds.arrival_s
        taken = max(last, published[r] + rounds.after_s)
        published.append(taken + rounds.taking_s + learning_s + rounds.serial_s)
        lag = min(r, max_lag)
        yield published[r + 1], last - published[r] if max_lag == 0 else collecting.mean(), lag


def _free_running(rounds: Rounds) -> Iterator[tuple[float, float, float]]:
    """For each round, as `_bounded`; a round has as many rollouts as there are samplers.

    They are the first that arrive. A sampler has one slot. What it hands over while the agent is
    busy waits in it, and the sampler too; while the agent waits for a round, a slot is free again
    at once.
    """
    count = rounds.collecting_s.shape[1]
    draws = cycle(rounds.collecting_s)  # a row for every sampler; what it does not begin is lost
    end, version = next(draws), np.zeros(count)
    published = 0.0
    for r, learning_s in enumerate(rounds.learning_s):
        ready = published + rounds.after_s
        chains = [np.maximum(end, ready)]
        times, taken = chains[0], float(chains[0].max())
        while True:  # a quick sampler may deliver several times
            chains.append(chains[-1] + next(draws) + rounds.publish_s)
            quick = chains[-1][chains[-1] < taken]
            if not len(quick):
                break
            times = np.concatenate([times, quick])
            taken = float(np.partition(times, count - 1)[count - 1])
            times = times[times <= taken]
        delivered = (np.array(chains[:-1]) <= taken).sum(axis=0)
        first = delivered > 0
        lag = float((r - version[first]).sum()) / float(delivered.sum())  # of later ones it is 0
        version = np.where(first, r, version)
        end = np.array(chains)[delivered, np.arange(count)]
        published = taken + rounds.arrival_s + rounds.taking_s + float(learning_s) + rounds.serial_s
        yield published, float(rounds.collecting_s[r].mean()), lag


def _arrival_s(costs: Costs, setup: Setup) -> float:
    """Seconds that the network adds to a round: the policy's way out and the experience's way in.

    Every machine but the agent's sends one message a round; all go through the agent's link.
    """
    others = setup.dealt[1:]
    if not others:
        return 0.0
    net = setup.network
    experience = sum(others) / setup.samplers * costs.round_steps * net.step_bytes
    on_the_way = (experience + len(others) * net.policy_bytes) / net.bandwidth
    gathering = others[0] * (costs.receive_s + costs.publish_s)  # of a machine's own samplers
    return 2 * net.latency_s + net.exchange_s + on_the_way + gathering


def _sharing(
    costs: Costs, setup: Setup, rounds: int, rng: np.random.Generator
) -> tuple[FloatArray, float]:
    """[R, N] seconds of rollouts, and the seconds of learning, where they share the cores.

    Where learning overlaps collecting, both are longer on the agent's machine. While samplers
    collect, k of them want a core at a time, and a learner gets s = C / (L + k) of a core, or what
    samplers leave unused; C - p L s cores are left for samplers, with p the share of the time of
    collecting in which learners learn. Both times are found by turns until they agree.
    """
    work, learn_s = _work(costs, setup), costs.learning_s(setup.learners)
    cores, (first, *others) = float(setup.cores or math.inf), setup.dealt
    left = cores
    learners = min(setup.learners, costs.most_learners)
    if setup.max_lag != 0 and first + learners > cores and learn_s > 0:
        left, learn_s = _overlapped(work, first, cores, learners, learn_s)
    times = apart if setup.max_lag is None else ends
    found = [times(work, first, left, rounds, rng)]
    for n, machines in Counter(others).items():
        elsewhere = times(work, n, cores, rounds * machines, rng)
        found.append(elsewhere.reshape(rounds, machines * n))
    return np.concatenate(found, axis=1), learn_s


def _overlapped(
    work: Work, samplers: int, cores: float, learners: int, learn_s: float
) -> tuple[float, float]:
    """The cores that learners leave to samplers, and the seconds of learning beside samplers."""
    typical, alone_s = work._replace(deviation_s=0.0), learn_s

    def collecting_s(left: float) -> float:
        return float(ends(typical, samplers, left, 1, np.random.default_rng(0)).mean())

    left = cores
    for _ in range(TURNS):
        collect_s = collecting_s(left)
        wanting = samplers * max(0.0, 1 - work.wait_s / collect_s)
        unused = cores - samplers * work.cpu_s / collect_s
        speed = min(1.0, max(cores / (learners + wanting), unused / learners))
        learn_s = alone_s / speed
        if learn_s > collect_s:  # the rest of it has cores of its own
            learn_s = alone_s + collect_s * (1 - speed)
        taken = min(1.0, learn_s / collect_s) * learners * speed
        before, left = left, (left + cores - taken) / 2  # half the way, so that it cannot swing
        if abs(left - before) < CONVERGED * cores:
            break
    return left, learn_s


def _work(costs: Costs, setup: Setup) -> Work:
    """What the sampler with the most lanes does for a round."""
    n = setup.samplers
    cpu_s, wait_s = costs.cpu_s(n), costs.wait_s(n)
    bursts = costs.steps * costs.own_lanes(n) if wait_s else 1
    head_s = costs.rollout_s
    return Work(head_s, bursts, (cpu_s - head_s) / bursts, wait_s, costs.deviation_s(n))
