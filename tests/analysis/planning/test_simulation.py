"""Simulated rounds: by hand where costs are constant, and against a queue of events."""

import heapq
import math

import numpy as np
import pytest

from walle.analysis.planning.costs import Costs, Network, Setup
from walle.analysis.planning.simulation import Rounds, play, predict


def costs(**given):
    """Nothing but what a test asks for."""
    nothing = {"receive_s": 0.0, "publish_s": 0.0, "wake_s": 0.0, "divisible": 1.0}
    return Costs(**{"steps": 10, "lanes": 12} | nothing | given)


CONSTANT = costs(env_cpu_s=0.1, learn_s=3.0, serial_s=0.5, after_s=0.2)  # 12 s of one sampler


@pytest.mark.parametrize(("samplers", "collect_s"), [(1, 12), (2, 6), (4, 3), (5, 3), (12, 1)])
def test_lock_step_adds_collecting_learning_and_the_rest(samplers, collect_s):
    found = predict(CONSTANT, Setup(samplers))
    assert found.collect_s == pytest.approx(collect_s)  # of the sampler with the most lanes
    assert found.iteration_s == pytest.approx(collect_s + 3 + 0.5)
    assert (found.lag, found.learn_s, found.steps) == (0, 3, 120)


@pytest.mark.parametrize("max_lag", [1, 2, None])
@pytest.mark.parametrize(("samplers", "collect_s"), [(1, 12), (2, 6), (12, 1)])
def test_overlap_takes_the_longer_of_both_halves(max_lag, samplers, collect_s):
    found = predict(CONSTANT, Setup(samplers, max_lag=max_lag))
    assert found.iteration_s == pytest.approx(max(collect_s, 3 + 0.5 + 0.2))
    assert found.lag == (max_lag or 1)


def test_what_comes_after_publishing_costs_nothing_unless_it_is_longer_than_collecting():
    long = costs(env_cpu_s=0.1, learn_s=3.0, after_s=2.0)
    assert predict(long, Setup(12)).iteration_s == pytest.approx(2 + 3)


def test_cores_are_shared_in_lock_step():
    found = predict(CONSTANT, Setup(12, cores=4))
    assert found.iteration_s == pytest.approx(3 + 3 + 0.5)


@pytest.mark.parametrize(
    ("learn_s", "iteration_s"),
    [
        (8.0, 8 + 2),  # 2 samplers of 4 s and a learner on 2 cores: 6 s at 2/3, then 4 s alone
        (2.0, 5.0),  # 3 s at 2/3, in which learning ends; 2 s alone
    ],
)
def test_learning_takes_cores_from_samplers_that_it_overlaps(learn_s, iteration_s):
    both = costs(lanes=8, env_cpu_s=0.1, learn_s=learn_s)
    found = predict(both, Setup(2, max_lag=1, cores=2))
    assert found.iteration_s == pytest.approx(iteration_s, rel=0.01)
    assert predict(both, Setup(2, max_lag=1, cores=3)).iteration_s == max(4.0, learn_s)


def test_learners_divide_learning():
    shared = costs(env_cpu_s=0.1, learn_s=3.0, most_learners=2)
    assert predict(shared, Setup(12, learners=2)).iteration_s == pytest.approx(1 + 1.5)
    assert predict(shared, Setup(12, learners=4)).iteration_s == pytest.approx(1 + 1.5)


def test_the_slowest_of_the_stragglers_ends_the_round():
    stragglers = costs(steps=100, lanes=64, env_wait_s=0.02, env_var=0.01**2, learn_s=1.0)
    found = predict(stragglers, Setup(64))
    # the sum of 100 steps: 2 s, deviation 0.1 s; the maximum of 64 normal ones lies at 2.35
    assert found.collect_s == pytest.approx(2 + 0.1 * 2.4, rel=0.02)
    assert found.iteration_s == pytest.approx(found.collect_s + 1, rel=0.001)
    steady = costs(steps=100, lanes=64, env_wait_s=0.02, learn_s=1.0)
    assert predict(steady, Setup(64)).iteration_s == pytest.approx(3.0)


def test_the_agent_s_own_costs_grow_with_the_samplers():
    own = Costs(steps=1, lanes=1000, env_wait_s=1.0, receive_s=1e-3, publish_s=1e-4, wake_s=1e-5)
    found = predict(own, Setup(1000))
    assert found.iteration_s == pytest.approx(1 + 0.1 + 1.0 + 0.015)


def test_machines_and_the_network_between_them():
    net = Network(bandwidth=1000, latency_s=0.1, exchange_s=0.3, step_bytes=10, policy_bytes=50)
    found = predict(CONSTANT, Setup(12, machines=3, cores=2, network=net))
    # 4 samplers on 2 cores each; 120 steps, two thirds of them from two other machines, and two
    # policies through the agent's link; copying them out takes next to nothing
    assert found.collect_s == pytest.approx(2 + 0.2 + 0.3 + (80 * 10 + 2 * 50) / 1000)
    alone = predict(CONSTANT, Setup(12, machines=1, cores=2, network=net))
    assert alone.collect_s == pytest.approx(6)


