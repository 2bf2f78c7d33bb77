"""Costs of a round for other numbers of samplers, learners and machines, by hand."""

import pytest

from walle.analysis.planning.costs import COPY_BYTES_S, Costs, Network, Setup

ROUND = Costs(
    steps=10,
    lanes=8,
    env_cpu_s=0.001,
    env_call_s=0.002,
    act_call_s=0.003,
    act_lane_s=0.0005,
    rollout_s=0.1,
    send_lane_s=0.01,
    learn_s=4.0,
    divisible=0.75,
    most_learners=3,
)


def test_calls_cost_the_same_for_few_lanes_and_lanes_do_not():
    # 0.1 once, 8 or 2 lanes sent, and 10 times the two calls with what they do for each lane
    assert ROUND.cpu_s(1) == pytest.approx(0.1 + 0.08 + 10 * (0.005 + 8 * 0.0015))
    assert ROUND.cpu_s(4) == pytest.approx(0.1 + 0.02 + 10 * (0.005 + 2 * 0.0015))
    assert ROUND.cpu_s(3) == pytest.approx(0.1 + 0.03 + 10 * (0.005 + 3 * 0.0015))  # the most


def test_waits_and_variances_add_up_over_steps_and_lanes():
    slow = Costs(steps=4, lanes=8, env_wait_s=0.02, env_var=0.01**2)
    assert slow.wait_s(1) == pytest.approx(0.64)
    assert slow.wait_s(8) == pytest.approx(0.08)
    assert slow.deviation_s(8) == pytest.approx(0.02)  # of 4 steps


def test_learners_divide_a_part_and_no_more_than_there_are_shards():
    found = [ROUND.learning_s(n) for n in (1, 2, 3, 4)]
    assert found == pytest.approx([4.0, 2.5, 2.0, 2.0])


def test_more_samplers_than_lanes_get_a_lane_each():
    assert ROUND.for_samplers(8) is ROUND
    twice = ROUND.for_samplers(16)
    assert (twice.steps, twice.lanes, twice.learn_s) == (5, 16, 4.0)
    many = ROUND.for_samplers(160)  # a step at least: twice the round
    assert (many.steps, many.lanes, many.learn_s) == (1, 160, 8.0)


def test_samplers_are_dealt_to_machines():
    assert Setup(7, machines=3).dealt == (3, 2, 2)
    assert Setup(2, machines=3).dealt == (1, 1)


def test_cores_that_a_run_occupies():
    assert Setup(4, learners=2).paid_cores == 4  # in turn
    assert Setup(4, learners=2, max_lag=1).paid_cores == 6
    assert Setup(64, cores=2).paid_cores == 2
    assert Setup(7, machines=3, cores=4, max_lag=None).paid_cores == 4 + 2 + 2


def test_taking_a_round_grows_with_samplers_and_with_what_other_machines_send():
    costs = Costs(steps=1, lanes=6, receive_s=1.0, wake_s=0.1)
    assert costs.taking_s(Setup(6)) == pytest.approx(6 * 1.15)
    net = Network(step_bytes=COPY_BYTES_S)  # a step of so many bytes takes a second to copy
    assert costs.taking_s(Setup(6, machines=3, network=net)) == pytest.approx(2 * 1.15 + 2 + 4)