def events(rounds, max_lag):
    """Means of the last rounds by a queue of events, one sampler at a time."""
    table = rounds.collecting_s
    number, samplers = table.shape
    queue, published, taken_of = [], [0.0], [0] * samplers
    waiting = []

    def begin(sampler, now):
        round_ = taken_of[sampler]
        if round_ >= number:
            return
        needed = max(0, round_ - max_lag)
        if needed >= len(published):
            waiting.append((sampler, now))
            return
        start = max(now, published[needed])
        taken_of[sampler] += 1
        heapq.heappush(queue, (start + table[round_, sampler], sampler, round_))

    for sampler in range(samplers):
        begin(sampler, 0.0)
    arrived = [[] for _ in range(number)]
    while queue:
        now, sampler, round_ = heapq.heappop(queue)
        arrived[round_].append(now)
        if len(arrived[round_]) == samplers:
            begun = max(now, published[-1] + rounds.after_s)
            published.append(begun + rounds.taking_s + rounds.learning_s[round_] + rounds.serial_s)
        begin(sampler, now)
        ready, waiting[:] = list(waiting), []
        for other, since in ready:
            begin(other, since)
    return np.array(published)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
@pytest.mark.parametrize("learn_s", [0.1, 1.0, 3.0])
def test_the_recursion_gives_the_times_of_an_event_queue(max_lag, learn_s):
    rng = np.random.default_rng(1)
    rounds = Rounds(
        collecting_s=rng.gamma(4, 0.25, (60, 7)),
        learning_s=rng.gamma(9, learn_s / 9, 60),
        taking_s=0.01,
        serial_s=0.02,
        after_s=0.03,
        publish_s=0.0,
        arrival_s=0.0,
        steps=1,
    )
    published = events(rounds, max_lag)
    found = play(rounds, max_lag)
    assert found.iteration_s == pytest.approx((published[-1] - published[15]) / 45, rel=1e-9)


def free_events(rounds):
    """When policies are published by a queue of events: free-running, one slot a sampler."""
    table = rounds.collecting_s
    number, samplers = table.shape
    queue = [(table[0, i], i) for i in range(samplers)]
    heapq.heapify(queue)
    drawn, published = [1] * samplers, [0.0]
    ready, got, round_ = rounds.after_s, 0, 0
    while len(published) <= number:
        end, sampler = heapq.heappop(queue)
        at = max(end, ready)
        got += 1
        heapq.heappush(queue, (at + table[drawn[sampler] % number, sampler], sampler))
        drawn[sampler] += 1
        if got == samplers:
            done = at + rounds.taking_s + rounds.learning_s[round_] + rounds.serial_s
            published.append(done)
            ready, got, round_ = done + rounds.after_s, 0, round_ + 1
    return np.array(published)


@pytest.mark.parametrize("learn_s", [0.1, 1.0, 3.0])
def test_free_running_is_as_fast_as_an_event_queue_says(learn_s):
    rng = np.random.default_rng(1)
    rounds = Rounds(
        collecting_s=rng.gamma(4, 0.25, (400, 7)),
        learning_s=np.full(400, learn_s),
        taking_s=0.0,
        serial_s=0.0,
        after_s=0.0,
        publish_s=0.0,
        arrival_s=0.0,
        steps=1,
    )
    published = free_events(rounds)
    mean = (published[-1] - published[100]) / 300
    assert play(rounds, None).iteration_s == pytest.approx(mean, rel=0.02)  # other draws


def test_free_running_does_not_wait_for_stragglers():
    stragglers = costs(steps=1, lanes=64, env_wait_s=1.0, env_var=1.0, learn_s=0.01)
    lock_step, free = (predict(stragglers, Setup(64, max_lag=lag)) for lag in (0, None))
    assert free.iteration_s < 1.1
    assert lock_step.iteration_s > 4
    assert 0 < free.lag < 3


@pytest.mark.parametrize("max_lag", [0, 1, None])
def test_a_hundred_thousand_samplers(max_lag):
    many = costs(steps=32, lanes=64, env_wait_s=0.02, env_var=1e-4, env_cpu_s=1e-4, learn_s=0.1)
    found = predict(many, Setup(100_000, machines=2000, cores=64, max_lag=max_lag))
    assert math.isfinite(found.iteration_s)
    assert found.steps == 100_000


def test_the_same_setup_gives_the_same_numbers():
    assert predict(CONSTANT, Setup(5, max_lag=1)) == predict(CONSTANT, Setup(5, max_lag=1))
